"""Dynamic loss scaling for float16."""

from collections.abc import Callable

import tensorflow as tf

INITIAL = 2.0**15
GROWTH_STEPS = 2000
LEAST = 2.0**-14
"""Limit for the scale: at this one, the loss is not finite for another reason than float16's range."""


class LossScale:
    """A factor on the loss that keeps small gradients from vanishing in float16.

    The caller decides with gradients that are already reduced over the replicas whether a step overflowed, so all
    replicas skip it together. Keras' LossScaleOptimizer decides before the reduction: with an overflow in one replica
    MirroredStrategy applies inf, and the workers of MultiWorkerMirroredStrategy wait for each other forever.

    Source: Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740), section 3.2.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self.value = tf.Variable(INITIAL, trainable=False, name="loss_scale")
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_steps")
        self.skipped_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped_steps")

    def factor(self) -> tf.Tensor:
        """Returns the factor for the summed loss of a batch; the scale itself is that of the mean, as usual."""
        return self.value / float(self._batch_size)

    def continue_from(self, previous: "LossScale") -> None:
        """Copies the scale and the counts of the previous phase: gradients are about as large as they were."""
        self.value.assign(previous.value)
        self.good_steps.assign(previous.good_steps)
        self.skipped_steps.assign(previous.skipped_steps)

    def apply_if(self, finite: tf.Tensor, apply: Callable[[], None]) -> None:
        """Calls `apply` where `finite` (bool []) holds, else skips the step and halves the scale."""

        def good() -> tf.Tensor:
            apply()
            grow = tf.equal((self.good_steps + 1) % GROWTH_STEPS, 0)
            self.value.assign(tf.where(grow, tf.minimum(self.value * 2.0, 2.0**24), self.value))
            self.good_steps.assign_add(1)
            return tf.constant(0)

        def skip() -> tf.Tensor:
            self.value.assign(self.value / 2.0)
            self.good_steps.assign(0)
            self.skipped_steps.assign_add(1)
            return tf.constant(0)

        tf.cond(finite, good, skip)
