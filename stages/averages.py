"""Exponential moving averages of the weights."""

from collections.abc import Sequence

import tensorflow as tf


class Averages:
    """Keeps beside each of `variables` average = momentum * average + (1 - momentum) * variable, from step to step.

    The average of the first step is the variable itself, as in Keras (`Optimizer(use_ema=True)`).
    Make it in the strategy's scope. Source: Polyak and Juditsky 1992 (doi:10.1137/0330046).
    """

    def __init__(self, variables: Sequence[tf.Variable], momentum: float) -> None:
        self._variables, self._momentum = variables, momentum
        strategy = tf.distribute.get_strategy()
        self.values = []
        for variable in variables:
            with strategy.extended.colocate_vars_with(variable):
                self.values.append(tf.Variable(tf.convert_to_tensor(variable), trainable=False, name="average"))

    def update(self, distribution: tf.distribute.Strategy, first: tf.Tensor) -> None:
        """Takes a step's weights in, in the cross-replica context; `first`, bool []: whether it is the first step."""
        kept = tf.where(first, 0.0, self._momentum)

        def toward(average: tf.Variable, weight: tf.Tensor) -> None:
            share = tf.cast(1.0 - kept, average.dtype)
            average.assign_add(share * (tf.cast(weight, average.dtype) - average))

        for average, variable in zip(self.values, self._variables, strict=True):
            distribution.extended.update(average, toward, args=(variable,), group=False)

    def swap(self) -> None:
        """Exchanges the averages and the weights; a second call puts both back."""
        for average, variable in zip(self.values, self._variables, strict=True):
            kept = tf.convert_to_tensor(variable)
            variable.assign(tf.convert_to_tensor(average))
            average.assign(kept)
