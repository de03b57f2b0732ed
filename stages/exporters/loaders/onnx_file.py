"""Loads an ONNX file by ONNX Runtime."""

from collections.abc import Callable

import numpy as np
import onnxruntime


def load(path: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from pixels, uint8 or float32 [N, H, W, C], to probabilities, float32 [N, classes]."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["probabilities"], {"images": images.astype(np.float32)})[0]
