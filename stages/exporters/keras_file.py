"""A `.keras` file: the Keras model with its layers, to be looked at and trained on."""

import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import keras

from stages.data.examples import network_input
from stages.errors import UserError
from stages.exporters.exporter import LOADER, Exporter
from stages.features.encoder import network_inputs
from stages.features.images import images_of
from stages.networks.keras_internals import all_layers, one_line
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class KerasFile(Exporter):
    """A functional model in the precision of the training: scaling, network, and a softmax if it has none.

    It returns predictions only, and no masks.
    """

    suffix = ".keras"
    loader = LOADER

    def converted(self, model: Model, dataset: Dataset) -> keras.Model:
        """Return a functional model of layers of Keras or KerasHub, from unscaled pixels, or raw columns, to
        probabilities.

        Raises:
            UserError: where layers, objects or functions of layers are not of these, so that Keras does not find them.
        """
        network = model.network
        network.core.compiled = False  # a file would hold the task's loss
        answers = model.task.head.as_layers(network.outputs[0])
        classifier = keras.Model(network.input, answers, name=network.name)
        if dataset.encoder is not None:
            images = {
                name: keras.Input(one.shape, dtype=one.argument, name=name)
                for name, one in images_of(dataset.features).items()
            }
            raw = {**dataset.encoder.input, **images}
            encoded = network_input(network_inputs(dataset.encoder, raw))
            classifier = keras.Model(raw, classifier(encoded), name=f"encoded_{network.name}")
        if unknown := _unknown_to_keras(classifier):
            raise UserError(
                f"this network cannot be saved as a .keras file that Keras loads without your code ({unknown})",
                "a network that uses only layers and functions of Keras",
                "export=saved_model",
            )
        return classifier

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        """See `Exporter`."""
        self.converted(model, dataset).save(path)


def _unknown_to_keras(model: keras.Model) -> str:
    """Return the first part of `model` that is not of Keras or KerasHub; empty where all are."""
    for layer in all_layers(model):
        for name, part in vars(layer).items():
            # A frozen backbone has another `call`, which a file does not hold and prediction does not need.
            if isinstance(part, FunctionType) and name != "call" and not _is_known(part.__module__):
                return f"the function {part.__name__}"
    try:
        with warnings.catch_warnings(action="ignore"):  # of lambdas
            config = json.dumps(keras.saving.serialize_keras_object(model), default=str)
    except Exception as error:  # of an object without a configuration, and of what its own may raise
        return one_line(error, 120)
    objects = re.findall(r'"module": "([^"]+)", "class_name": "([^"]+)"', config)
    return next((name for module, name in objects if not _is_known(module)), "")


def _is_known(module: str) -> bool:
    """Return whether Keras finds what is in a module; of TensorFlow it may know a function by its name."""
    return module.partition(".")[0] in ("keras", "keras_hub", "tensorflow", "builtins")
