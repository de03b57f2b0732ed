"""The exponential moving average (EMA) of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf


class EMA:
    """Keeps for each of `variables` average = momentum * average + (1 - momentum) * variable, from step to step.

    float32, or float64 for float64 variables: half precision would round (1 - momentum) times a difference to 0. The
    average of the first step is the variable itself, as in Keras (`Optimizer(use_ema=True)`).
    Make it in the strategy's scope. Source: Polyak and Juditsky 1992 (doi:10.1137/0330046).
    """

    def __init__(self, variables: Sequence[tf.Variable], momentum: float) -> None:
        self._variables = variables
        self._momentum = momentum
        strategy = tf.distribute.get_strategy()
        self.values = []
        for variable in variables:
            with strategy.extended.colocate_vars_with(variable):
                dtype = variable.dtype if variable.dtype == tf.float64 else tf.float32
                initial = tf.cast(tf.convert_to_tensor(variable), dtype)
                self.values.append(tf.Variable(initial, trainable=False, name="average"))

    def update(self, distribution: tf.distribute.Strategy, is_first: tf.Tensor) -> None:
        """Updates the EMA after a step, in the cross-replica context; `is_first`: bool []."""

        def move_average(average: tf.Variable, weight: tf.Tensor) -> None:
            rate = tf.where(is_first, tf.ones([], average.dtype), tf.constant(1.0 - self._momentum, average.dtype))
            average.assign_add(rate * (tf.cast(weight, average.dtype) - average))

        for average, variable in zip(self.values, self._variables, strict=True):
            distribution.extended.update(average, move_average, args=(variable,), group=False)

    def reset(self) -> None:
        """Sets the EMA to the current weights."""
        for average, variable in zip(self.values, self._variables, strict=True):
            average.assign(tf.cast(tf.convert_to_tensor(variable), average.dtype))

    def assign_to_weights(self) -> list[tf.Tensor]:
        """Sets the weights to the EMA, and returns their former values."""
        weights = [tf.identity(tf.convert_to_tensor(variable)) for variable in self._variables]
        for average, variable in zip(self.values, self._variables, strict=True):
            variable.assign(tf.cast(tf.convert_to_tensor(average), variable.dtype))
        return weights

    @contextmanager
    def as_weights(self) -> Iterator[None]:
        """Sets the weights to the EMA for the block, and restores them at its end."""
        weights = self.assign_to_weights()
        try:
            yield
        finally:
            for variable, value in zip(self._variables, weights, strict=True):
                variable.assign(value)
