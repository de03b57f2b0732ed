"""Loads a `.keras` file by Keras alone."""

import os
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import keras
import numpy as np


def load(path: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from pixels, uint8 or float32 [N, H, W, C], to probabilities, float32 [N, classes]."""
    model = keras.models.load_model(path)
    return lambda images: np.asarray(model.predict_on_batch(images.astype("float32")), np.float32)
