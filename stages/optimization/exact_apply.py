"""Keras' own `optimizer.apply` on gradients that are already summed over the replicas."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.networks import keras_internals


def prepare(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Build `optimizer` for gradients that are already summed over the replicas. Call this in the strategy's scope.

    Keras sums the gradients in `apply`, after it has clipped them, but clipping needs the sum.

    Args:
        optimizer: The optimizer, not built yet.
        variables: The variables that it trains.

    Raises:
        UserError: If a resumed run would train to other weights without an error.
    """
    optimizer.build(list(variables))
    if untracked := keras_internals.untracked_variables(optimizer, optimizer.variables):
        raise UserError(
            f"{type(optimizer).__name__} has variables that checkpoints cannot include: {', '.join(untracked)}",
            "variables that build creates by add_variable or add_variable_from_reference",
        )
    keras_internals.expect_summed_gradients(optimizer)
    optimizer.update_step = update_step_of(optimizer)
    keras_internals.write_from_any_replica([*variables, *optimizer.variables])


def update_step_of(optimizer: keras.optimizers.Optimizer) -> Callable[[tf.Tensor, tf.Variable, tf.Tensor], None]:
    """Return the optimizer's `update_step`, which for Adam and AdamW is one operation per variable.

    Keras composes an update from a dozen operations per variable, which take longer to trace, optimize and start than
    to compute. A network with a hundred small variables spends more time on them than on its gradients.

    The result is equal up to rounding in float32 and float64. It is used only for the classes of Keras themselves, not
    for classes that extend them. In float32 Keras' Adam differs from its own formula by up to 2.4e-5 of an update,
    because it rounds `1 - beta_2` in one place and `beta_2` in another. The operation rounds only `beta_2`.
    """
    own = optimizer.update_step
    if type(optimizer) not in (keras.optimizers.Adam, keras.optimizers.AdamW) or optimizer.amsgrad:
        return own

    def update_step(gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        dtype = variable.dtype
        if dtype not in (tf.float32, tf.float64):
            own(gradient, variable, rate)
            return
        step = tf.cast(optimizer.iterations.value + 1, dtype)
        momentum, velocity = keras_internals.slots_of(optimizer, variable, "_momentums", "_velocities")
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.handle,
            v=velocity.handle,
            beta1_power=tf.pow(tf.constant(optimizer.beta_1, dtype), step),
            beta2_power=tf.pow(tf.constant(optimizer.beta_2, dtype), step),
            lr=tf.cast(rate, dtype),
            beta1=tf.constant(optimizer.beta_1, dtype),
            beta2=tf.constant(optimizer.beta_2, dtype),
            epsilon=tf.constant(optimizer.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )

    return update_step
