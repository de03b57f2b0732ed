"""A `.keras` file: the Keras model with its layers, to be looked at and trained on."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import keras

from stages.errors import UserError
from stages.exporters.exporter import LOADER, Exporter
from stages.networks.batch_norm import BatchNormalization
from stages.networks.keras_internals import all_layers, one_line, without_registered_objects
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class KerasFile(Exporter):
    """A functional model in the precision it was trained in: scaling, network, and a softmax where it has none."""

    suffix = ".keras"
    loader = LOADER

    def check(self, model: Model, dataset: Dataset) -> None:
        """See `Exporter`.

        Raises:
            UserError: where the network has layers, or layers have functions, that are not Keras' own.
        """
        with _of_keras_alone(model.network):
            for layer in all_layers(model.network, include_self=False):
                if not isinstance(layer, keras.Model):  # its layers come by themselves
                    _refuse_what_is_lost(layer)

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        """See `Exporter`."""
        self.check(model, dataset)
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


def _refuse_what_is_lost(layer: keras.Layer) -> None:
    """Raises UserError where plain Keras cannot make `layer` again: it has a function or an object of someone's own."""
    own = [value for value in vars(layer).values() if isinstance(value, FunctionType) and not _is_known(value)]
    reason = f"its function {own[0].__name__} is not Keras'" if own else _lost_in(layer)
    if reason:
        raise UserError(
            f"a .keras file cannot hold the layer {layer.name} ({type(layer).__name__}) for plain Keras: {reason}",
            "networks of Keras' own layers, with functions of Keras' own",
            "export=saved_model",
        )


def _is_known(function: FunctionType) -> bool:
    """Returns whether a function is Keras' own, or one of TensorFlow that Keras may know by its name."""
    return function.__module__.partition(".")[0] in ("keras", "tensorflow")


def _lost_in(layer: keras.Layer) -> str:
    """Returns what Keras lacks to make `layer` again from its configuration; empty where that succeeds."""
    with warnings.catch_warnings(), without_registered_objects():
        warnings.simplefilter("ignore")  # of lambdas
        try:
            config = keras.saving.serialize_keras_object(layer)
            config.pop("build_config", None)  # the layer is made, its weights are not
            keras.saving.deserialize_keras_object(config)
        except Exception as error:  # a configuration may hold anything
            reason: BaseException = error
            while cause := reason.__cause__ or reason.__context__:
                reason = cause
            return one_line(reason, 120)
    return ""


@contextmanager
def _of_keras_alone(network: keras.Model) -> Iterator[None]:
    """Gives layers of this project the class of Keras that they extend, while the block saves them.

    BatchNorm of the whole batch equals Keras' own on one device. A file with its class could be loaded with this
    project alone.
    """
    layers = all_layers(network, include_self=False)
    ours = [layer for layer in layers if type(layer) is BatchNormalization]
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
