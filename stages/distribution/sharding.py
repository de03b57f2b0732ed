"""Keras variables as TensorFlow variables, including those that a strategy has partitioned into shards."""

from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf


def shards(variable: keras.Variable) -> list[tf.Variable]:
    """Returns the TensorFlow variables that hold `variable`: itself, or its shards along the first axis.

    ParameterServerStrategy's partitioners make a ShardedVariable, which cannot be read or updated as one variable in a
    function ("'ShardedVariable' object has no attribute 'handle'").
    """
    value = variable.value
    return list(value.variables) if hasattr(value, "variables") else [value]


def whole(variables: Sequence[keras.Variable], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns one value for each of `variables`, from one for each of their shards."""
    remaining: Iterator[tf.Tensor] = iter(values)
    joined = []
    for variable in variables:
        parts = [next(remaining) for _ in shards(variable)]
        joined.append(parts[0] if len(parts) == 1 else tf.concat(parts, axis=0))
    return joined
