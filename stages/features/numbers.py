"""Numbers: a column of float64, which the encoder standardizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column, evenly_spread
from stages.errors import UserError
from stages.features.kinds import BLOCK, ROWS, Encoded, Feature, some_rows
from stages.settings.table import declaring

if TYPE_CHECKING:
    from stages.data.split import Split
    from stages.settings.data import NormalizeSettings

SAMPLE = 5_000
"""Number of rows, evenly spread, from which statistics are computed if a split that is not in memory has more."""

MOST_BINS = 64
"""Maximum number of bins of a number, between quantiles of its training values."""

EDGE_ROWS = 2**17
"""Maximum number of rows, evenly spread, from which the quantiles are computed."""

VALUES = 2**22
"""Number of numbers that are learned from, or encoded, at once, and from which medians are computed, at most."""


@dataclass(frozen=True)
class Moments:
    """Statistics of the training values that are not missing, in float64. A constant column has the std 1."""

    mean: float
    std: float
    median: float
    has_missing: bool


@dataclass(frozen=True)
class NumberFeature(Feature):
    """A number; nan if it is missing."""

    kind: ClassVar[str] = "number"
    unit: ClassVar[str] = "rows"

    dtype: str = "float64"
    moments: Moments | None = None
    edges: tuple[float, ...] = ()
    """Edges of bins in standardized units, increasing; empty if fewer than three different values are known."""

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        [moments] = moments_of(column)
        refuse_overflow(self.column_name(name), [moments])
        values = some_rows(column, EDGE_ROWS).astype(np.float64)
        return replace(self, moments=moments, edges=edges_of((values - moments.mean) / moments.std))

    @property
    def parts(self) -> Mapping[str, NumberFeature]:
        """The numbers that the encoder standardizes, by name: the feature itself, under the empty name."""
        return {"": self}

    def part_values(self, values: Any) -> list[Any]:
        """Return the values of `parts`, float64 [b] each, from a tensor of values."""
        return [values]

    def encode(self, values: Any) -> Encoded:
        """Return the standardized numbers. `encoder_of` encodes all numbers at once, for speed."""
        from keras import ops  # seconds, which commands without TensorFlow must not wait for

        parts = self.part_values(values)
        return Encoded([*standardized(ops.stack(parts, axis=-1), moments_in([self])), *self.more_columns(parts)])

    def more_columns(self, parts: Sequence[Any]) -> list[Any]:
        """Return tensors [b, k] that `encode` returns in addition to standardized numbers. parts: of `part_values`."""
        return []

    def shown(self, value: float) -> str:
        """Return a value as text."""
        return f"{value:.6g}"

    def measured(self, column: Column) -> np.ndarray:
        return some_rows(column, ROWS).astype(np.float64)

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        values = values_for_statistics(split, name)
        return [self._row(name, float(np.isnan(values).mean()), *describe_numbers(values), "", "")]

    def ordinals(self, column: Column, rows: np.ndarray) -> np.ndarray:
        return np.asarray(column[rows], np.float64)

    @property
    def known(self) -> dict[str, Any]:
        edges = {"edges": list(self.edges)} if self.edges else {}
        return {} if self.moments is None else {**asdict(self.moments), **edges}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        is_learned = "mean" in values
        moments = Moments(*(values[key] for key in Moments.__dataclass_fields__)) if is_learned else None
        return cls(values.get("dtype", "float64"), moments, tuple(values.get("edges", ())), **common)


def moments_in(features: Iterable[NumberFeature]) -> list[Moments]:
    """Return the moments of all parts of features."""
    parts = [part for feature in features for part in feature.parts.values()]
    return [part.moments for part in parts if part.moments is not None]


def edges_of(values: np.ndarray) -> tuple[float, ...]:
    """Return the edges of bins of numbers, [n], nan if missing: each value if there are few, else quantiles.

    Equal quantiles are one edge. Numbers with fewer than three different values have no bins, as a bin would only
    repeat the number.
    """
    known = values[~np.isnan(values)]
    different = np.unique(known)
    if len(different) > MOST_BINS:
        different = np.unique(np.quantile(known, np.linspace(0, 1, MOST_BINS + 1)))
    different = np.unique(different.astype(np.float32))  # the network's own dtype, in which edges must differ
    return tuple(map(float, different)) if len(different) > 2 else ()


def moments_of(column: Column) -> list[Moments]:
    """Return the statistics of numbers, [N], or of each element of vectors, [N, d], in two passes of float64."""
    width = column.shape[1] if len(column.shape) > 1 else 1
    rows = max(1, VALUES // width)
    step = min(BLOCK, rows)

    def blocks() -> Iterator[np.ndarray]:
        starts = range(0, column.shape[0], step)
        return (np.asarray(column[start : start + step], np.float64).reshape(-1, width) for start in starts)

    counts = sum((~np.isnan(block)).sum(axis=0) for block in blocks())
    means = sum(np.nansum(block, axis=0) for block in blocks()) / np.maximum(counts, 1)
    with np.errstate(over="ignore"):  # `refuse_overflow` refuses what is too large
        squares = sum(np.nansum(np.square(block - means), axis=0) for block in blocks())
    stds = np.sqrt(squares / np.maximum(counts, 1))
    some = np.asarray(column[evenly_spread(column.shape[0], rows)], np.float64).reshape(-1, width)
    is_unknown = np.isnan(some).all(axis=0)
    medians = np.where(is_unknown, means, np.nanmedian(np.where(is_unknown, 0.0, some), axis=0))
    stds = np.where(stds > 1e-12 * np.abs(means), stds, 1.0)
    of_each = zip(means, stds, medians, counts < column.shape[0], strict=True)
    return [Moments(float(mean), float(std), float(median), bool(some)) for mean, std, median, some in of_each]


def refuse_overflow(column: str, learned: Sequence[Moments]) -> None:
    """Raise UserError if the squares of the numbers of a column overflow."""
    if not all(math.isfinite(one.std) for one in learned):
        raise UserError(
            f"the column {column} has numbers whose squares overflow",
            "numbers with an absolute value below 1e150 in the training split",
            declaring({column: "leave_out"}),
        )


def standardized(values: Any, learned: Sequence[Moments]) -> list[Any]:
    """Return scaled numbers, float64 [b, k], and, if training values were missing, flags for those that are."""
    from keras import ops  # seconds, which commands without TensorFlow must not wait for

    median, mean, scale = (
        np.array(numbers) for numbers in zip(*((one.median, one.mean, 1.0 / one.std) for one in learned), strict=True)
    )
    is_missing = ops.isnan(values)
    scaled = (ops.where(is_missing, median, values) - mean) * scale
    flagged = [place for place, one in enumerate(learned) if one.has_missing]
    return [scaled, ops.take(is_missing, flagged, axis=-1)] if flagged else [scaled]


def values_for_statistics(split: Split, name: str) -> np.ndarray:
    """Return a column in memory, or some of its rows, evenly spread."""
    column = split.features[name]
    return np.asarray(column[slice(None) if isinstance(column, np.ndarray) else evenly_spread(len(split), SAMPLE)])


def describe_numbers(values: np.ndarray) -> tuple[str, ...]:
    """Return the mean, std, minimum and maximum of numbers, as text; nan is a missing one."""
    import pandas as pd  # a quarter of a second, which images need not wait for

    return tuple(f"{number:.6g}" for number in pd.Series(values.ravel()).agg(["mean", "std", "min", "max"]))
