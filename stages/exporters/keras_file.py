"""A `.keras` file: the Keras model with its layers, to be looked at and trained on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import keras

from stages.errors import UserError
from stages.exporters.exporter import LOADERS, Exporter
from stages.networks.batch_norm import BatchNormalization
from stages.networks.keras_internals import all_layers
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class KerasFile(Exporter):
    """A functional model in the precision it was trained in: scaling, network, and a softmax where it has none."""

    suffix = ".keras"
    runtime = "keras"
    loader = LOADERS / "keras_file.py"

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        """See `Exporter`.

        Raises:
            UserError: where the network has layers that are not Keras' own.
        """
        with _of_keras_alone(model.network):
            classifier(model).save(path)


def classifier(model: Model) -> keras.Model:
    """Returns a functional model of the network's own layers, from unscaled pixels to probabilities."""
    network = model.network
    outputs = network.outputs[0]
    if model.outputs == "logits":
        outputs = keras.layers.Softmax(dtype=outputs.dtype, name="probabilities")(outputs)
    [images] = network.inputs
    return keras.Model(images, outputs, name=network.name)


def lasting_classifier(model: Model) -> keras.Model:
    """Returns `classifier(model)`, whose layers stay Keras' own: plain Keras loads what it saves. `model` is used up.

    Layers that are neither Keras' nor this project's keep their class.
    """
    for layer in _ours(all_layers(model.network, include_self=False)):
        layer.__class__ = keras.layers.BatchNormalization
        layer.synchronized = False
    return classifier(model)


def _ours(layers: list[keras.Layer]) -> list[BatchNormalization]:
    return [layer for layer in layers if type(layer) is BatchNormalization]


@contextmanager
def _of_keras_alone(network: keras.Model) -> Iterator[None]:
    """Gives layers of this project the class of Keras that they extend, while the block saves them.

    BatchNorm of the whole batch equals Keras' own on one device. A file with its class could be loaded with this
    project alone.
    """
    layers = all_layers(network, include_self=False)
    ours = _ours(layers)
    for layer in layers:
        kind = type(layer)
        if layer not in ours and kind.__module__.partition(".")[0] != "keras":
            raise UserError(
                f"a .keras file cannot hold the layer {layer.name}: plain Keras does not know {kind.__name__}",
                "networks of Keras' own layers",
                "export=saved_model",
            )
    synchronized = [layer.synchronized for layer in ours]
    try:
        for layer in ours:
            layer.__class__ = keras.layers.BatchNormalization
            layer.synchronized = False
        yield
    finally:
        for layer, value in zip(ours, synchronized, strict=True):
            layer.__class__ = BatchNormalization
            layer.synchronized = value
