"""Script `python -I reload.py`: reloads exported files by their formats' runtimes, and nothing of this project.

It reads a list of orders, each the arguments of `measure`, in JSON, and ends with the first that fails.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]
"""From pixels, uint8 or float32 [N, H, W, C], to probabilities, float32 [N, classes]."""


def measure(loader: str, path: str, images: str, answers: str, batch: int, calls: int) -> None:
    """Reload the file `path`, and write its answers for the images and the milliseconds that one takes.

    Args:
        loader: the file with the function `load` of the format.
        images: an .npy file. answers: the .npz file to write.
        batch: images that are answered at once.
        calls: calls with a single image, of which the median time counts.
    """
    predict = runpy.run_path(loader)["load"](path)
    pixels = np.load(images)
    parts = [predict(pixels[begin : begin + batch]) for begin in range(0, len(pixels), batch)]
    rows = np.concatenate([np.asarray(part, np.float32) for part in parts])
    predict(pixels[:1])
    times = []
    for call in range(calls):
        one = pixels[call % len(pixels)][None]
        began = time.perf_counter()
        predict(one)
        times.append(time.perf_counter() - began)
    np.savez(answers, rows=rows, milliseconds=1000 * np.median(times))


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


def main() -> None:
    """Carry out the orders of the input."""
    for name in ("pipeline", "stages", "keras"):
        sys.modules[name] = None  # type: ignore[assignment]  # cannot be imported, even where they are installed
    with suppress(ImportError):
        import tensorflow  # noqa: F401 - without Keras, which takes half of the time
    del sys.modules["keras"]  # a loader may import it
    for order in json.load(sys.stdin):
        measure(**order)


if __name__ == "__main__":
    main()
