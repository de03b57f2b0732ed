"""The update of the weights from gradients that are already summed over the replicas."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from stages.loss_scale import LossScale


class Update:
    """Applies a Keras optimizer once, to variables that may be mirrored, without reducing a second time.

    Keras' `optimizer.apply` sums the gradients over the replicas itself, so whatever must see the sum (loss scaling,
    clipping) would have to reduce twice. This calls the optimizer's public `update_step` on every copy instead, in the
    cross-replica context, the way `apply` does in the end.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, network: keras.Model, loss_scale: LossScale | None
    ) -> None:
        self.variables = [variable.value for variable in network.trainable_variables]
        self._constraints = [variable.constraint for variable in network.trainable_variables]
        self._optimizer = optimizer
        self._loss_scale = loss_scale

    def __call__(self, distribution: tf.distribute.Strategy, gradients: Sequence[tf.Tensor], finite: tf.Tensor) -> None:
        """Is called through `merge_call`: `gradients` and `finite` are the same in every replica."""
        if self._loss_scale is None:
            self._apply(distribution, gradients)
        else:
            decided = distribution.experimental_local_results(finite)[0]
            self._loss_scale.apply_if(decided, lambda: self._apply(distribution, gradients))

    def _apply(self, distribution: tf.distribute.Strategy, gradients: Sequence[tf.Tensor]) -> None:
        optimizer = self._optimizer
        rate = tf.convert_to_tensor(optimizer.learning_rate)

        for variable, gradient, constraint in zip(self.variables, gradients, self._constraints, strict=True):

            def update(copy: tf.Variable, gradient: tf.Tensor, constraint: Any = constraint) -> None:
                if optimizer.weight_decay is not None:
                    copy.assign_sub(copy * tf.cast(optimizer.weight_decay * rate, copy.dtype))
                optimizer.update_step(gradient, copy, rate)
                if constraint is not None:
                    copy.assign(constraint(tf.convert_to_tensor(copy)))

            distribution.extended.update(variable, update, args=(gradient,), group=False)
        optimizer.iterations.assign_add(1)
