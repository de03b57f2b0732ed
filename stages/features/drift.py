"""Drift: how far the distribution of other data is from the distribution of the training data.

One measure for all kinds of features: the population stability index, the sum over bins of (q - p) ln(q / p) of the
shares p in training and q now (Siddiqi, Credit Risk Scorecards, 2006, chapter 6, also the source of `MOVED`). It needs
only NumPy.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from stages.data.columns import Column
from stages.features.images import ImageFeature, images_of
from stages.features.kinds import ROWS, Feature, Schema
from stages.features.schema import feature_of

MOVED = 0.25
"""Index above which a column has moved."""

LEAST = 200
"""Minimum number of rows for a report: the index of fewer rows is large by chance."""

SHOWN = 5
"""Maximum number of columns that one line names."""


def with_bins(schema: Schema, columns: Mapping[str, Column]) -> dict[str, Feature]:
    """Return the features with the distribution of `columns`, those of the training split."""
    return {name: feature.with_bins(columns[name]) for name, feature in schema.items()}


def trained_on(schema: Schema) -> str:
    """Return the distributions of the training split as JSON, which is saved with exported models."""
    return json.dumps({name: distribution(name, one) for name, one in schema.items() if one.trained_on is not None})


def distribution(name: str, feature: Feature) -> dict[str, Any] | None:
    """Return the distribution of a feature in the training split as JSON; None if it is unknown."""
    if feature.trained_on is None:
        return None
    bins = asdict(feature.trained_on)  # type: ignore[call-overload]
    return {"kind": feature.kind, "column": feature.column_name(name), **feature.measured_by, **bins}


def of_distribution(known: Mapping[str, Any]) -> Feature:
    """Return the feature that `distribution` has described: its distribution, and what this depends on."""
    own = {name: value for name, value in known.items() if name != "values"}  # the vocabulary has more values
    return feature_of({**own, "trained_on": known})


class Drift:
    """Counts rows of other data by the bins of the training split."""

    def __init__(self, known: str, decoder: Callable[..., Any] | None = None) -> None:
        """Read the distribution of the training split.

        Args:
            known: What `trained_on` returned.
            decoder: `stages.data.decode.Decoder`, for encoded images.
        """
        self._decoder = decoder
        self._features = {name: of_distribution(one) for name, one in json.loads(known).items()}
        self._counts: dict[str, np.ndarray] = {}
        self.rows = 0

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the table by the names of features."""
        return {name: feature.column_name(name) for name, feature in self._features.items()}

    def add(self, columns: Mapping[str, Any]) -> None:
        """Count rows, evenly spread if there are many.

        Args:
            columns: Columns by the names of features; images may be encoded. Other columns are not counted.
        """
        for name, feature in self._features.items():
            if name in columns and columns[name].shape[0]:
                if isinstance(feature, ImageFeature) and len(columns[name].shape) == 1:
                    self._count_encoded(name, feature, columns[name].tolist())
                else:
                    self._count(name, feature.measured(columns[name]))

    def _count(self, name: str, measured: np.ndarray) -> None:
        bins = self._features[name].trained_on
        assert bins is not None
        self._counts[name] = self._counts.get(name, 0) + bins.counts(measured)
        self.rows = max(self.rows, int(self._counts[name].sum()))

    def add_encoded(self, images: Sequence[bytes]) -> None:
        """Count encoded images as training decodes them. Images that cannot be decoded are not counted."""
        for name, feature in images_of(self._features).items():
            self._count_encoded(name, feature, images)

    def _count_encoded(self, name: str, feature: ImageFeature, images: Sequence[bytes]) -> None:
        if self._decoder and feature.resize and self._counted(name) < ROWS:  # earlier versions lack `resize`
            decoded = self._decoder(feature.shape, feature.resize)(images)
            self._count(name, np.array([one.mean() / 255 for one in decoded if isinstance(one, np.ndarray)]))

    def _counted(self, name: str) -> int:
        return int(np.sum(self._counts.get(name, 0)))

    def moved(self) -> dict[str, float]:
        """Return the columns that have moved with their indices, the farthest first."""
        found = {}
        for name, counts in self._counts.items():
            feature = self._features[name]
            if counts.sum() >= LEAST and feature.trained_on is not None:
                found[feature.column_name(name)] = _index(np.array(feature.trained_on.shares), counts)
        return {name: value for name, value in sorted(found.items(), key=lambda one: -one[1]) if value > MOVED}

    def sentences(self, what: str) -> list[str]:
        """Return a line that names the columns that have moved, if there are any; `what` names the rows."""
        moved = [f"{name} {value:.2f}" for name, value in self.moved().items()]
        more = f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
        shown = f"{', '.join(moved[:SHOWN])}{more}"
        return [f"{what} differ from the training data in {shown} (population stability index)"] if moved else []


def _index(shares: np.ndarray, counts: np.ndarray) -> float:
    now = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))  # an empty bin must not make the index infinite
    before = (shares * ROWS + 0.5) / (ROWS + 0.5 * len(shares))
    return float(np.sum((now - before) * np.log(now / before)))
