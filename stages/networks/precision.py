"""Precision of a network: its last layer's dtype, and initial weights that do not depend on it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from stages.networks.keras_internals import wrap_backend


def last_dtype() -> str:
    """Returns float32, or float64 under that policy: half precision would lose small probabilities."""
    return "float64" if keras.config.dtype_policy().name == "float64" else "float32"


@contextmanager
def keras_floats(policy: str) -> Iterator[None]:
    """Has Keras compute its losses, metrics and rates in float64 under the policy float64; its default is float32."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64" if policy == "float64" else before)
    try:
        yield
    finally:
        keras.config.set_floatx(before)


@contextmanager
def float32_initial_values() -> Iterator[None]:
    """Gives every Keras variable made in the block the initial value that it has in float32, rounded to its dtype.

    TensorFlow draws other random numbers for each dtype, so that precisions could not be compared at the same seed.
    All initializers are called for float32, custom ones too; integer and boolean variables are left alone.
    """
    original = keras.Variable.__init__

    @wraps(original)
    def init(self: keras.Variable, initializer: Any, shape: Any = None, dtype: Any = None, **options: Any) -> None:
        original(self, _rounded(initializer, dtype), shape, dtype, **options)

    keras.Variable.__init__ = init
    try:
        yield
    finally:
        keras.Variable.__init__ = original


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


def _rounded(initializer: Any, dtype: Any) -> Any:
    """Returns an initializer, or a value, equal to `initializer` in float32 rounded to the dtype."""
    if isinstance(initializer, str):
        initializer = keras.initializers.get(initializer)
    if callable(initializer):
        return lambda shape, dtype=None: through_float32(lambda dtype: initializer(shape, dtype=dtype), dtype)
    if dtype is None or isinstance(initializer, (tf.Variable, keras.Variable)):
        return initializer
    return through_float32(lambda _: initializer, dtype)


def through_float32(values: Callable[[Any], Any], dtype: Any) -> Any:
    """Returns `values(dtype)`, or, for a float that is not float32, `values("float32")` rounded to it."""
    if not _is_other_float(dtype):
        return values(dtype)
    return tf.cast(tf.cast(values("float32"), tf.float32), keras.backend.standardize_dtype(dtype))


def _is_other_float(dtype: Any) -> bool:
    if dtype is None:
        return False
    name = keras.backend.standardize_dtype(dtype)
    return keras.backend.is_float_dtype(name) and name != "float32"
