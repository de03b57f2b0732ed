"""Outputs of which each is a probability of its own: a single logit of two classes, or one for each label."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from stages.errors import UserError


def binary_losses(wanted: tf.Tensor, outputs: tf.Tensor, given: str, smoothing: float) -> tf.Tensor:
    """Returns the cross-entropy of each output, [b, k].

    Args:
        wanted: targets of 0 to 1, [b, k]. given: what the network returns, `logits` or `probabilities`.
        smoothing: part of a target that is replaced by one half.
    """
    smooth = tf.cast(wanted, outputs.dtype) * (1.0 - smoothing) + smoothing / 2
    if given == "logits":
        return tf.nn.sigmoid_cross_entropy_with_logits(smooth, outputs)
    clipped = tf.clip_by_value(outputs, 1e-7, 1 - 1e-7)  # Keras' own bounds
    return -smooth * tf.math.log(clipped) - (1 - smooth) * tf.math.log(1 - clipped)


def refuse_outside(given: str, outputs: np.ndarray) -> None:
    """Raises UserError for outputs that cannot be the probabilities that they are said to be."""
    if given == "probabilities" and not np.all((outputs >= 0) & (outputs <= 1)):
        raise UserError(
            "model.outputs=probabilities, but the network's output is not all between 0 and 1",
            "what the last layer of the network returns",
            "model.outputs=logits",
        )
