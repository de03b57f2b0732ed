"""Script `python -I reload.py`: reloads exported files by their formats' runtimes, and nothing of this project.

It reads a list of orders, each the arguments of `measure`, in JSON, and ends with the first that fails.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

Predict = Callable[[Any], np.ndarray]
"""From features, one array [N, ...] or several by name, to probabilities, float32 [N, classes]."""

CALLS = 30
"""Calls of which the median time is the latency of one example."""

_ONNX_DTYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32}


def measure(loader: str, path: str, features: Mapping[str, Any], answers: str, batch: int) -> None:
    """Reload the file `path`, and write its answers for the features and the milliseconds that one takes.

    Args:
        loader: the file with the function `load` of the format.
        features: `path` of an .npz file, `names` of its arrays in their order, and `texts` by name, which it lacks.
        answers: the .npz file to write.
        batch: examples that are answered at once.
    """
    predict = runpy.run_path(loader)["load"](path)
    with np.load(features["path"], allow_pickle=False) as arrays:
        columns = dict(zip(features["names"], arrays.values(), strict=True))
    columns |= {name: np.array(texts, object) for name, texts in features["texts"].items()}
    count = len(next(iter(columns.values())))

    def given(begin: int, end: int) -> Any:
        some = {name: column[begin:end] for name, column in columns.items()}
        return some if len(some) > 1 else next(iter(some.values()))

    parts = [predict(given(begin, begin + batch)) for begin in range(0, count, batch)]
    rows = np.concatenate([np.asarray(part, np.float32) for part in parts])
    predict(given(0, 1))
    times = []
    for call in range(CALLS):
        one = given(call % count, call % count + 1)
        began = time.perf_counter()
        predict(one)
        times.append(time.perf_counter() - began)
    np.savez(answers, rows=rows, milliseconds=1000 * np.median(times))


def load(path: str) -> Predict:
    """Return the function of a file, whose suffix tells its format; of a SavedModel where it has none."""
    formats = {".keras": _keras, ".tflite": _litert, ".onnx": _onnx}
    return formats.get(Path(path).suffix, _saved_model)(path)


def import_text_operations() -> None:
    """Import the operations of TensorFlow Text, of which KerasHub's tokenizers are made, where it is installed."""
    with suppress(ImportError):
        import tensorflow_text  # noqa: F401


def load_saved_model(path: str) -> Any:
    """Load a SavedModel, also one with a tokenizer, whose operations take most of two seconds to import."""
    import tensorflow as tf

    try:
        return tf.saved_model.load(path)
    except RuntimeError:  # for an operation that is not registered
        import_text_operations()
        return tf.saved_model.load(path)


def _saved_model(path: str) -> Predict:
    import tensorflow as tf

    model = load_saved_model(path)
    names = list(model.signatures["serving_default"].structured_input_signature[1])

    def predict(features: Any) -> np.ndarray:
        columns = _named(features, names)
        are_bytes = all(column.dtype == np.uint8 for column in columns.values())
        serve = model.signatures["serve_uint8" if are_bytes and len(columns) == 1 else "serving_default"]
        dtypes = {name: spec.dtype for name, spec in serve.structured_input_signature[1].items()}
        return _answer(serve(**{name: tf.constant(column, dtypes[name]) for name, column in columns.items()}))

    return predict


def _answer(outputs: Mapping[Any, Any]) -> np.ndarray:
    """Return the predictions, [N, ...]. Outputs that follow from them, such as names of classes, have fewer axes."""
    return np.asarray(max(outputs.values(), key=np.ndim))


def _named(features: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
    return features if isinstance(features, dict) else {next(iter(names)): features}


def _keras(path: str) -> Predict:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    keras.config.set_floatx("float32")  # whatever the user's keras.json sets
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")
    model = keras.models.load_model(path)
    dtypes = {tensor.name: object if tensor.dtype == "string" else tensor.dtype for tensor in model.inputs}

    def predict(features: Any) -> np.ndarray:
        columns = {name: column.astype(dtypes[name]) for name, column in _named(features, dtypes).items()}
        given = columns if len(columns) > 1 else next(iter(columns.values()))
        return np.asarray(model.predict_on_batch(given), np.float32)

    return predict


def _litert(path: str) -> Predict:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:  # TensorFlow still has one
        import warnings

        warnings.filterwarnings("ignore", message="(?s).*tf.lite.Interpreter is deprecated")
        from tensorflow.lite import Interpreter

    serve = Interpreter(path).get_signature_runner("serving_default")
    dtypes = {name: details["dtype"] for name, details in serve.get_input_details().items()}

    def predict(features: Any) -> np.ndarray:
        columns = _named(features, dtypes)
        return _answer(serve(**{name: columns[name].astype(dtypes[name]) for name in dtypes}))

    return predict


def _onnx(path: str) -> Predict:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    dtypes = {given.name: _ONNX_DTYPES[given.type] for given in session.get_inputs()}

    def predict(features: Any) -> np.ndarray:
        columns = _named(features, dtypes)
        outputs = session.run(None, {name: columns[name].astype(dtypes[name]) for name in dtypes})
        return _answer(dict(enumerate(outputs)))

    return predict


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
