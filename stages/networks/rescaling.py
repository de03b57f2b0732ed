"""Scaling of pixels: composed and fitted to a data set, recorded and saved, and the first layer of a network."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from stages.features.drift import distribution, of_distribution
from stages.features.images import ImageFeature
from stages.features.kinds import IMAGES
from stages.networks.keras_internals import loss_of
from stages.results import Dataset, Normalization, Record

SCALING = "scaling"
"""Name of the layer that scales pixels."""

FACTS = "facts.json"
"""File of how pixels are scaled."""


class Scaled(keras.Model):
    """A network behind its inputs and the layer that scales its pixels; it has the network's own loss, if any."""

    @property
    def core(self) -> keras.Model:
        """The network, on scaled images."""
        return self.layers[-1]

    def scaled(self, inputs: Any) -> Any:
        """Return what the network gets of `inputs`."""
        names = {layer.name for layer in self.layers[:-1]}
        return self.get_layer(SCALING)(inputs) if SCALING in names else inputs

    @property
    def has_own_loss(self) -> bool:
        return type(self.core).compute_loss is not keras.Model.compute_loss

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        if not self.has_own_loss:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss_of(self.core, self.scaled(x), y, y_pred, sample_weight, training)


def with_scaling(
    scaling: Normalization | None, inputs: Mapping[str, keras.KerasTensor], network: keras.Model, policy: str
) -> Scaled:
    """Return `network`, under the Keras policy `policy`, behind `inputs`, whose pixels a layer scales for it."""
    given = dict(inputs) if len(inputs) > 1 else next(iter(inputs.values()))
    if scaling is None:
        return Scaled(given, network(given), name=network.name)
    # float32 whatever the policy: a mantissa of 8 bits, as in bfloat16, is too short for pixels of mixed images.
    dtype = "float64" if policy == "float64" else "float32"
    rescaling = keras.layers.Rescaling(
        _numbers(scaling.scale, dtype), _numbers(scaling.offset, dtype), dtype=dtype, name=SCALING
    )
    return Scaled(given, network(rescaling(given)), name=network.name)


def _numbers(values: tuple[float, ...], dtype: str) -> float | list[float]:
    kind = np.float64 if dtype == "float64" else float  # Keras converts Python's own to float32 first
    return kind(values[0]) if len(values) == 1 else [kind(value) for value in values]


def for_pixels_of(required: Normalization, dataset: Dataset) -> Normalization:
    """Return `required`, which takes RGB pixels of 0 to 255, for the pixels that the data set has.

    Three numbers that are equal become one, so do three for images of other than three channels: their mean.
    """
    scale, offset = np.array(required.scale), np.array(required.offset)
    images = dataset.features[IMAGES]
    assert isinstance(images, ImageFeature)
    if images.channels != 3 or (np.ptp(scale) == 0 and np.ptp(offset) == 0):
        scale, offset = scale.mean(keepdims=True), offset.mean(keepdims=True)
    low, high = images.ends
    to_bytes = Normalization((255.0 / (high - low),), (-low * 255.0 / (high - low),))
    return after(to_bytes, Normalization(tuple(scale), tuple(offset)))


def after(first: Normalization, second: Normalization) -> Normalization:
    """Return `first`, which has one number for all channels, followed by `second`, as a single scaling."""
    (scale,), (offset,) = first.scale, first.offset
    offsets = (offset * by + more for by, more in zip(second.scale, second.offset, strict=True))
    return Normalization(tuple(scale * by for by in second.scale), tuple(offsets))


def facts(scaling: Normalization) -> dict[str, list[float]]:
    """Return `scaling` as parameters to record, with six digits."""
    return {"scale": [float(f"{x:.6g}") for x in scaling.scale], "offset": [float(f"{x:.6g}") for x in scaling.offset]}


def save_scaling(dataset: Dataset, folder: Path) -> None:
    """Write how the pixels of `dataset` are scaled, every digit of it."""
    scaling = dataset.normalization
    values = {"scale": [float(x) for x in scaling.scale], "offset": [float(x) for x in scaling.offset]}
    known = distribution(IMAGES, dataset.features[IMAGES])
    (folder / FACTS).write_text(json.dumps({**values, "automatic": scaling.automatic, "trained_on": known}))


def restore_scaling(saved: Path, dataset: Dataset) -> Dataset:
    """Return `dataset` with the scaling that `save_scaling` has written, which a trained model keeps on other data."""
    values = json.loads((saved / FACTS).read_text())
    values = values.get("facts", values)  # runs of earlier code have them beside checksums
    scaling = Normalization(tuple(values["scale"]), tuple(values["offset"]), bool(values["automatic"]))
    images = dataset.images
    assert images is not None
    if known := values.get("trained_on"):
        training = of_distribution(known)
        assert isinstance(training, ImageFeature)
        low, high = training.ends if images.is_measured else images.ends
        images = dataclasses.replace(images, low=low, high=high, trained_on=training.trained_on)
    record = Record(params=facts(scaling))
    return dataclasses.replace(dataset, normalization=scaling, features={IMAGES: images}, record=record)
