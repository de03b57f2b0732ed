"""The update of a model from gradients that are already summed over the replicas."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import (
    overridden_beside_update_step,
    slots_of,
    takes_weight_decay,
    untracked_variables,
)
from stages.optimization.ema import EMA
from stages.optimization.gradients import Gradients
from stages.optimization.loss_scale import LossScale


class Update:
    """Applies a Keras optimizer once, to variables that may be mirrored, without reducing a second time.

    Keras' `optimizer.apply` sums the gradients over the replicas itself, so loss scaling and clipping, which need the
    sum, would have to reduce twice. This calls the optimizer's public `update_step` on every copy instead, in the
    cross-replica context, the way `apply` does in the end.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Gradients,
        loss_scale: LossScale | None,
        ema: EMA | None,
    ) -> None:
        _check_updatable(optimizer, gradients)
        self._optimizer = optimizer
        self._loss_scale = loss_scale
        self._ema = ema
        self._variables = gradients.variables
        self._constraints = gradients.constraints
        self._state = [variable.value for variable in gradients.state]

    def __call__(
        self,
        distribution: tf.distribute.Strategy,
        gradients: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        finite: tf.Tensor,
    ) -> None:
        """Updates the model, by `merge_call`: each argument is the same in every replica."""
        if self._loss_scale is None:
            self._apply(distribution, gradients, state)
        else:
            decided = distribution.experimental_local_results(finite)[0]
            self._loss_scale.apply_if(decided, lambda: self._apply(distribution, gradients, state))

    def _apply(
        self, distribution: tf.distribute.Strategy, gradients: Sequence[tf.Tensor], state: Sequence[tf.Tensor]
    ) -> None:
        optimizer = self._optimizer
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        is_first = tf.equal(optimizer.iterations.value, 0)
        update_step = update_step_of(optimizer)
        for variable, gradient, constraint in zip(self._variables, gradients, self._constraints, strict=True):

            def update(copy: tf.Variable, gradient: tf.Tensor, constraint: Any = constraint) -> None:
                if optimizer.weight_decay is not None and takes_weight_decay(optimizer, copy):
                    copy.assign_sub(copy * tf.cast(optimizer.weight_decay * rate, copy.dtype))
                update_step(gradient, copy, rate)
                if constraint is not None:
                    copy.assign(constraint(tf.convert_to_tensor(copy)))

            distribution.extended.update(variable, update, args=(gradient,), group=False)
        for variable, value in zip(self._state, state, strict=True):
            distribution.extended.update(variable, lambda copy, new: copy.assign(new), args=(value,), group=False)
        if self._ema is not None:
            self._ema.update(distribution, is_first)
        optimizer.iterations.value.assign_add(1)  # Keras' own assign_add reads, adds and writes: workers lose counts


_ELEMENT_BY_ELEMENT = ("SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Lion", "Ftrl")
"""Optimizers of Keras that update the shards of a variable as they would the whole."""


def _check_updatable(optimizer: keras.optimizers.Optimizer, gradients: Gradients) -> None:
    """Raises UserError where `update_step` alone, or a resumed run, would train to other weights."""
    name = type(optimizer).__name__
    overridden = overridden_beside_update_step(optimizer)
    if overridden:
        raise UserError(
            f"train=loop calls an optimizer's update_step alone, and {name} overrides {', '.join(overridden)}",
            "an optimizer that leaves them as they are in Keras, or train=fit",
            "train=fit",
        )
    untracked = untracked_variables(optimizer)
    if untracked:
        raise UserError(
            f"{name} has variables that no checkpoint would have: {', '.join(untracked)}",
            "variables made by add_variable or add_variable_from_reference, in build",
        )
    is_known = type(optimizer) in [getattr(keras.optimizers, kind) for kind in _ELEMENT_BY_ELEMENT]
    if len(gradients.variables) > len(gradients.model.network.trainable_variables) and not is_known:
        raise UserError(
            f"strategy.shard_kib parts the weights, and {name} may need them whole",
            "strategy.shard_kib=0, or an optimizer that updates each weight by itself",
            "strategy.shard_kib=0",
        )


UpdateStep = Callable[[tf.Tensor, tf.Variable, tf.Tensor], None]
"""Takes a gradient, the variable, and the learning rate, as `keras.optimizers.Optimizer.update_step`."""


def update_step_of(optimizer: keras.optimizers.Optimizer) -> UpdateStep:
    """Returns the optimizer's `update_step`, for one training step, in one operation a variable where that is equal.

    Keras composes an update of a dozen operations for each variable, which take longer to trace, optimize and start
    than to compute: a network of a hundred small variables spends more on them than on its gradients.

    Equal up to rounding in float32 and float64, for the very classes of Keras, not for those that extend them. In
    float32 Keras' Adam differs from its own formula by up to 2.4e-5 of an update, as it rounds `1 - beta_2` in one
    place and `beta_2` in another; the operation rounds `beta_2` alone.
    """
    if type(optimizer) in (keras.optimizers.Adam, keras.optimizers.AdamW) and not optimizer.amsgrad:
        fused = _adam(optimizer)
    elif type(optimizer) is keras.optimizers.SGD and optimizer.momentum:
        fused = _momentum(optimizer)
    else:
        return optimizer.update_step

    def update_step(gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        is_wide = variable.dtype in (tf.float32, tf.float64)
        (fused if is_wide else optimizer.update_step)(gradient, variable, rate)

    return update_step


def _adam(optimizer: keras.optimizers.Adam) -> UpdateStep:
    powers: dict[tf.DType, tuple[tf.Tensor, tf.Tensor]] = {}

    def update_step(gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        dtype = variable.dtype
        if dtype not in powers:  # the same for all variables
            step = tf.cast(optimizer.iterations.value + 1, dtype)
            first, second = (tf.pow(tf.constant(beta, dtype), step) for beta in (optimizer.beta_1, optimizer.beta_2))
            powers[dtype] = first, second
        momentum, velocity = slots_of(optimizer, variable, "_momentums", "_velocities")
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.handle,
            v=velocity.handle,
            beta1_power=powers[dtype][0],
            beta2_power=powers[dtype][1],
            lr=tf.cast(rate, dtype),
            beta1=tf.constant(optimizer.beta_1, dtype),
            beta2=tf.constant(optimizer.beta_2, dtype),
            epsilon=tf.constant(optimizer.epsilon, dtype),
            grad=gradient,
        )

    return update_step


def _momentum(optimizer: keras.optimizers.SGD) -> UpdateStep:
    def update_step(gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        [momentum] = slots_of(optimizer, variable, "momentums")
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=momentum.handle,
            lr=tf.cast(rate, variable.dtype),
            grad=gradient,
            momentum=tf.constant(optimizer.momentum, variable.dtype),
            use_nesterov=optimizer.nesterov,
        )

    return update_step
