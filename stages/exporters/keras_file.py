"""A `.keras` file: the Keras model with its layers, to be looked at and trained on."""

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import keras

from stages.data.examples import network_input
from stages.errors import UserError
from stages.exporters.exporter import LOADER, Exporter
from stages.networks.batch_norm import BatchNormalization
from stages.networks.keras_internals import all_layers, one_line
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class KerasFile(Exporter):
    """A functional model in the precision it was trained in: scaling, network, and a softmax where it has none."""

    suffix = ".keras"
    loader = LOADER

    def check(self, model: Model, dataset: Dataset) -> None:
        """See `Exporter`.

        Raises:
            UserError: where layers, or functions of layers, are neither of Keras nor of KerasHub.
        """
        with _of_keras_alone(model, dataset):
            pass

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        """See `Exporter`."""
        with _of_keras_alone(model, dataset) as classifier:
            classifier.save(path)


@contextmanager
def _of_keras_alone(model: Model, dataset: Dataset) -> Iterator[keras.Model]:
    """Yield a functional model of layers of Keras or KerasHub, from unscaled pixels, or raw columns, to probabilities.

    Meanwhile, layers of this project have the class of Keras that they extend: BatchNorm of the whole batch equals
    Keras' own on one device, and a file with its class could be loaded with this project alone. Nor does a file hold
    what a network was compiled with, such as the task's loss.
    """
    network = model.network
    ours = [layer for layer in all_layers(network) if type(layer) is BatchNormalization]
    synchronized = [layer.synchronized for layer in ours]
    compiled = [part for part in (network, network.core) if part.compiled]
    try:
        for part in compiled:
            part.compiled = False
        for layer in ours:
            layer.__class__ = keras.layers.BatchNormalization
            layer.synchronized = False
        answers = model.task.with_answers(network.outputs[0])
        classifier = keras.Model(network.input, answers, name=network.name)
        if dataset.encoder is not None:
            encoded = network_input(dataset.encoder(dataset.encoder.input))
            classifier = keras.Model(dataset.encoder.input, classifier(encoded), name=f"encoded_{network.name}")
        _refuse_unknown(classifier)
        yield classifier
    finally:
        for part in compiled:
            part.compiled = True
        for layer, value in zip(ours, synchronized, strict=True):
            layer.__class__ = BatchNormalization
            layer.synchronized = value


def _refuse_unknown(model: keras.Model) -> None:
    """Raise UserError where a model has layers, objects or functions that Keras does not find by itself."""
    parts = [item for layer in all_layers(model) for item in vars(layer).items()]
    # A frozen backbone has another `call`, which a file does not hold and prediction does not need.
    functions = [part for name, part in parts if isinstance(part, FunctionType) and name != "call"]
    unknown = [f"the function {part.__name__}" for part in functions if not _is_known(part.__module__)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lambdas
        try:
            config = json.dumps(keras.saving.serialize_keras_object(model), default=str)
            objects = re.findall(r'"module": "([^"]+)", "class_name": "([^"]+)"', config)
            unknown += [name for module, name in objects if not _is_known(module)]
        except Exception as error:  # of an object without a configuration, and of what its own may raise
            unknown.append(one_line(error, 120))
    if unknown:
        raise UserError(
            f"a .keras file cannot hold {unknown[0]}, which plain Keras does not know",
            "networks of Keras' own layers, with functions of Keras' own",
            "export=saved_model",
        )


def _is_known(module: str) -> bool:
    """Return whether Keras finds what is in a module; of TensorFlow it may know a function by its name."""
    return module.partition(".")[0] in ("keras", "keras_hub", "tensorflow", "builtins")
