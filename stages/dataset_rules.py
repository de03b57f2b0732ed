"""Rules that every data set keeps: shapes, types, labels, names as texts, and pixels inside their range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from stages.errors import UserError

if TYPE_CHECKING:
    from stages.data.split import Split
    from stages.features.kinds import Feature
    from stages.results import Dataset


def int32_labels(labels: np.ndarray) -> np.ndarray:
    """Returns labels as int32 where they are whole numbers that it holds; others as an array, for `check` to refuse."""
    array = np.atleast_1d(np.asarray(labels))
    if array.dtype.kind not in "iu" or array.dtype == np.int32:
        return array
    limits = np.iinfo(np.int32)
    fits = not array.size or (array.min() >= limits.min and array.max() <= limits.max)
    return array.astype(np.int32) if fits else array


def check(dataset: Dataset) -> None:
    """Checks that a data set can be trained on.

    Raises:
        UserError: where it cannot; see `stages.results.Dataset`.
    """
    for key, feature in dataset.features.items():
        if feature.kind == "image":
            _check_range(dataset, feature)
        for name, split in dataset.splits.items():
            _check_column(dataset, key, name, split)
    for name, split in dataset.splits.items():
        dataset.task.check(f"{dataset.name}: its {name}", split.targets)
        _check_weights(dataset, name, split)


def _check_range(dataset: Dataset, feature: Feature) -> None:
    low, high = feature.facts["range"]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _error(dataset, f"its pixel_range is ({low:g}, {high:g})", "the least pixel, then the greatest, finite")


def _check_column(dataset: Dataset, key: str, name: str, split: Split) -> None:
    """Checks the feature `key` of one split."""
    feature = dataset.features[key]
    if key not in split.features:
        raise _error(dataset, f"its {name} split has no column {key}", ", ".join(dataset.features))
    shape, dtype = split.features[key].shape, split.features[key].dtype
    is_image = feature.kind == "image"
    if (is_image and len(shape) != 4) or split.targets.shape[:1] != shape[:1] or not len(split):
        labels = f"{split.targets.dtype} {split.targets.shape} labels"
        expected = f"{key} {'[N, H, W, C]' if is_image else '[N, …]'} and labels [N], with N at least 1"
        raise _error(dataset, f"its {name} split has {key} of shape {shape} and {labels}", expected)
    if not is_image:
        return
    if shape[1:] != feature.shape or dtype not in (np.uint8, np.float32):
        expected = f"uint8 or float32, of the training split's shape {feature.shape}"
        raise _error(dataset, f"its {name} images are {dtype} {shape[1:]}", expected)
    _check_pixels(dataset, key, name, split)


def _check_weights(dataset: Dataset, name: str, split: Split) -> None:
    weights = split.weights
    if weights is None:
        return
    if weights.shape != (len(split),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.sum() > 0:
        raise _error(
            dataset,
            f"its {name} weights are {weights.dtype} {weights.shape} in {weights.min():g}..{weights.max():g}",
            "one for each example, finite, not negative, and not all 0",
        )


def _error(dataset: Dataset, problem: str, expected: str) -> UserError:
    return UserError(f"{dataset.name}: {problem}", expected)


def _check_pixels(dataset: Dataset, key: str, name: str, split: Split) -> None:
    """Checks pixels that are in memory; others would take a reading of all of them."""
    low, high = dataset.features[key].facts["range"]
    if split.features[key].dtype == np.uint8 and low <= 0 and high >= 255:
        return
    ends = split.ends.get(key)
    if ends is None:
        return
    # Of unknown examples a pixel may be a little beyond: where all are of another unit, they are so by far.
    beyond = (1e-6 if name == "train" else 1.0) * (high - low)
    if not (low - beyond <= ends[0] and ends[1] <= high + beyond):
        raise _error(
            dataset,
            f"its {name} pixels lie in {ends[0]:g}..{ends[1]:g}, and its pixel_range is ({low:g}, {high:g})",
            "finite pixels, in a pixel_range that holds those of training: augmentation clips to it",
        )
