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
from stages.features.encoder import network_inputs
from stages.features.images import ImageFeature, images_of
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
            training. Only for images of 1 or 3 channels. If there are other features, it has the arguments of
            `serving_default` instead, with encoded images, string [N], in place of pixels.

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
            self.reading = tf.Variable(
                json.dumps({**dataset.reading, **model.task.head.saved}), trainable=False, name="reading"
            )
        self.__dict__["specs"] = specs = {
            name: tf.TensorSpec((None, *one.shape), tf.as_dtype(one.argument), name)
            for name, one in dataset.features.items()
        }
        self.encoder = dataset.encoder
        if dataset.encoder is not None:
            encode = tf.function(lambda columns: network_inputs(dataset.encoder, columns), autograph=False)
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
        alone, images = self.dataset.images, images_of(self.dataset.features)
        functions: dict[str, Any] = {"serving_default": (self._serve, self.specs)}
        if alone is not None and (alone.dtype == "uint8" or alone.ends == (0.0, 255.0)):
            specs = {IMAGES: tf.TensorSpec((None, *alone.shape), tf.uint8, IMAGES)}
            functions["serve_uint8"] = self._serve, specs
        if images and all(image.channels in (1, 3) for image in images.values()):
            encoded = {name: tf.TensorSpec((None,), tf.string, name=name) for name in images}
            spec = tf.TensorSpec((None,), tf.string, name="encoded") if alone else {**self.specs, **encoded}
            functions["serve_bytes"] = self._serve_bytes, spec
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
        inputs = features if self.encoder is None else self.encode(features)
        return self.predict({name: tf.cast(value, network_dtype(value.dtype)) for name, value in inputs.items()})

    def _serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        answers, head = self._answers(features), self.task.head
        return {head.answer: answers, **head.explained(answers, self.class_names)}

    def _serve_bytes(self, features: Any) -> dict[str, tf.Tensor]:
        images = images_of(self.dataset.features)
        given = features if isinstance(features, dict) else dict.fromkeys(images, features)
        return self._serve({name: _pixels(one, images[name]) if name in images else one for name, one in given.items()})


def _pixels(encoded: tf.Tensor, images: ImageFeature) -> tf.Tensor:
    """Return the pixels of encoded images, string [n], in the range that they have in training."""
    low, high = images.ends
    pixels = decode(encoded, images.shape, images.resize)
    if (low, high) != (0.0, 255.0):
        pixels = tf.cast(pixels, tf.float32) * ((high - low) / 255) + low
    return tf.cast(pixels, tf.float32)
