"""A SavedModel: TensorFlow's own format, for TensorFlow Serving, MLflow and every language with TensorFlow."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from stages.data.decode import decode
from stages.data.examples import network_dtype, network_input, spec_of
from stages.exporters.exporter import LOADER, Exporter
from stages.features.drift import trained_on
from stages.features.kinds import IMAGES
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class SavedModel(Exporter):
    """A folder whose signatures are those of `Serving`."""

    loader = LOADER

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        """See `Exporter`."""
        serving = Serving(model, dataset)
        tf.saved_model.save(serving, str(path), serving.signatures())


class Serving(tf.Module):
    """The exported functions of a model. It scales pixels itself and returns float32 whatever its precision.

    Called with the features of N examples, at least 1, one tensor or several by name, it returns probabilities,
    float32 [N, classes]. Its signatures return a dictionary: `probabilities`; `class_name`, string [N], of the
    likeliest class; and `score`, float32 [N], its probability. For segmentation, probabilities are
    [N, H, W, classes], and there is a `mask` instead, uint8 [N, H, W], the likeliest class of each pixel.

        serving_default: an argument for each feature, by its name; `images`, unscaled pixels, are float32 [N, H, W, C].
        serve_uint8(images): uint8 [N, H, W, C]. Only where the data's images are uint8, or their pixels 0 to 255.
        serve_bytes(encoded): string [N], each a JPEG or PNG of any size; it becomes pixels by the function of the
            training. Only for images of 1 or 3 channels.

    `class_names` are UTF-8, string [classes], in the order of the probabilities; `trained_on` is JSON, string [], of
    what the columns were like in training, and `reading` of how their table was read.

    A tf.Module, because a Keras 3 model is not one, and only a callable module reloads as a function. It holds the
    weights alone: the model itself would bring the optimizer's variables along.
    """

    def __init__(self, model: Model, dataset: Dataset) -> None:
        super().__init__(name="serving")
        self.weights = [weight.value for weight in model.network.weights]
        with tf.device("/cpu:0"):  # strings live on the CPU alone; a plain constant would not be saved
            self.class_names = tf.Variable(dataset.task.names, trainable=False, name="class_names")
            self.trained_on = tf.Variable(trained_on(dataset.features), trainable=False, name="trained_on")
            self.reading = tf.Variable(json.dumps(dataset.reading), trainable=False, name="reading")
        self.__dict__["specs"] = specs = {
            name: tf.TensorSpec((None, *one.shape), tf.as_dtype(one.argument), name)
            for name, one in dataset.features.items()
        }
        self.encoder = dataset.encoder
        if dataset.encoder is not None:
            encode = tf.function(lambda columns: dataset.encoder(columns), autograph=False)
            self.__dict__["encode"] = encode.get_concrete_function(specs)
        # Past __setattr__, which would track them: the traced functions alone are saved, the network once.
        self.__dict__["dataset"], self.__dict__["task"] = dataset, model.task
        inputs = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in spec_of(dataset).inputs.items()}
        self.__dict__["predict"] = tf.function(
            lambda inputs: model.task.head.predictions(model.network(network_input(inputs), training=False)),
            autograph=False,
        ).get_concrete_function(inputs)  # saving would trace it a second time, and save both

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Trace the functions, and return the signatures by their names."""
        images = self.dataset.images
        functions: dict[str, Any] = {"serving_default": (self._serve, self.specs)}
        if images is not None:
            if images.dtype == "uint8" or images.ends == (0.0, 255.0):
                specs = {IMAGES: tf.TensorSpec((None, *images.shape), tf.uint8, IMAGES)}
                functions["serve_uint8"] = self._serve, specs
            if images.shape[-1] in (1, 3):
                functions["serve_bytes"] = self._serve_bytes, tf.TensorSpec((None,), tf.string, name="encoded")
        for function, spec in functions.values():
            if function == self._serve:
                self.__call__.get_concrete_function(network_input(spec))
        return {
            name: tf.function(function, autograph=False).get_concrete_function(spec)
            for name, (function, spec) in functions.items()
        }

    @tf.function(autograph=False)
    def __call__(self, features: Any) -> tf.Tensor:
        return self._answers(features if isinstance(features, dict) else dict.fromkeys(self.dataset.features, features))

    def _answers(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        inputs: Any = features if self.encoder is None else self.encode(features)
        if not isinstance(inputs, dict):
            inputs = dict.fromkeys(spec_of(self.dataset).inputs, inputs)
        return self.predict({name: tf.cast(value, network_dtype(value.dtype)) for name, value in inputs.items()})

    def _serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        answers, head = self._answers(features), self.task.head
        return {head.answer: answers, **head.explained(answers, self.class_names)}

    def _serve_bytes(self, encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        images = self.dataset.images
        assert images is not None
        low, high = images.ends
        pixels = decode(encoded, images.shape, images.resize)
        if (low, high) != (0.0, 255.0):
            pixels = tf.cast(pixels, tf.float32) * ((high - low) / 255) + low
        return self._serve({IMAGES: pixels})
