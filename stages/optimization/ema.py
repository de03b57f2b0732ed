"""Exponential moving averages of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf


class Averages:
    """Keeps beside each of `variables` average = momentum * average + (1 - momentum) * variable, from step to step.

    float32, or float64 for float64 variables: half precision would round (1 - momentum) times a difference away. The
    average of the first step is the variable itself, as in Keras (`Optimizer(use_ema=True)`).
    Make it in the strategy's scope. Source: Polyak and Juditsky 1992 (doi:10.1137/0330046).
    """

    def __init__(self, variables: Sequence[tf.Variable], momentum: float) -> None:
        self._variables, self._momentum = variables, momentum
        strategy = tf.distribute.get_strategy()
        self.values = []
        for variable in variables:
            with strategy.extended.colocate_vars_with(variable):
                wide = variable.dtype if variable.dtype == tf.float64 else tf.float32
                first = tf.cast(tf.convert_to_tensor(variable), wide)
                self.values.append(tf.Variable(first, trainable=False, name="average"))

    def update(self, distribution: tf.distribute.Strategy, first: tf.Tensor) -> None:
        """Takes a step's weights in, in the cross-replica context; `first`, bool []: whether it is the first step."""

        def toward(average: tf.Variable, weight: tf.Tensor) -> None:
            share = tf.where(first, tf.ones([], average.dtype), tf.constant(1.0 - self._momentum, average.dtype))
            average.assign_add(share * (tf.cast(weight, average.dtype) - average))

        for average, variable in zip(self.values, self._variables, strict=True):
            distribution.extended.update(average, toward, args=(variable,), group=False)

    def begin_anew(self) -> None:
        """Makes the averages what the weights are now."""
        for average, variable in zip(self.values, self._variables, strict=True):
            average.assign(tf.cast(tf.convert_to_tensor(variable), average.dtype))

    def use(self) -> list[tf.Tensor]:
        """Makes the averages the weights, and returns what these were."""
        kept = [tf.identity(tf.convert_to_tensor(variable)) for variable in self._variables]
        for average, variable in zip(self.values, self._variables, strict=True):
            variable.assign(tf.cast(tf.convert_to_tensor(average), variable.dtype))
        return kept

    @contextmanager
    def used(self) -> Iterator[None]:
        """Makes the averages the weights for a while."""
        kept = self.use()
        try:
            yield
        finally:
            for variable, value in zip(self._variables, kept, strict=True):
                variable.assign(value)
