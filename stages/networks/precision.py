"""Precision of a network, of its layers, and of the last one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import all_layers, wrap_backend


def last_dtype() -> str:
    """Return float32, or float64 under that policy: half precision would lose small probabilities."""
    return "float64" if keras.config.dtype_policy().name == "float64" else "float32"


DEFAULTS: Mapping[str, Any] = {
    "floatx": "float32", "epsilon": 1e-7, "image_data_format": "channels_last", "dtype_policy": "float32",
}  # fmt: skip
"""Keras' own, by their names in `keras.config`."""


@contextmanager
def keras_defaults() -> Iterator[Mapping[str, Any]]:
    """Have Keras, TensorFlow and NumPy compute by their own defaults in the block; yields those that were others.

    The user's `keras.json`, which Keras reads when it is imported, and a notebook set others for the whole process:
    they would change what an experiment computes, and no record would tell.
    """
    before = {name: getattr(keras.config, name)() for name in DEFAULTS}
    were_eager = tf.config.functions_run_eagerly()
    try:
        _configure(DEFAULTS)
        tf.config.run_functions_eagerly(False)
        with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
            shown = {**before, "dtype_policy": before["dtype_policy"].name}
            yield {name: value for name, value in shown.items() if value != DEFAULTS[name]}
    finally:
        _configure(before)
        tf.config.run_functions_eagerly(were_eager)


@contextmanager
def full_float32() -> Iterator[None]:
    """Compute float32 in full in the block, unless the stage `model` chooses TF32 there; restores what was set before.

    It is a state of the process, which TensorFlow reads whenever it starts a convolution or a matrix product.
    """
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.config.experimental.enable_tensor_float_32_execution(False)
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def _configure(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        getattr(keras.config, f"set_{name}")(value)


@contextmanager
def keras_floats(policy: str) -> Iterator[None]:
    """Have Keras make layers under `policy`, and compute losses, metrics and rates in float64 under float64 alone."""
    with keras_defaults():
        _configure({"floatx": "float64" if policy == "float64" else "float32", "dtype_policy": policy})
        yield


def cast_exactly() -> None:
    """Have `keras.ops.cast` convert Python numbers to float64 exactly, in this process, from now on.

    Otherwise they go through float32: TensorFlow makes a tensor of the number before it casts it, which leaves seven
    digits of a regularizer's factor (Keras 3.15, keras/src/backend/tensorflow/core.py).
    """

    def exact(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        @wraps(original)
        def cast(x: Any, dtype: Any) -> tf.Tensor:
            if isinstance(x, float) and keras.backend.standardize_dtype(dtype) == "float64":
                return tf.constant(x, tf.float64)
            return original(x, dtype)

        return cast

    wrap_backend("core", "cast", exact)


def set_layer_policies(network: keras.Model, patterns: Mapping[str, str]) -> None:
    """Give layers of `network` the policy of the first pattern that matches their names.

    A layer that its network gives a dtype of its own, such as a last layer in float32, keeps it unless a pattern is its
    whole name. Call it under the policy that the network was made under, before the network is part of another.

    Raises:
        UserError: for a pattern that has matched no layer.
    """
    computing = [each for each in all_layers(network) if not isinstance(each, (keras.Model, keras.layers.InputLayer))]
    used: set[str] = set()
    for layer in computing:
        pattern = next((pattern for pattern in patterns if fnmatchcase(layer.name, pattern)), None)
        if pattern is not None:
            used.add(pattern)
            if pattern == layer.name or layer.dtype_policy is keras.config.dtype_policy():  # not one of its own
                layer.dtype_policy = patterns[pattern]
    if unused := [pattern for pattern in patterns if pattern not in used]:
        problem = f"precision.layers: {unused[0]} does not match any layer, or earlier patterns match all its layers"
        names = list(dict.fromkeys(layer.name for layer in computing))
        raise UserError(problem, names, f"'precision.layers={{{names[0]}: {patterns[unused[0]]}}}'")
