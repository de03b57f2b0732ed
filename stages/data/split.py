"""A split: examples by row, their features by name, and their targets; and the rules that each split keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.data.columns import Column, Described, describe, taken
from stages.errors import UserError
from stages.features.kinds import IMAGES

if TYPE_CHECKING:
    from stages.results import Dataset


@dataclass(frozen=True)
class Split:
    """Examples by row: their features by name, and their targets.

    features: columns as the data set's source has them, such as unscaled images, uint8 or float32 [N, H, W, C].
    targets: int32 [N] or float32 [N, k], as the task has them; other whole numbers become int32.
    weights: of the examples in losses and metrics, float64 [N], not negative; None: all alike.
    groups: a number of the group that each example belongs to, int64 [N]; None: each is independent of the others.
    numbers: of the examples in their source, int64 [N]; files: their paths in it, where it has one for each. None:
    unknown.
    cached: digests and moments of the features, where a cache has them.
    encoded: what the network takes, where an encoder makes it of the features; None: it takes these as they are.
    made_of: features, and the `cached` and `encoded` that are made of them; None: those that are given.

    Raises:
        UserError: where encoded features are replaced.

    An array is held in memory; other columns are read at each use.
    """

    features: Mapping[str, Column]
    targets: np.ndarray
    weights: np.ndarray | None = None
    numbers: np.ndarray | None = None
    files: Sequence[str] | None = None
    cached: Described | None = None
    encoded: Mapping[str, Column] | None = None
    made_of: tuple[Any, Any, Any] | None = None
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", int32_labels(self.targets))
        now = dict(self.features)
        before, cached, encoded = self.made_of or (now, None, None)
        if now.keys() != before.keys() or any(now[name] is not before[name] for name in now):
            if self.encoded is not None and self.encoded is encoded:
                raise UserError(
                    "a stage after `normalize` changes features that are already encoded",
                    "a pipeline with that stage before `normalize`",
                )
            if self.cached is cached:
                object.__setattr__(self, "cached", None)
        object.__setattr__(self, "made_of", (now, self.cached, self.encoded))

    @classmethod
    def of_images(cls, images: Column, labels: np.ndarray, **others: Any) -> Split:
        """Returns images with their classes, int [N]; `others` are further fields of the split."""
        return cls({IMAGES: images}, labels, **others)

    @property
    def images(self) -> Column:
        """The column of `of_images`."""
        return self.features[IMAGES]

    @property
    def inputs(self) -> Mapping[str, Column]:
        """The columns that the network takes."""
        return self.encoded or self.features

    @property
    def is_in_memory(self) -> bool:
        return all(isinstance(column, np.ndarray) for column in self.inputs.values())

    @cached_property
    def ends(self) -> Mapping[str, tuple[float, float]]:
        """The least and the greatest value of each feature that is in memory, nan where one is."""
        arrays = {name: column for name, column in self.features.items() if isinstance(column, np.ndarray)}
        return {name: (float(array.min()), float(array.max())) for name, array in arrays.items()}

    @cached_property
    def described(self) -> Described:
        """Digests and moments of the features; reads all of them unless a cache has these."""
        return self.cached or describe(self.features)

    def take(self, rows: np.ndarray) -> Split:
        """Returns the examples of `rows`, int64 [n] or a mask; what is read at each use still is."""
        rows = np.arange(len(self))[rows]

        def of(columns: Mapping[str, Column]) -> dict[str, Column]:
            return {name: taken(column, rows) for name, column in columns.items()}

        return Split(
            of(self.features),
            self.targets[rows],
            weights=self.weights[rows] if self.weights is not None else None,
            numbers=self.numbers[rows] if self.numbers is not None else None,
            files=[self.files[int(row)] for row in rows] if self.files is not None else None,
            cached=self.cached.of(rows) if self.cached is not None else None,
            encoded=of(self.encoded) if self.encoded is not None else None,
            groups=self.groups[rows] if self.groups is not None else None,
        )

    def __len__(self) -> int:
        return len(self.targets)


def int32_labels(labels: np.ndarray) -> np.ndarray:
    """Returns labels as int32 where they are whole numbers that it holds; others as an array, for `check` to refuse."""
    array = np.atleast_1d(np.asarray(labels))
    if array.dtype.kind not in "iu" or array.dtype == np.int32:
        return array
    narrow = array.astype(np.int32)
    return narrow if np.array_equal(narrow, array) else array


def check(dataset: Dataset) -> None:
    """Checks that a data set can be trained on.

    Raises:
        UserError: where it cannot; see `stages.results.Dataset`.
    """
    for name, split in dataset.splits.items():
        where = f"{dataset.name}: the {name}"
        for key, feature in dataset.features.items():
            if key not in split.features:
                raise UserError(f"{where} split has no column {key}", "a column for each feature")
            feature.check(where, key, split, name == "train")
        dataset.task.check(where, split.targets)
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
