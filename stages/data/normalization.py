"""Scalings of pixels: composed, fitted to a data set, and as parameters to record."""

import numpy as np

from stages.results import Dataset, Normalization


def wanted_by_network(wanted: Normalization, dataset: Dataset) -> Normalization:
    """Returns `wanted`, which takes RGB pixels of 0 to 255, for the pixels that the data set has.

    Three numbers that are equal become one, so do three for images of other than three channels: their mean.
    """
    scale, offset = np.array(wanted.scale), np.array(wanted.offset)
    if dataset.image_shape[-1] != 3 or (np.ptp(scale) == 0 and np.ptp(offset) == 0):
        scale, offset = scale.mean(keepdims=True), offset.mean(keepdims=True)
    low, high = dataset.pixel_range
    to_bytes = Normalization((255.0 / (high - low),), (-low * 255.0 / (high - low),))
    return after(to_bytes, Normalization(tuple(scale), tuple(offset)))


def after(first: Normalization, second: Normalization) -> Normalization:
    """Returns the one scaling that does what `second` does after `first`, which has one number for all channels."""
    (scale,), (offset,) = first.scale, first.offset
    offsets = (offset * by + more for by, more in zip(second.scale, second.offset, strict=True))
    return Normalization(tuple(scale * by for by in second.scale), tuple(offsets))


def facts(scaling: Normalization) -> dict[str, list[float]]:
    """Returns `scaling` as parameters to record, with six digits."""
    return {
        "scale": [float(f"{x:.6g}") for x in scaling.scale],
        "offset": [float(f"{x:.6g}") for x in scaling.offset],
    }
