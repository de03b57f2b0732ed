"""Categories: one of a few values, texts or whole numbers, by a vocabulary learned from the training split."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column
from stages.features.kinds import BLOCK, NO_NUMBER, ROWS, Encoded, Feature, some_rows, texts_of
from stages.features.numbers import values_for_statistics

if TYPE_CHECKING:
    from stages.data.split import Split
    from stages.settings.data import NormalizeSettings

ONE_HOT = 32
"""Maximum number of values for a column each. A category with more is an index, for an embedding."""

TOP = 10
"""Number of frequent values that have a bin each."""

KNOWN = 1_000
"""Number of frequent values that have a bin at all. The others count as unknown."""


@dataclass(frozen=True)
class CategoryBins:
    """A bin for each of the most frequent values, one for the other known values, and one for unknown values."""

    values: Sequence[Any]
    shares: Sequence[float] = ()

    def counts(self, measured: np.ndarray) -> np.ndarray:
        places = {value: min(place, TOP) for place, value in enumerate(self.values)}
        numbers = np.array([places.get(value, TOP + 1) for value in measured.tolist()], np.int64)
        return np.bincount(numbers, minlength=TOP + 2)


@dataclass(frozen=True)
class CategoryFeature(Feature):
    """One of a few values, texts or whole numbers."""

    kind: ClassVar[str] = "category"
    unit: ClassVar[str] = "rows"
    bins: ClassVar[type[Any]] = CategoryBins

    dtype: str = "string"
    values: tuple[Any, ...] | None = None
    """The vocabulary, the most frequent values first."""

    @property
    def indices(self) -> int:
        count = len(self.values or ())
        return count + 1 if count > ONE_HOT else 0

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        return replace(self, values=tuple(vocabulary_of(column)))

    def encode(self, values: Any) -> Encoded:
        """Return one column per value, all 0 for an unknown one.

        If there are more than ONE_HOT values, return the place in the vocabulary instead, from 1; and 0 for an unknown
        value, for which the numbers have a 1, too.
        """
        import keras  # seconds, which commands without TensorFlow must not wait for
        from keras import ops

        assert self.values is not None
        is_text = self.dtype == "string"
        layer, unknown = (keras.layers.StringLookup, "\0") if is_text else (keras.layers.IntegerLookup, NO_NUMBER)
        vocabulary = list(self.values)
        if not self.indices:
            lookup = layer(vocabulary=vocabulary, oov_token=unknown, output_mode="one_hot")
            return Encoded([lookup(values)[:, 1:]])
        indices = ops.cast(layer(vocabulary=vocabulary, oov_token=unknown)(values), "int32")
        return Encoded([ops.expand_dims(ops.equal(indices, 0), axis=-1)], indices)

    def measured(self, column: Column) -> np.ndarray:
        return some_rows(column, ROWS)

    def _bins(self, measured: np.ndarray) -> CategoryBins:
        return CategoryBins(list((self.values or ())[:KNOWN]))

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        import pandas as pd  # a quarter of a second, which images need not wait for

        values = values_for_statistics(split, name)
        counts = pd.Series(values).value_counts()
        named = dict(zip(texts_of(counts.index.to_numpy()), counts.tolist(), strict=True))
        most = ", ".join(f"{value or 'missing'} ({count})" for value, count in itertools.islice(named.items(), 3))
        return [self._row(name, named.get("", 0) / len(values), "", "", "", "", len(named), most)]

    def ordinals(self, column: Column, rows: np.ndarray) -> np.ndarray:
        return np.unique(column[rows], return_inverse=True)[1].astype(np.float64)

    @property
    def known(self) -> dict[str, Any]:
        return {} if self.values is None else {"values": list(self.values)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        known = tuple(values["values"]) if "values" in values else None
        return cls(values.get("dtype", "string"), known, **common)


def vocabulary_of(column: Column) -> list[Any]:
    """Return the values, the most frequent first, equally frequent ones by name.

    If there are more than ONE_HOT, values that occur once are left out: they serve as examples of unknown values.
    """
    counts: Counter[Any] = Counter()
    for start in range(0, column.shape[0], BLOCK):
        counts.update(column[start : start + BLOCK].tolist())  # twenty times as fast as sorting them
    ordered = sorted(counts, key=lambda value: (-counts[value], value))
    repeated = [value for value in ordered if counts[value] > 1]
    return ordered if len(ordered) <= ONE_HOT or not repeated else repeated
