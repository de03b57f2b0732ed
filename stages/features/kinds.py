"""Features: the inputs of an example as they are before any encoder. Each kind of feature is a class of its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np

from stages.data.columns import Column, evenly_spread
from stages.errors import UserError

if TYPE_CHECKING:
    from stages.data.split import Split
    from stages.settings.data import NormalizeSettings

IMAGES = "images"
"""Name of the feature of a data set of images."""

HISTORY = "history"
"""Name of the feature with the past of a window of time series."""

NO_NUMBER = -(2**63)
"""Stands for a missing value of a category of whole numbers, and for an unknown one. No vocabulary contains it."""

ROWS = 10_000
"""Maximum number of rows, evenly spread, from which the shares of bins are computed."""

WIDE_ROWS = 500
"""The same for vectors and images."""

MEAN_BLOCK = 50
"""Number of vectors, or images, that are read at once."""

BLOCK = 2**16
"""Number of rows that are learned from, or encoded, at once."""


class Bins(Protocol):
    """The bins of a column, and the share of its training values in each."""

    @property
    def shares(self) -> Sequence[float]:
        """The share of the training values in each bin."""

    def counts(self, measured: np.ndarray) -> np.ndarray:
        """Return the number of values in each bin. The last bin holds missing and unknown values."""


@dataclass(frozen=True)
class NumberBins:
    """Bins between the deciles of the training values."""

    borders: Sequence[float]
    shares: Sequence[float] = ()

    @classmethod
    def of(cls, measured: np.ndarray) -> NumberBins:
        """Return the bins of training values; nan is a missing one."""
        present = measured[~np.isnan(measured)]
        ends = np.quantile(present, np.linspace(0, 1, 11), method="lower") if len(present) else present
        return cls(np.unique(ends).tolist())

    def counts(self, measured: np.ndarray) -> np.ndarray:
        last = len(self.borders) + 1
        numbers = np.where(np.isnan(measured), last, np.searchsorted(self.borders, measured))
        return np.bincount(numbers, minlength=last + 1)


@dataclass(frozen=True)
class Encoded:
    """The output of the encoder for one feature."""

    numbers: Sequence[Any] = ()
    """Tensors [b, k] that become columns of the tensor of all numbers."""
    indices: Any = None
    """A tensor of integers with the name of the feature, int32 [b, ...], if the feature has one."""
    steps: Any = None
    """A tensor of numbers by steps with the name of the feature, float32 [b, steps, k], if the feature has one."""


@dataclass(frozen=True, kw_only=True)
class Feature(ABC):
    """An input of an example, as it is before any encoder. An exported model accepts this input.

    What is learned from the training split is part of the feature. It is None before `normalize`. To add a kind of
    feature, write a subclass and add it to `KINDS` in `stages/features/schema.py`.
    """

    kind: ClassVar[str]
    """The kind as users know it, such as `number`."""
    unit: ClassVar[str] = "examples"
    """The name of the examples if all features are of this kind."""
    is_encodable: ClassVar[bool] = True
    """Whether `learn` and `encode` are defined."""
    block: ClassVar[int] = BLOCK
    """Maximum number of rows to encode at once."""
    bins: ClassVar[type[Any]] = NumberBins
    """The class of `trained_on`."""

    column: str | None = None
    """The name of the column in the files, if it cannot be the name of an argument."""
    trained_on: Bins | None = None
    """The distribution of the training values. Other data is compared with it."""

    @property
    @abstractmethod
    def dtype(self) -> str:
        """NumPy's name of the dtype; `string` for text."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return ()

    @property
    def argument(self) -> str:
        """The dtype of an exported model's argument."""
        return self.dtype

    @property
    def indices(self) -> int:
        """The number of different integers in the tensor of this feature, for an embedding; 0 if it has no tensor."""
        return 0

    def column_name(self, name: str) -> str:
        """Return the name of the column in the files; `name` is the feature's."""
        return self.column or name

    def check(self, where: str, name: str, split: Split, is_train: bool) -> None:
        """Raise UserError if the column `name` of `split` is not of this feature.

        Args:
            where: The data set and the split, for the message.
            name: The name of the feature.
            split: The split, which has this column.
            is_train: Whether it is the training split.
        """
        self._check_rows(where, name, split, split.features[name].shape, "[N, …]")

    def _check_rows(self, where: str, name: str, split: Split, shape: tuple[int, ...], expected: str) -> None:
        if split.targets.shape[:1] != shape[:1] or not len(split):
            self._refuse_shape(where, name, split, expected)

    def _refuse_shape(self, where: str, name: str, split: Split, expected: str) -> None:
        labels = f"{split.targets.dtype} {split.targets.shape} labels"
        raise UserError(
            f"{where} split has {name} with shape {split.features[name].shape} and {labels}",
            f"{name} {expected} and labels [N], with N at least 1",
        )

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        """Return the feature with what is learned from `column`, the values of the training split."""
        raise NotImplementedError

    def encode(self, values: Any) -> Encoded:
        """Return tensors for the network from `values`, a Keras tensor [b, ...], with what has been learned."""
        raise NotImplementedError

    @abstractmethod
    def measured(self, column: Column) -> np.ndarray:
        """Return the values to compare with other data, one per row, from some rows of `column`."""

    def with_bins(self, column: Column) -> Self:
        """Return the feature with `trained_on`, from the column of the training split."""
        measured = self.measured(column)
        bins = self._bins(measured)
        counts = bins.counts(measured)
        return replace(self, trained_on=replace(bins, shares=(counts / counts.sum()).tolist()))

    def _bins(self, measured: np.ndarray) -> Any:
        return NumberBins.of(measured)

    @abstractmethod
    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        """Return rows for `statistics.csv`, with the columns of `stages.inspect.HEADER` after `examples`."""

    def ordinals(self, column: Column, rows: np.ndarray) -> np.ndarray | None:
        """Return a number, float64, for each of `rows`, from which a tree can predict the target; None if none fits."""
        return None

    @property
    def plain_columns(self) -> int:
        """The number of columns of `plain`."""
        return math.prod(self.shape)

    def plain(self, values: np.ndarray) -> np.ndarray:
        """Return numbers for a model without an encoder, float64 [n] or [n, plain_columns]; nan if one is missing."""
        return values.astype(np.float64)

    def warnings(self, name: str, train: Split, val: Split) -> list[str]:
        """Return warnings about values that would spoil the training."""
        return []

    def _row(self, name: str, *values: Any) -> Sequence[Any]:
        return (self.column_name(name), self.kind, *values)

    @property
    def known(self) -> dict[str, Any]:
        """The fields of the class itself as JSON, flat. `to_json` adds the others."""
        return {}

    @property
    def measured_by(self) -> dict[str, Any]:
        """The fields that `measured` depends on, as JSON. They are saved with exported models."""
        return {}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        """Return the feature that `to_json` has written.

        Args:
            values: All values, flat. Some may be missing: a file may know the feature only in part.
            common: The fields that every feature has.
        """
        return cls(**common)

    def to_json(self) -> dict[str, Any]:
        """Return the feature as JSON."""
        column = {"column": self.column} if self.column else {}
        bins = {"trained_on": asdict(self.trained_on)} if self.trained_on is not None else {}  # type: ignore[call-overload]
        return {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape), **column, **self.known, **bins}


Schema: TypeAlias = Mapping[str, Feature]
"""The features of a data set, by name."""


def some_rows(column: Column, most: int) -> np.ndarray:
    """Return at most `most` values of a column, evenly spread over its rows."""
    return np.asarray(column[evenly_spread(column.shape[0], most)])


def means_of(column: Column) -> np.ndarray:
    """Return the mean of each of some rows of vectors or images, float64, reading a few at a time."""
    rows = evenly_spread(column.shape[0], WIDE_ROWS)
    blocks = (column[rows[start : start + MEAN_BLOCK]] for start in range(0, len(rows), MEAN_BLOCK))
    means = [np.mean(block, axis=tuple(range(1, block.ndim)), dtype=np.float64) for block in blocks]
    return np.concatenate(means) if means else np.zeros(0)


def texts_of(values: np.ndarray) -> np.ndarray:
    """Return values of a category, texts or whole numbers, as texts, object; a missing one is empty."""
    return np.array(["" if value == NO_NUMBER else str(value) for value in values.tolist()], object)
