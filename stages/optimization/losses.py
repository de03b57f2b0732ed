"""The loss of each example, in float32 (float64 for a network in float64), and weights of classes in it."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.results import Dataset

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""From labels [b] (floats from Keras), or [b, classes] of mixed images, whose rows add up to 1, and outputs
float32 [b, classes] to losses float32 [b]."""


def cross_entropy(outputs: str, label_smoothing: float = 0.0) -> Loss:
    """Returns the cross-entropy for networks whose outputs are `logits` or `probabilities`.

    With `label_smoothing` s the target is 1 - s for the true class, and s is spread over all classes alike.
    Source: Szegedy et al. 2016 (arXiv:1512.00567), section 7.
    """
    logs = tf.nn.log_softmax if outputs == "logits" else _logs_of_probabilities
    plain = _of_logits if outputs == "logits" else _of_probabilities
    if not label_smoothing:
        return plain

    def smoothed(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        uniform = -tf.reduce_mean(logs(outputs), axis=-1)
        return (1.0 - label_smoothing) * plain(labels, outputs) + label_smoothing * uniform

    return smoothed


def probabilities(outputs: tf.Tensor, kind: str) -> tf.Tensor:
    """Returns float32 [b, classes] whose rows add up to 1."""
    return tf.cast(tf.nn.softmax(outputs) if kind == "logits" else outputs, tf.float32)


def accuracy(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Returns 1 where the likeliest class is correct, for a mixed image the class with the greatest weight, else 0.

    float32 [b] (float64 for outputs in it); labels and outputs are those of a `Loss`.
    """
    correct = tf.argmax(labels, axis=-1) if _is_mixed(labels) else tf.cast(labels, tf.int64)
    return tf.cast(tf.argmax(outputs, axis=-1) == correct, tf.float64 if outputs.dtype == tf.float64 else tf.float32)


def class_weight(labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weights of examples, [b] of the dtype of `weights`, by their classes, or by their weights of each.

    labels: int32 [b] or float32 [b, classes]; weights: [classes].
    """
    return (
        tf.linalg.matvec(tf.cast(labels, weights.dtype), weights) if _is_mixed(labels) else tf.gather(weights, labels)
    )


def _is_mixed(labels: tf.Tensor) -> bool:
    return bool(labels.shape.rank == 2)


def _of_logits(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    if _is_mixed(labels):
        return tf.nn.softmax_cross_entropy_with_logits(tf.cast(labels, outputs.dtype), outputs)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, tf.int32), outputs)


def _of_probabilities(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    logs = _logs_of_probabilities(outputs)
    if _is_mixed(labels):
        return -tf.reduce_sum(tf.cast(labels, logs.dtype) * logs, axis=-1)
    return -tf.gather(logs, tf.cast(labels, tf.int32), batch_dims=1)


def _logs_of_probabilities(outputs: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.clip_by_value(outputs, 1e-7, 1.0))  # Keras' own bound


def class_weights(weights: object, dataset: Dataset) -> list[float] | None:
    """Returns a weight for each class, or None for all alike.

    Raises:
        UserError: where there are not as many weights as classes.
    """
    if weights is None:
        return None
    if weights == "balanced":
        counts = np.bincount(dataset.train.targets, minlength=dataset.num_classes)
        return [float(len(dataset.train) / (dataset.num_classes * max(count, 1))) for count in counts]
    assert isinstance(weights, list)
    if len(weights) != dataset.num_classes:
        raise UserError(
            f"train.class_weights has {len(weights)} numbers",
            f"{dataset.num_classes}, one for each of {', '.join(dataset.class_names)}",
            "train.class_weights=balanced",
        )
    return [float(weight) for weight in weights]
