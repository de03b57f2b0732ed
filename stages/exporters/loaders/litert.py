"""Loads a LiteRT file by `ai_edge_litert`, or by the interpreter that TensorFlow still has."""

from collections.abc import Callable

import numpy as np

try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:
    import warnings

    warnings.filterwarnings("ignore", message="(?s).*tf.lite.Interpreter is deprecated")
    from tensorflow.lite import Interpreter


def load(path: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from pixels, uint8 or float32 [N, H, W, C], to probabilities, float32 [N, classes]."""
    serve = Interpreter(path).get_signature_runner("serving_default")
    return lambda images: serve(images=images.astype(np.float32))["probabilities"]
