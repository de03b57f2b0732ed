"""Rules that every data set keeps: shapes, types, labels, names as texts, and pixels inside their range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from stages.errors import UserError
from stages.images import chunk_of

if TYPE_CHECKING:
    from stages.images import Images
    from stages.results import Dataset, Split


def int32_labels(labels: np.ndarray) -> np.ndarray:
    """Returns labels as int32 where they are whole numbers that it holds; others as an array, for `check` to refuse."""
    try:
        array = np.atleast_1d(np.asarray(labels))
    except ValueError as error:  # lists of unequal lengths
        raise UserError("the labels are lists of unequal lengths", "whole numbers from 0, one an image") from error
    if array.dtype.kind not in "iu" or array.dtype == np.int32:
        return array
    limits = np.iinfo(np.int32)
    fits = not array.size or (array.min() >= limits.min and array.max() <= limits.max)
    return array.astype(np.int32) if fits else array


def refuse_other_labels(whose: str, labels: np.ndarray, numbers: str = "0, 1, …") -> None:
    """Raises UserError for labels that are no class numbers: fractions, texts, rows of a one-hot matrix, negatives.

    Args:
        whose: the beginning of the message; numbers: those that are allowed.
    """
    is_whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    if not is_whole or (labels.size and labels.min() < 0):
        kind = f"lie in {labels.min()}..{labels.max()}" if is_whole else f"are {labels.dtype.name} {labels.shape}"
        raise UserError(
            f"{whose} labels {kind}",
            f"whole numbers, {numbers}, one an image: np.unique(labels, return_inverse=True)[1] numbers classes, "
            "labels.argmax(axis=1) rows of a one-hot matrix",
        )


def ends_of(images: Images) -> tuple[float, float] | None:
    """Returns the least and the greatest pixel, nan where one is; None where images are read at each use."""
    if not isinstance(images, np.ndarray):
        return None
    chunk = chunk_of(images.shape[1:])
    parts = [images[start : start + chunk] for start in range(0, len(images), chunk)]
    return float(np.min([part.min() for part in parts])), float(np.max([part.max() for part in parts]))


def check(dataset: Dataset) -> None:
    """Checks that a data set can be trained on.

    Raises:
        UserError: where it cannot; see `stages.results.Dataset`.
    """
    _check_names(dataset)
    low, high = dataset.pixel_range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(
            f"{dataset.name}: its pixel_range is ({low:g}, {high:g})",
            "the least value that a pixel can have, then the greatest, both finite",
        )
    for name, split in dataset.splits.items():
        _check_shape(dataset, name, split)
        _check_labels(dataset, name, split.labels)
        _check_pixels(dataset, name, split)


def _check_names(dataset: Dataset) -> None:
    names = dataset.class_names
    strange = next((name for name in names if not isinstance(name, str)), None)
    if strange is not None:
        raise UserError(
            f"{dataset.name}: its class name {strange!r} is of type {type(strange).__name__}", "texts, one a class"
        )
    for index, name in enumerate(names):
        if not is_utf8(name):
            raise UserError(f"{dataset.name}: its class name {printable(name)} is not UTF-8", "names that are")
        if name in names[:index]:
            raise UserError(f"{dataset.name}: two of its classes are called {name!r}", "a name of its own for each")
    if len(names) < 2:
        raise UserError(f"{dataset.name}: it has {len(names)} class name(s)", "two classes or more")


def _check_shape(dataset: Dataset, name: str, split: Split) -> None:
    shape = split.images.shape
    if split.images.ndim != 4 or split.labels.shape != shape[:1] or not len(split):
        count = len(split) if split.labels.ndim == 1 else f"{split.labels.dtype} {split.labels.shape}"
        raise UserError(
            f"{dataset.name}: its {name} split has images of shape {shape} and {count} labels",
            "images [N, H, W, C] and labels [N], with N at least 1",
        )
    if shape[1:] != dataset.image_shape or split.images.dtype not in (np.uint8, np.float32):
        raise UserError(
            f"{dataset.name}: its {name} images are {split.images.dtype} {shape[1:]}",
            f"uint8 or float32, of the training split's shape {dataset.image_shape}",
        )


def _check_labels(dataset: Dataset, name: str, labels: np.ndarray) -> None:
    refuse_other_labels(f"{dataset.name}: its {name}", labels, f"0..{dataset.num_classes - 1}")
    if labels.min() < 0 or labels.max() >= dataset.num_classes:
        raise UserError(
            f"{dataset.name}: its {name} labels lie in {labels.min()}..{labels.max()}",
            f"0..{dataset.num_classes - 1}, as it has {dataset.num_classes} class names",
        )


def _check_pixels(dataset: Dataset, name: str, split: Split) -> None:
    """Checks pixels that are in memory, or whose moments are known; others would take a reading of all of them."""
    low, high = dataset.pixel_range
    if split.images.dtype == np.uint8 and low <= 0 and high >= 255:
        return
    ends = split.ends
    if ends is None and split.is_described:  # a mean tells of every pixel that is not finite
        means = split.described.moments[:, 0]
        ends = float(means.min()), float(means.max())
    if ends is None:
        return
    if not all(map(math.isfinite, ends)):
        raise UserError(
            f"{dataset.name}: its {name} images have pixels that are no finite numbers (nan or inf)",
            "finite pixels: leave these images out, or replace the values",
        )
    rounding = 1e-6 * (high - low)
    if ends[0] < low - rounding or ends[1] > high + rounding:
        raise UserError(
            f"{dataset.name}: its {name} pixels lie in {ends[0]:g}..{ends[1]:g}, and its pixel_range is "
            f"({low:g}, {high:g}), to which augmentation would clip training images alone",
            "a pixel_range that holds all pixels of all splits",
        )


def is_utf8(text: str) -> bool:
    """Returns whether a text, such as the name of a file, can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name of other bytes
        return False
    return True


def printable(text: str) -> str:
    """Returns a text with the bytes of a file name that are not UTF-8 as escapes, such as `caf\\xe9.png`."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
