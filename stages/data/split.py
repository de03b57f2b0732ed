"""A split: examples by row, with their features by name and their targets, and the checks of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from stages.data.columns import Column, Described, Gathered, Streamed, describe, is_in_memory, taken
from stages.errors import UserError
from stages.features.kinds import IMAGES

if TYPE_CHECKING:
    from stages.results import Dataset


T = TypeVar("T")


@dataclass(frozen=True)
class Derived(Generic[T]):
    """A value computed from columns, together with these columns."""

    value: T
    source: Mapping[str, Column]

    def is_of(self, columns: Mapping[str, Column]) -> bool:
        """Return whether the value was computed from `columns`: the same objects under the same names."""
        return columns.keys() == self.source.keys() and all(columns[name] is self.source[name] for name in columns)


@dataclass(frozen=True)
class Split:
    """Examples by row: their features by name, and their targets.

    Columns that are arrays are in memory. Other columns, such as images or masks on the disk, are read at each use.
    """

    features: Mapping[str, Column]
    """Columns as the source of the data has them, such as unscaled images, uint8 or float32 [N, H, W, C]."""
    targets: Column
    """int32 or float32 [N, ...], as the task defines them. Networks get whole numbers as int32."""
    weights: np.ndarray | None = None
    """The weight of each example in losses and metrics, float64 [N], not negative; None if all count alike."""
    numbers: np.ndarray | None = None
    """The number of each example in its source, int64 [N], if known."""
    files: Sequence[str] | None = None
    """The path of each example in its source, if it has one."""
    cached: Derived[Described] | None = None
    """Digests and moments of the features, if a cache has them; see `with_described`."""
    encoded: Derived[Mapping[str, Column]] | None = None
    """Inputs of the network that an encoder has computed from the features; see `with_encoded`."""
    groups: np.ndarray | None = None
    """The number of the group of each example, int64 [N]; None if examples are independent of each other."""
    is_table: bool = False
    """Whether the examples are rows of a table, which `numbers` identify, whatever columns are used."""

    @classmethod
    def of_images(cls, images: Column, labels: np.ndarray, **others: Any) -> Split:
        """Return images with their classes, int [N]; `others` are further fields of the split."""
        return cls({IMAGES: images}, int32_labels(labels), **others)

    @property
    def images(self) -> Column:
        """The column of `of_images`."""
        return self.features[IMAGES]

    @property
    def inputs(self) -> Mapping[str, Column]:
        """The columns that the network gets: the encoded ones, if there are any, or the features."""
        return self.features if self.encoded is None else self.encoded.value

    @property
    def target_values(self) -> np.ndarray:
        """All targets as an array. Targets that are read at each use are read."""
        return np.asarray(self.targets[:])

    @property
    def is_in_memory(self) -> bool:
        return all(is_in_memory(column) for column in (*self.inputs.values(), self.targets))

    @cached_property
    def ends(self) -> Mapping[str, tuple[float, float]]:
        """The least and the greatest value of each feature that is in memory; nan if it has one."""
        arrays = {name: column for name, column in self.features.items() if isinstance(column, np.ndarray)}
        return {name: (float(array.min()), float(array.max())) for name, array in arrays.items()}

    @cached_property
    def described(self) -> Described:
        """Digests and moments of the features. All of them are read, unless a cache has these."""
        if self.cached is not None and self.cached.is_of(self.features):
            return self.cached.value
        return describe(self.features)

    def with_described(self, described: Described | None) -> Split:
        """Return the split with digests and moments of its features, so that these need not be read."""
        return replace(self, cached=None if described is None else Derived(described, self.features))

    def with_encoded(self, encoded: Mapping[str, Column]) -> Split:
        """Return the split with what an encoder has computed from its features."""
        return replace(self, encoded=Derived(encoded, self.features))

    def with_same_values(self, features: Mapping[str, Column]) -> Split:
        """Return the split with the same values in other columns, such as renamed ones, or ones in memory."""
        known = self.cached.value if self.cached is not None and self.cached.is_of(self.features) else None
        return replace(self, features=features).with_described(known)

    def take(self, rows: np.ndarray) -> Split:
        """Return the examples of `rows`, int64 [n] or a mask; columns that are read at each use still are."""
        rows = np.arange(len(self))[rows]

        def of(columns: Mapping[str, Column]) -> dict[str, Column]:
            return {name: taken(column, rows) for name, column in columns.items()}

        taken_split = Split(
            of(self.features),
            taken(self.targets, rows),
            weights=self.weights[rows] if self.weights is not None else None,
            numbers=self.numbers[rows] if self.numbers is not None else None,
            files=[self.files[int(row)] for row in rows] if self.files is not None else None,
            groups=self.groups[rows] if self.groups is not None else None,
            is_table=self.is_table,
        )
        if self.cached is not None and self.cached.is_of(self.features):
            taken_split = taken_split.with_described(self.cached.value.of(rows))
        return taken_split if self.encoded is None else taken_split.with_encoded(of(self.encoded.value))

    def __len__(self) -> int:
        return int(self.targets.shape[0])


def int32_labels(labels: Column) -> Column:
    """Return labels as int32 if they are whole numbers that it can hold, else as an array, for `check` to refuse."""
    if isinstance(labels, Streamed | Gathered):
        return labels
    array = np.atleast_1d(np.asarray(labels))
    if array.dtype.kind not in "iu" or array.dtype == np.int32 or array.ndim > 2:  # masks stay as narrow as they are
        return array
    narrow = array.astype(np.int32)
    return narrow if np.array_equal(narrow, array) else array


def check(dataset: Dataset) -> None:
    """Check that a data set can be trained on.

    Raises:
        UserError: If it cannot; see `stages.results.Dataset`.
    """
    for name, split in dataset.splits.items():
        where = f"{dataset.name}: the {name}"
        if split.encoded is not None and not split.encoded.is_of(split.features):
            raise UserError(
                "a stage after `normalize` changes features that are already encoded",
                "a pipeline with that stage before `normalize`",
            )
        for key, feature in dataset.features.items():
            if key not in split.features:
                raise UserError(f"{where} split has no column {key}", "a column for each feature")
            feature.check(where, key, split, name == "train")
        dataset.task.targets.check(where, split.targets)
        _check_weights(where, split)


def _check_weights(where: str, split: Split) -> None:
    weights = split.weights
    if weights is None:
        return
    if weights.shape != (len(split),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.sum() > 0:
        raise UserError(
            f"{where} weights are {weights.dtype} {weights.shape} in {weights.min():g}..{weights.max():g}",
            "one weight per example, finite, not negative, and not all 0",
        )
