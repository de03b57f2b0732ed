"""Scalings of pixels: composed, fitted to a data set, saved, and as parameters to record."""

import dataclasses
from pathlib import Path

import numpy as np

from stages.errors import UserError
from stages.features.kinds import IMAGES, TRAINED_ON
from stages.results import Dataset, Normalization, Record
from stages.storage.cache import DamagedError, read_arrays, write_arrays


def for_pixels_of(required: Normalization, dataset: Dataset) -> Normalization:
    """Returns `required`, which takes RGB pixels of 0 to 255, for the pixels that the data set has.

    Three numbers that are equal become one, so do three for images of other than three channels: their mean.
    """
    scale, offset = np.array(required.scale), np.array(required.offset)
    images = dataset.features[IMAGES]
    if images.shape[-1] != 3 or (np.ptp(scale) == 0 and np.ptp(offset) == 0):
        scale, offset = scale.mean(keepdims=True), offset.mean(keepdims=True)
    low, high = images.facts["range"]
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


def save_scaling(dataset: Dataset, folder: Path) -> None:
    """Writes how the pixels of `dataset` are scaled, every digit of it."""
    scaling = dataset.normalization
    values = {"scale": [float(x) for x in scaling.scale], "offset": [float(x) for x in scaling.offset]}
    known = dataset.features[IMAGES].facts.get(TRAINED_ON)
    write_arrays(folder, {**values, "automatic": scaling.automatic, TRAINED_ON: known}, {})


def restore_scaling(saved: Path, dataset: Dataset) -> Dataset:
    """Returns `dataset` with the scaling that `save_scaling` has written: a trained model keeps it on other data, too.

    Raises:
        UserError: where it is missing or not what was written.
    """
    try:
        values = read_arrays(saved).facts
    except (OSError, DamagedError) as error:
        raise UserError(f"{saved} is not what was written ({error})", "the results of a run as it left them") from error
    scaling = Normalization(tuple(values["scale"]), tuple(values["offset"]), bool(values["automatic"]))
    images, known = dataset.features[IMAGES], values.get(TRAINED_ON)
    if known is not None:
        images = dataclasses.replace(images, facts={**images.facts, TRAINED_ON: known})
    record = Record(params=facts(scaling))
    return dataclasses.replace(dataset, normalization=scaling, features={IMAGES: images}, record=record)
