"""Sums over replicas and steps."""

import numpy as np
import tensorflow as tf


class Totals:
    """Named float64 sums: each replica adds to its own, and reading gives the sum of all.

    Keras' metrics read, add and write back, which loses counts where replicas share a variable.
    Make it in the strategy's scope; `add` in a replica, `read` and `reset` outside.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self._variables = {
            name: tf.Variable(
                tf.zeros(shape, tf.float64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name=f"total_{name}",
            )
            for name, shape in shapes.items()
        }

    @property
    def variables(self) -> list[tf.Variable]:
        return list(self._variables.values())

    def add(self, **values: tf.Tensor) -> None:
        for name, value in values.items():
            self._variables[name].assign_add(tf.cast(value, tf.float64))

    def read(self) -> dict[str, np.ndarray]:
        return {name: variable.read_value().numpy() for name, variable in self._variables.items()}

    def reset(self) -> None:
        for variable in self._variables.values():
            variable.assign(tf.zeros(variable.shape, tf.float64))
