"""The loss of each example, in float32."""

from collections.abc import Callable

import tensorflow as tf

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Takes labels int32 [b] and outputs float32 [b, classes]; returns float32 [b]."""


def cross_entropy(outputs: str) -> Loss:
    """Returns the cross-entropy for networks whose outputs are `logits` or `probabilities`."""
    return _of_logits if outputs == "logits" else _of_probabilities


def probabilities(outputs: tf.Tensor, kind: str) -> tf.Tensor:
    """Returns float32 [b, classes] whose rows add up to 1."""
    return tf.nn.softmax(outputs) if kind == "logits" else outputs


def _of_logits(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)


def _of_probabilities(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    right = tf.gather(outputs, labels, batch_dims=1)
    return -tf.math.log(tf.clip_by_value(right, 1e-7, 1.0))  # Keras' own bound
