"""The `normalize` stage: how pixel values are scaled."""

import dataclasses

import numpy as np

from stages.results import Dataset, Normalization, Record
from stages.settings.images import NormalizeSettings
from stages.statistics import mean_and_deviation


def normalize(dataset: Dataset, settings: NormalizeSettings) -> Dataset:
    """Returns the data set with its scaling; the pixels themselves stay as they are.

    The scaling is the first layer of the model, so that whoever uses the export gives it unscaled pixels.
    Statistics are those of the training split alone.
    """
    if settings.method == "rescale":
        low, high = dataset.pixel_range
        scaling = Normalization((1.0 / (high - low),), (-low / (high - low),))
    elif settings.method == "standardize":
        mean, deviation = mean_and_deviation(dataset.train.described.moments)
        deviation = np.where(deviation < 1e-6, 1.0, deviation)  # a constant channel stays what it is
        scaling = Normalization(tuple(1.0 / deviation), tuple(-mean / deviation))
    else:
        scaling = Normalization()
    facts = {"scale": [float(f"{x:.6g}") for x in scaling.scale], "offset": [float(f"{x:.6g}") for x in scaling.offset]}
    return dataclasses.replace(dataset, normalization=scaling, record=Record(params=facts))
