"""Loads an exported file by its format's runtime and nothing of this project."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]
"""From pixels, uint8 or float32 [N, H, W, C], to probabilities, float32 [N, classes]."""


def load(path: str) -> Predict:
    """Returns the function of a file, whose suffix tells its format; of a SavedModel where it has none."""
    formats = {".keras": _keras, ".tflite": _litert, ".onnx": _onnx}
    return formats.get(Path(path).suffix, _saved_model)(path)


def _saved_model(path: str) -> Predict:
    import tensorflow as tf

    model = tf.saved_model.load(path)

    def predict(images: np.ndarray) -> np.ndarray:
        name = "serve_uint8" if images.dtype == np.uint8 else "serving_default"
        return np.asarray(model.signatures[name](images=tf.constant(images))["probabilities"])

    return predict


def _keras(path: str) -> Predict:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    model = keras.models.load_model(path)
    return lambda images: np.asarray(model.predict_on_batch(images.astype("float32")), np.float32)


def _litert(path: str) -> Predict:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:  # TensorFlow still has one
        import warnings

        warnings.filterwarnings("ignore", message="(?s).*tf.lite.Interpreter is deprecated")
        from tensorflow.lite import Interpreter

    serve = Interpreter(path).get_signature_runner("serving_default")
    return lambda images: np.asarray(serve(images=images.astype(np.float32))["probabilities"])


def _onnx(path: str) -> Predict:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(["probabilities"], {"images": images.astype(np.float32)})[0])
