"""Columns of splits as numbers, for models of scikit-learn."""

from collections.abc import Sequence

import numpy as np

from stages.data.split import Split
from stages.features.categories import CategoryFeature
from stages.features.kinds import Schema, texts_of
from stages.reporter import safe_place

MOST_CATEGORIES = 254
"""Maximum number of values of a category, the most frequent ones. All others count as missing."""


def are_categories(columns: Schema) -> list[bool]:
    """Return for each column of `encoded_columns` whether it is a category."""
    return [isinstance(feature, CategoryFeature) for feature in columns.values() for _ in range(feature.plain_columns)]


def encoded_columns(splits: Sequence[Split], columns: Schema) -> list[np.ndarray]:
    """Return the columns of each split, float64 [n, columns]; the first split is the training split.

    Numbers stay as they are, categories become numbers by their frequency, a vector has a column for each element, and
    a date has one for its place in each period of the calendar, too.
    """
    found = []
    for name, feature in columns.items():
        parts = [np.asarray(split.features[name][:]) for split in splits]
        if isinstance(feature, CategoryFeature):
            words = [texts_of(part) for part in parts]
            values, counts = np.unique(words[0], return_counts=True)
            most = values[np.argsort(-counts, kind="stable")][:MOST_CATEGORIES]
            codes = {value: float(code) for code, value in enumerate(most)}
            parts = [np.array([codes.get(value, np.nan) for value in part]) for part in words]
        found.append([feature.plain(part) for part in parts])
        safe_place()
    return [np.column_stack(parts) for parts in zip(*found, strict=True)]
