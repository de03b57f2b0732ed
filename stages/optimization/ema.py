"""The exponential moving average (EMA) of the weights of a network and of the statistics that it keeps."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import keras
import tensorflow as tf


class EMA:
    """The EMA of a network's weights and statistics, in their dtypes.

    Statistics that the network keeps of its activations, such as those of BatchNorm, are averaged with the weights,
    because the statistics of the last step belong to other weights. Counts, which the network declares as sums, are
    not averaged, nor are whole numbers and the states of random layers.

    Sources: Polyak and Juditsky 1992 (doi:10.1137/0330046); Izmailov et al. 2018 (arXiv:1803.05407), section 3.
    """

    def __init__(
        self, momentum: float = 0.0, weights: Iterable[keras.Variable] = (), buffers: Iterable[keras.Variable] = ()
    ) -> None:
        """Begin with the current values. Call this in the strategy's scope.

        Args:
            momentum: The share of the average that a step keeps. 0: there is no EMA, and all methods do nothing.
            weights: The trained variables.
            buffers: Variables of the network that a step changes without training them.
        """
        statistics = [one for one in buffers if "float" in one.dtype and one.aggregation != "sum"]
        averaged = [*weights, *statistics] if momentum else []
        self._momentum = momentum
        self.values = [_like(variable) for variable in averaged]
        """The averages: of the weights, then of the statistics."""
        self._pairs = list(zip(averaged, self.values, strict=True))

    def update(self, iterations: keras.Variable) -> None:
        """Move the averages towards the current values. Call this in a replica, after its update.

        Args:
            iterations: The number of updates so far. After the first one, the averages are the values.
        """
        if self._pairs:
            replica = tf.distribute.get_replica_context()
            replica.merge_call(lambda distribution: self._update(distribution, iterations.value))

    def _update(self, distribution: tf.distribute.Strategy, iterations: tf.Variable) -> None:
        kept = tf.cast(tf.not_equal(iterations, 1), tf.float64) * self._momentum

        def move(average: tf.Variable, value: tf.Tensor) -> None:
            momentum = tf.cast(kept, average.dtype)
            average.assign(momentum * average + (1 - momentum) * value)

        for variable, average in self._pairs:
            distribution.extended.update(average.value, move, args=(variable.value,), group=False)

    def assign_to_weights(self) -> None:
        """Set the weights and statistics to their averages."""
        for variable, average in self._pairs:
            variable.assign(tf.convert_to_tensor(average))

    @contextmanager
    def as_weights(self) -> Iterator[None]:
        """Set the weights and statistics to their averages for the block, and restore them at its end."""
        current: Sequence[tf.Tensor] = [tf.identity(tf.convert_to_tensor(variable)) for variable, _ in self._pairs]
        self.assign_to_weights()
        try:
            yield
        finally:
            for (variable, _), value in zip(self._pairs, current, strict=True):
                variable.assign(value)


def _like(variable: keras.Variable) -> keras.Variable:
    """Return a new variable with the value of `variable`, on the same device."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
        average = keras.Variable(
            keras.initializers.Zeros(), variable.shape, variable.dtype, trainable=False, name="average"
        )
    average.assign(tf.convert_to_tensor(variable))
    return average
