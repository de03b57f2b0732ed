"""BatchNorm over the whole batch, however many replicas share it."""

from typing import Any

import keras
import tensorflow as tf

from stages.networks.keras_internals import all_layers


class BatchNormalization(keras.layers.BatchNormalization):
    """Keras' layer with the mean and the variance of the global batch, so that replicas equal one device.

    On one device it computes what Keras' own does. On several, Keras' `synchronized=True` gives the same numbers, but
    takes minutes to trace a network of fifty such layers: see `_sum`. It also computes the variance as the difference
    of two large numbers, where this one sums squared deviations. It has the name and the module of Keras' class, by
    which files identify layers: they are loaded without this project, as Keras' own.
    """

    __module__ = "keras.layers"

    def __init__(self, *, synchronized: bool = True, **kwargs: Any) -> None:
        super().__init__(synchronized=synchronized, **kwargs)

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        replica = tf.distribute.get_replica_context()
        axes = self._reduction_axes
        if mask is not None:
            return super()._moments(inputs, mask)
        if replica is None or replica.num_replicas_in_sync == 1:
            return keras.ops.moments(inputs, axes)
        examples = tf.cast(tf.size(inputs) // inputs.shape[self.axis], inputs.dtype)
        sums = _sum(tf.concat([tf.reduce_sum(inputs, axes), [examples]], axis=0))
        count = sums[-1]
        mean = sums[:-1] / sums[-1]
        center = tf.reshape(mean, [1 if axis in axes else -1 for axis in range(inputs.shape.rank)])
        # Deviations add up to 0, so the gradient of their squares does not depend on the mean.
        squares = tf.math.squared_difference(inputs, tf.stop_gradient(center))
        return mean, _sum(tf.reduce_sum(squares, axes)) / count


def normalizing_by_batch(network: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Return the layers that normalize by the statistics of their batch in training: a frozen one does not."""
    layers = (layer for layer in all_layers(network) if isinstance(layer, keras.layers.BatchNormalization))
    return [layer for layer in layers if layer.trainable]


@tf.custom_gradient
def _sum(value: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return the sum of `value` over the replicas; its gradient is the sum of their gradients.

    `all_reduce` alone would suffice, but to find its dependencies TensorFlow walks from each sum back through all that
    the other replicas have computed, forward and backward, in a time that grows with the square of the layers. The
    walk ends at a tensor without a gradient, such as this one.
    """
    replica = tf.distribute.get_replica_context()

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(upstream))

    return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value)), gradient
