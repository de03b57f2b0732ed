"""Loads a SavedModel by TensorFlow alone."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf


def load(path: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from pixels, uint8 or float32 [N, H, W, C], to probabilities, float32 [N, classes]."""
    model = tf.saved_model.load(path)

    def predict(images: np.ndarray) -> np.ndarray:
        name = "serve_uint8" if images.dtype == np.uint8 else "serving_default"
        return model.signatures[name](images=tf.constant(images))["probabilities"].numpy()

    return predict
