"""A split: examples by row, their features by name, and their targets; and the rules that each split keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.data.columns import Column, Described, describe, taken
from stages.errors import UserError
from stages.features.kinds import IMAGES

if TYPE_CHECKING:
    from stages.features.kinds import Feature
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
            _check_column(where, split, key, feature)
            if feature.kind == "image":
                is_known = name == "train" and not feature.facts.get("is_measured")  # maybe by an earlier training
                _check_pixels(where, split, key, feature, 0.01 if is_known else 1.0)
        dataset.task.check(where, split.targets)
        _check_weights(where, split)


def _check_column(where: str, split: Split, key: str, feature: Feature) -> None:
    if key not in split.features:
        raise UserError(f"{where} split has no column {key}", "a column for each feature")
    shape, dtype = split.features[key].shape, split.features[key].dtype
    is_image = feature.kind == "image"
    if (is_image and len(shape) != 4) or split.targets.shape[:1] != shape[:1] or not len(split):
        labels = f"{split.targets.dtype} {split.targets.shape} labels"
        expected = f"{key} {'[N, H, W, C]' if is_image else '[N, …]'} and labels [N], with N at least 1"
        raise UserError(f"{where} split has {key} with shape {shape} and {labels}", expected)
    if is_image and (shape[1:] != feature.shape or dtype not in (np.uint8, np.float32)):
        expected = f"uint8 or float32, of the training split's shape {feature.shape}"
        raise UserError(f"{where} images are {dtype} {shape[1:]}", expected)


def _check_pixels(where: str, split: Split, key: str, feature: Feature, beyond: float) -> None:
    """Checks the range, and pixels that are in memory; others would take a reading of all of them.

    Args:
        beyond: part of the range by which a pixel may lie outside: of unknown examples one may, a little; where all are
            of another unit, they do so by far.
    """
    low, high = feature.facts["range"]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"{where} pixel_range is ({low:g}, {high:g})", "two finite numbers, the smaller one first")
    if split.features[key].dtype == np.uint8 and low <= 0 and high >= 255:
        return
    least, greatest = split.ends.get(key, (low, high))
    more = beyond * (high - low)
    if not (low - more <= least and greatest <= high + more):
        raise UserError(
            f"{where} pixels are in {least:g}..{greatest:g}, outside the pixel_range ({low:g}, {high:g})",
            "finite pixels, and a pixel_range that contains them, because augmentation clips to it",
        )


def _check_weights(where: str, split: Split) -> None:
    weights = split.weights
    if weights is None:
        return
    if weights.shape != (len(split),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.sum() > 0:
        raise UserError(
            f"{where} weights are {weights.dtype} {weights.shape} in {weights.min():g}..{weights.max():g}",
            "one weight per example, finite, not negative, and not all 0",
        )
