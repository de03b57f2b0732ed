"""The loss scale of float16: it keeps small gradients from becoming 0, and skips steps whose gradients overflow."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

LEAST_SCALE = 2.0**-14
"""Limit of the loss scale. If a loss is not finite at this one, the range of float16 is not the reason."""

FIRST_SCALE = 2.0**15
STEPS_TO_GROW = 2000
"""Steps without an overflow after which the scale is doubled."""


class LossScale:
    """A factor of the loss, which is halved when gradients overflow and doubled after many steps without an overflow.

    The update of a step whose gradients overflow is skipped. The gradients are already summed over the replicas, so
    all replicas skip the same steps.

    Source: Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740), section 3.2.
    """

    def __init__(self) -> None:
        """Begin with Keras' own first scale. Call this in the strategy's scope."""
        self.value = tf.Variable(FIRST_SCALE, trainable=False, name="loss_scale")
        self.steps = tf.Variable(0, trainable=False, name="steps_without_overflow")
        self.skipped_steps = tf.Variable(0, trainable=False, name="skipped_steps")

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables, in the order in which checkpoints have them."""
        return [self.value, self.steps, self.skipped_steps]

    def update_if(self, finite: tf.Tensor, update: Callable[..., None], *values: Any) -> None:
        """Call `update(*values)` in each replica if the gradients are finite, and adapt the scale.

        Call this in a replica.

        Args:
            finite: Whether all gradients are finite, which must be the same in all replicas.
            update: Updates the weights.
            values: The arguments of `update`, such as the gradients.
        """

        def between_replicas(distribution: tf.distribute.Strategy, finite: Any, *arguments: Any) -> None:
            def take() -> None:
                distribution.extended.call_for_each_replica(update, args=arguments)
                grows = tf.equal(self.steps, STEPS_TO_GROW - 1)
                self._assign(distribution, tf.where(grows, 2.0, 1.0), tf.where(grows, 0, self.steps + 1), 0)

            # In here, because an update, which replicas make together, must not be in a conditional of one replica.
            here = distribution.experimental_local_results(finite)[0]
            tf.cond(here, take, lambda: self._assign(distribution, tf.constant(0.5), tf.constant(0), 1))

        tf.distribute.get_replica_context().merge_call(between_replicas, args=(finite, *values))

    def _assign(self, distribution: tf.distribute.Strategy, factor: tf.Tensor, steps: tf.Tensor, skipped: int) -> None:
        values = (self.value * factor, steps, self.skipped_steps + skipped)
        for variable, value in zip(self.variables, values, strict=True):
            distribution.extended.update(variable, lambda copy, new: copy.assign(new), args=(value,), group=False)


def all_finite(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return whether no gradient has overflowed."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
