"""The loss of each example, in float32 (float64 for a network in float64)."""

from collections.abc import Callable

import tensorflow as tf

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Takes labels [b] (Keras hands them on as floats) and outputs float32 [b, classes]; returns float32 [b]."""


def cross_entropy(outputs: str, label_smoothing: float = 0.0) -> Loss:
    """Returns the cross-entropy for networks whose outputs are `logits` or `probabilities`.

    With `label_smoothing` s the target is 1 - s for the true class, and s is spread over all classes alike.
    Source: Szegedy et al. 2016 (arXiv:1512.00567), section 7.
    """
    logs = tf.nn.log_softmax if outputs == "logits" else _logs_of_probabilities
    plain = _of_logits if outputs == "logits" else _of_probabilities
    if not label_smoothing:
        return plain

    def smoothed(labels: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
        uniform = -tf.reduce_mean(logs(given), axis=-1)
        return (1.0 - label_smoothing) * plain(labels, given) + label_smoothing * uniform

    return smoothed


def probabilities(outputs: tf.Tensor, kind: str) -> tf.Tensor:
    """Returns float32 [b, classes] whose rows add up to 1."""
    return tf.cast(tf.nn.softmax(outputs) if kind == "logits" else outputs, tf.float32)


def _of_logits(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, tf.int32), outputs)


def _of_probabilities(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return -tf.gather(_logs_of_probabilities(outputs), tf.cast(labels, tf.int32), batch_dims=1)


def _logs_of_probabilities(outputs: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.clip_by_value(outputs, 1e-7, 1.0))  # Keras' own bound
