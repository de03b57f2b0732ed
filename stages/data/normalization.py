"""Scalings of pixels: composed, fitted to a data set, and as parameters to record."""

import numpy as np

from stages.results import Dataset, Normalization


def for_pixels_of(required: Normalization, dataset: Dataset) -> Normalization:
    """Returns `required`, which takes RGB pixels of 0 to 255, for the pixels that the data set has.

    Three numbers that are equal become one, so do three for images of other than three channels: their mean.
    """
    scale, offset = np.array(required.scale), np.array(required.offset)
    if dataset.image_shape[-1] != 3 or (np.ptp(scale) == 0 and np.ptp(offset) == 0):
        scale, offset = scale.mean(keepdims=True), offset.mean(keepdims=True)
    low, high = dataset.pixel_range
    to_bytes = Normalization((255.0 / (high - low),), (-low * 255.0 / (high - low),))
    return after(to_bytes, Normalization(tuple(scale), tuple(offset)))


def after(first: Normalization, second: Normalization) -> Normalization:
    """Returns `first`, which has one number for all channels, followed by `second`, as a single scaling."""
    (scale,), (offset,) = first.scale, first.offset
    offsets = (offset * by + more for by, more in zip(second.scale, second.offset, strict=True))
    return Normalization(tuple(scale * by for by in second.scale), tuple(offsets))


def facts(scaling: Normalization) -> dict[str, list[float]]:
    """Returns `scaling` as parameters to record, with six digits."""
    return {
        "scale": [float(f"{x:.6g}") for x in scaling.scale],
        "offset": [float(f"{x:.6g}") for x in scaling.offset],
    }
