"""A SavedModel: TensorFlow's own format, for TensorFlow Serving, MLflow and every language with TensorFlow."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from stages.data.decode import decode
from stages.exporters.exporter import LOADER, Exporter
from stages.optimization.losses import probabilities
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

    Called with unscaled pixels, float32 or uint8 [N, H, W, C], N at least 1, it returns probabilities, float32 [N,
    classes]. Its signatures return a dictionary: `probabilities`; `class_name`, string [N], of the likeliest class; and
    `score`, float32 [N], its probability.

        serving_default(images): float32 [N, H, W, C].
        serve_uint8(images): uint8 [N, H, W, C].
        serve_bytes(encoded): string [N], each a JPEG or PNG of any size; it becomes pixels by the function of the
            training. Only for images of 1 or 3 channels.

    `class_names` are UTF-8, string [classes], in the order of the probabilities. A tf.Module, because a Keras 3 model
    is not one, and only a callable module reloads as a function. It holds the weights alone: the model itself would
    bring the optimizer's variables along.
    """

    def __init__(self, model: Model, dataset: Dataset) -> None:
        super().__init__(name="serving")
        self.weights = [weight.value for weight in model.network.weights]
        with tf.device("/cpu:0"):  # strings live on the CPU alone; a plain constant would not be saved
            self.class_names = tf.Variable(dataset.class_names, trainable=False, name="class_names")
        # Past __setattr__, which would track them: the traced functions alone are saved, the network once.
        self.__dict__["dataset"] = dataset
        self.__dict__["predict"] = tf.function(
            lambda images: probabilities(model.network(images, training=False), model.outputs),
            input_signature=[tf.TensorSpec((None, *dataset.image_shape), tf.float32, name="images")],
            autograph=False,
        ).get_concrete_function()  # saving would trace the network a second time, and save both

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Traces the functions, and returns the signatures by their names."""
        shape = (None, *self.dataset.image_shape)
        float32, uint8 = (tf.TensorSpec(shape, dtype, name="images") for dtype in (tf.float32, tf.uint8))
        for spec in (float32, uint8):
            self.__call__.get_concrete_function(spec)
        functions: dict[str, Any] = {"serving_default": (self._serve, float32), "serve_uint8": (self._serve, uint8)}
        if self.dataset.image_shape[-1] in (1, 3):
            functions["serve_bytes"] = self._serve_bytes, tf.TensorSpec((None,), tf.string, name="encoded")
        return {
            name: tf.function(function, autograph=False).get_concrete_function(spec)
            for name, (function, spec) in functions.items()
        }

    @tf.function(autograph=False)
    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        return self.predict(tf.cast(images, tf.float32))

    def _serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = self.predict(tf.cast(images, tf.float32))
        with tf.device("/cpu:0"):
            names = tf.gather(self.class_names, tf.argmax(rows, axis=-1))
        return {"probabilities": rows, "class_name": names, "score": tf.reduce_max(rows, axis=-1)}

    def _serve_bytes(self, encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        shape, (low, high) = self.dataset.image_shape, self.dataset.pixel_range
        pixels, _ = decode(encoded, shape, self.dataset.resize)
        if (low, high) == (0.0, 255.0):
            return self._serve(pixels)
        return self._serve(tf.cast(pixels, tf.float32) * ((high - low) / 255) + low)
