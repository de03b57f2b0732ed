"""Updates of a variable in one operation, where TensorFlow has a kernel for the formula of a Keras optimizer.

Keras composes an update of a dozen operations for each variable, which take longer to trace, optimize and start than
to compute: a network of a hundred small variables spends more on them than on its gradients.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from stages.networks.keras_internals import slots_of

UpdateStep = Callable[[tf.Tensor, tf.Variable, tf.Tensor], None]
"""Takes a gradient, the variable, and the learning rate, as `keras.optimizers.Optimizer.update_step`."""


def update_step_of(optimizer: keras.optimizers.Optimizer) -> UpdateStep:
    """Returns the optimizer's `update_step`, for one training step, in one operation a variable where that is equal.

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
