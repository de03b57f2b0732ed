"""Precision of a network, of its layers, and of the last one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import all_layers, wrap_backend


def last_dtype() -> str:
    """Returns float32, or float64 under that policy: half precision would lose small probabilities."""
    return "float64" if keras.config.dtype_policy().name == "float64" else "float32"


@contextmanager
def keras_floats(policy: str) -> Iterator[None]:
    """Has Keras make layers under `policy`, and compute losses, metrics and rates in float64 under float64 alone."""
    floats, before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64" if policy == "float64" else floats)
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_floatx(floats)
        keras.config.set_dtype_policy(before)


def cast_exactly() -> None:
    """Has `keras.ops.cast` convert Python numbers to float64 exactly, in this process, from now on.

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
        problem = f"precision.layers: {unused[0]} matches no layer, or comes after patterns that match its layers"
        names = list(dict.fromkeys(layer.name for layer in computing))
        raise UserError(problem, names, "'precision.layers={conv2d*: mixed_bfloat16}'")
