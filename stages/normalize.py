"""The `normalize` stage: how pixel values are scaled."""

import dataclasses

import numpy as np

from stages.results import Dataset, Normalization, Record
from stages.settings.images import NormalizeSettings


def normalize(dataset: Dataset, settings: NormalizeSettings) -> Dataset:
    """Returns the data set with its scaling; the pixels themselves stay as they are.

    The scaling is the first layer of the model, so that whoever uses the export gives it unscaled pixels.
    Statistics are those of the training split alone.
    """
    if settings.method == "rescale":
        low, high = dataset.pixel_range
        scaling = Normalization((1.0 / (high - low),), (-low / (high - low),))
    elif settings.method == "standardize":
        mean, deviation = _by_channel(dataset.train.images)
        scaling = Normalization(tuple(1.0 / deviation), tuple(-mean / deviation))
    else:
        scaling = Normalization()
    facts = {"scale": [float(f"{x:.6g}") for x in scaling.scale], "offset": [float(f"{x:.6g}") for x in scaling.offset]}
    return dataclasses.replace(dataset, normalization=scaling, record=Record(params=facts))


def _by_channel(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the deviation of each channel, float64 [C]; the deviation of a constant channel is 1."""
    count = images.size // images.shape[-1]
    total, squares = np.zeros(images.shape[-1]), np.zeros(images.shape[-1])
    for start in range(0, len(images), 1024):  # bounds the memory of the float64 copy
        part = images[start : start + 1024].astype(np.float64)
        total += part.sum(axis=(0, 1, 2))
        squares += np.square(part).sum(axis=(0, 1, 2))
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))
    return mean, np.where(deviation < 1e-6, 1.0, deviation)
