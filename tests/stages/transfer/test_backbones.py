"""Backbones of every kind are frozen and fine-tuned, whatever they are made of."""

from typing import Any

import keras
import numpy as np
import pytest

from stages.errors import UserError
from stages.networks.precision import last_dtype
from stages.train import train
from tests.stages.experiments import built_of, one_device
from tests.stages.transfer.small import DATASET, given, weights_inside

pytestmark = pytest.mark.slow


def _backbone(kind: str, shape: tuple[int, int, int]) -> keras.Model:
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.Lambda(abs)]
    layers.append(keras.layers.Conv2D(4, 3, activation="relu"))
    if kind == "nested":
        inner = keras.Sequential([keras.Input(shape), *layers], name="inner")
        return keras.Sequential([keras.Input(shape), inner], name="backbone")
    if kind == "subclassed":
        return Subclassed(layers)
    return keras.Sequential([keras.Input(shape), *layers], name="backbone")


class Subclassed(keras.Model):
    """A backbone that is no graph of layers."""

    def __init__(self, inside: list[keras.layers.Layer]) -> None:
        super().__init__(name="backbone")
        self.inside = inside

    def call(self, images: Any) -> Any:
        for layer in self.inside:
            images = layer(images)
        return images


def any_kind(input_shape: tuple[int, int, int], num_classes: int, kind: str, core: str = "graph") -> keras.Model:
    backbone, inputs = _backbone(kind, input_shape), keras.Input(input_shape)
    behind = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(num_classes, dtype=last_dtype())]
    if core == "sequential":
        return keras.Sequential([inputs, backbone, *behind], name="small")
    features = backbone(inputs)
    if core == "shared":
        features = keras.layers.add([features, backbone(inputs[:, ::-1])])
    return keras.Model(inputs, behind[1](behind[0](features)), name="small")


@pytest.mark.parametrize(
    ("kind", "core"),
    [("sequential", "sequential"), ("sequential", "shared"), ("nested", "graph"), ("subclassed", "graph")],
)
def test_any_kind_of_backbone_is_frozen_and_its_top_trained(kind: str, core: str) -> None:
    """Through its features where it can be cut off, else with the images."""
    where, network = one_device(), {"_target_": f"{__name__}.any_kind", "kind": kind, "core": core}
    made = built_of(network, DATASET, where, frozen=True)
    before, inside = weights_inside(made.network), Inside()
    told_to = given(epochs=1, fine_tune_epochs=1, fine_tune_layers=1, restore_best=False, callbacks=[inside])
    trained = train(made, DATASET, where, told_to)
    while_frozen, fine_tuned = inside.weights
    np.testing.assert_array_equal(while_frozen, before)
    assert str(trained.record.params["features"])[:3] == ("off" if "shared" in core else "on:")
    assert np.any(fine_tuned != before)


class Inside(keras.callbacks.Callback):
    """Notes the weights of the backbone after every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weights.append(weights_inside(self.model))


def test_a_backbone_without_a_head_is_refused() -> None:
    with pytest.raises(UserError, match="has no trainable weights"):
        built_of({"_target_": f"{__name__}._headless"}, DATASET, one_device(), frozen=True)


def _headless(input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs)), name="backbone")
