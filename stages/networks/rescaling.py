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
"""Name of the layer that scales pixels; of several, the beginning of their names."""

FACTS = "facts.json"
"""File of how pixels are scaled."""


class Scaled(keras.Model):
    """A network behind its inputs and the layer that scales its pixels; it has the network's own loss, if any."""

    @property
    def core(self) -> keras.Model:
        """The network, on scaled images."""
        return self.layers[-1]

    def scaled(self, inputs: Any) -> Any:
        """Return what the network gets of `inputs`, one tensor or several by name."""
        layers = {layer.name: layer for layer in self.layers[:-1]}
        if not isinstance(inputs, Mapping):
            return layers[SCALING](inputs) if SCALING in layers else inputs
        named = {name: layers.get(f"{SCALING}_{name}") for name in inputs}
        return {name: value if (layer := named[name]) is None else layer(value) for name, value in inputs.items()}

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
    scalings: Mapping[str, Normalization], inputs: Mapping[str, keras.KerasTensor], network: keras.Model, policy: str
) -> Scaled:
    """Return `network`, under the Keras policy `policy`, behind `inputs`, whose pixels layers scale for it.

    Args:
        scalings: By the names of the inputs that are images.
        inputs: The inputs by name.
        network: The network.
        policy: Its Keras policy.
    """
    # float32 whatever the policy: a mantissa of 8 bits, as in bfloat16, is too short for pixels of mixed images.
    dtype = "float64" if policy == "float64" else "float32"

    def scaled(name: str, value: keras.KerasTensor) -> Any:
        if (scaling := scalings.get(name)) is None:
            return value
        layer = keras.layers.Rescaling(
            _numbers(scaling.scale, dtype),
            _numbers(scaling.offset, dtype),
            dtype=dtype,
            name=SCALING if len(inputs) == 1 else f"{SCALING}_{name}",
        )
        return layer(value)

    values = {name: scaled(name, value) for name, value in inputs.items()}
    if len(inputs) > 1:
        return Scaled(dict(inputs), network(values), name=network.name)
    return Scaled(*inputs.values(), network(*values.values()), name=network.name)


def _numbers(values: tuple[float, ...], dtype: str) -> float | list[float]:
    kind = np.float64 if dtype == "float64" else float  # Keras converts Python's own to float32 first
    return kind(values[0]) if len(values) == 1 else [kind(value) for value in values]


def for_pixels_of(required: Normalization, images: ImageFeature) -> Normalization:
    """Return `required`, which takes RGB pixels of 0 to 255, for the pixels of `images`.

    Three numbers that are equal become one, so do three for images of other than three channels: their mean.
    """
    scale, offset = np.array(required.scale), np.array(required.offset)
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
    scalings = {
        name: {
            "scale": [float(x) for x in one.scale],
            "offset": [float(x) for x in one.offset],
            "automatic": one.automatic,
            "trained_on": distribution(name, dataset.features[name]),
        }
        for name, one in dataset.scalings.items()
    }
    (folder / FACTS).write_text(json.dumps({"scalings": scalings}))


def restore_scaling(saved: Path, dataset: Dataset) -> Dataset:
    """Return `dataset` with the scaling that `save_scaling` has written, which a trained model keeps on other data."""
    values = json.loads((saved / FACTS).read_text())
    values = values.get("facts", values)  # runs of earlier code have them next to checksums
    scalings: dict[str, Normalization] = {}
    features = dict(dataset.features)
    for name, facts_of in values.get("scalings", {IMAGES: values}).items():  # earlier code knew only one
        scalings[name] = Normalization(tuple(facts_of["scale"]), tuple(facts_of["offset"]), bool(facts_of["automatic"]))
        images = features[name]
        if isinstance(images, ImageFeature) and (known := facts_of.get("trained_on")):
            training = of_distribution(known)
            assert isinstance(training, ImageFeature)
            low, high = training.ends if images.is_measured else images.ends
            features[name] = dataclasses.replace(images, low=low, high=high, trained_on=training.trained_on)
    return dataclasses.replace(dataset, scalings=scalings, features=features, record=Record(recorded(scalings)))


def recorded(scalings: Mapping[str, Normalization]) -> dict[str, list[float]]:
    """Return scalings as parameters to record. If there are several, they have the names of their features."""
    if [*scalings] == [IMAGES]:
        return facts(scalings[IMAGES])
    return {f"{name}_{key}": values for name, one in scalings.items() for key, values in facts(one).items()}
