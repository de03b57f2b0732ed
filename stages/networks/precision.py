"""Precision of a network: of its layers, of the last one, and initial weights that do not depend on it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import reset_names, wrap_backend
from stages.settings.model import POLICIES_OF_LAYERS


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


_NO_COMPUTATION = (keras.Model, keras.layers.InputLayer)
"""Layers that compute nothing by themselves: those within them have policies of their own."""


@contextmanager
def layer_policies(patterns: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Gives layers that are made in the block the policy of the first pattern that matches their names.

    So it holds for networks of any kind: sequential, functional, subclassed, of keras.applications, with layers in
    layers. A layer that its network gives a dtype of its own, such as a last layer in float32, keeps it unless a
    pattern is its whole name. Names are counted from the beginning, so that a network built again has the same.

    Yields:
        the policy of each layer that a pattern has matched, by its name; complete at the end of the block.

    Raises:
        UserError: at the end of the block, for a pattern that has matched no layer.
    """
    matched: dict[str, str] = {}
    if not patterns:
        yield matched
        return
    names: list[str] = []
    used: set[str] = set()
    original = keras.layers.Layer.__init__

    @wraps(original)
    def init(self: keras.layers.Layer, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if isinstance(self, _NO_COMPUTATION):
            return
        has_own = options.get("dtype") is not None
        names.append(self.name)
        for pattern, policy in patterns.items():
            if fnmatchcase(self.name, pattern):
                used.add(pattern)
                if not has_own or pattern == self.name:
                    self.dtype_policy = policy
                    matched[self.name] = policy
                break

    reset_names()
    keras.layers.Layer.__init__ = init
    try:
        yield matched
    finally:
        keras.layers.Layer.__init__ = original
    for pattern in patterns:
        if pattern not in used:
            shadowed = any(fnmatchcase(name, pattern) for name in names)
            raise UserError(
                f"precision.layers: {pattern} "
                + ("comes after patterns that match its layers" if shadowed else "is the name of no layer"),
                "the special ones first" if shadowed else list(dict.fromkeys(names)),
                "'precision.layers={conv2d*: mixed_bfloat16}'",
            )


def effective_policy(policy: str, layers: Mapping[str, str]) -> str:
    """Returns the policy by which a network with these layers is trained and exported: that of the fewest digits.

    With float16 in any layer the loss is scaled; with half precision in any, exported files may differ by more.
    """
    return min((policy, *layers.values()), key=POLICIES_OF_LAYERS.index) if layers else policy
