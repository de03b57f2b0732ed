"""The function of a model that converters take."""

from typing import Any

import tensorflow as tf

from stages.optimization.losses import probabilities
from stages.results import Model


def probabilities_of(model: Model, image_shape: tuple[int, int, int]) -> tuple[Any, tf.Module]:
    """Returns a traced function from `images`, unscaled pixels float32 [N, H, W, C], to `probabilities`, float32
    [N, classes], and the module that holds its weights."""
    spec = tf.TensorSpec((None, *image_shape), tf.float32, name="images")

    def serving_default(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": probabilities(model.network(images, training=False), model.outputs)}

    owner = tf.Module(name="exported")
    owner.weights = [weight.value for weight in model.network.weights]
    owner.serving_default = tf.function(serving_default, input_signature=[spec], autograph=False)
    return owner.serving_default, owner
