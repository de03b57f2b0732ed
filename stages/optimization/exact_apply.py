"""Keras' own `optimizer.apply` on gradients that are already summed over the replicas, its loss scale and its EMA."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import keras
import tensorflow as tf

from stages.errors import UserError
from stages.networks import keras_internals
from stages.results import Strategy

LEAST_SCALE = 2.0**-14
"""Limit for the loss scale: at this one, the loss is not finite for another reason than float16's range."""


class LossScale(keras.optimizers.LossScaleOptimizer):
    """Keras' dynamic loss scale, which counts the steps that it skips.

    With gradients that come in summed, all replicas skip the same steps.
    Source: Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740), section 3.2.
    """

    def build(self, variables: list[tf.Variable]) -> None:
        """As Keras' own, which does not track what the inner optimizer makes: no checkpoint would have it."""
        self.inner_optimizer.build(variables)
        initial = keras.initializers.Constant(self.initial_scale)
        self.dynamic_scale = self.add_variable((), initial, "float32", aggregation="none", name="dynamic_scale")
        self.step_counter = self.add_variable((), dtype="int32", aggregation="none", name="step_counter")
        self.skipped_steps = self.add_variable((), dtype="int32", aggregation="none", name="skipped_steps")
        keras.optimizers.Optimizer.build(self, variables)

    def _stateful_handle_finite_grads(
        self, grads: list[tf.Tensor], trainable_variables: list[tf.Variable] | None
    ) -> None:
        # Keras' own has a conditional around an assignment, which a variable that replicas share does not allow.
        scale = tf.convert_to_tensor(self.dynamic_scale)
        self.inner_optimizer.apply([tf.cast(tf.cast(g, scale.dtype) / scale, g.dtype) for g in grads])
        grows = tf.equal(self.step_counter.value, self.dynamic_growth_steps - 1)
        self.step_counter.assign((self.step_counter.value + 1) * tf.cast(~grows, self.step_counter.value.dtype))
        self.dynamic_scale.assign(tf.where(grows, 2 * scale, scale))

    def _stateful_handle_non_finite_grads(self) -> None:
        super()._stateful_handle_non_finite_grads()
        self.skipped_steps.assign(self.skipped_steps + 1)

    @property
    def own_variables(self) -> list[keras.Variable]:
        return [self.dynamic_scale, self.step_counter, self.skipped_steps]


class EMA:
    """The exponential moving average of the weights, which Keras' optimizer keeps, in the weights' dtype.

    Statistics that the network keeps of its activations, such as those of BatchNorm, are averaged with the weights:
    those of the last step belong to other weights. Counts, which the network declares as sums, are not averaged, nor
    are whole numbers and the states of random layers.

    For an optimizer that keeps no EMA, all methods do nothing, and `values` is empty.
    Sources: Polyak and Juditsky 1992 (doi:10.1137/0330046); Izmailov et al. 2018 (arXiv:1803.05407), section 3.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer | None = None, buffers: Iterable[keras.Variable] = ()
    ) -> None:
        """Begin with the current values. Call it in the strategy's scope, with an optimizer that is built.

        Args:
            buffers: variables of the network that a step changes without training them.
        """
        self._pairs = keras_internals.averages_of(optimizer) if optimizer is not None else []
        if self._pairs:
            statistics = [one for one in buffers if "float" in one.dtype and one.aggregation != "sum"]
            self._pairs += keras_internals.average_too(optimizer, statistics)
        self.values = [average for _, average in self._pairs]
        for variable, average in self._pairs:  # Keras begins with zeros, which would stay if the first step is skipped
            average.assign(tf.convert_to_tensor(variable))

    def assign_to_weights(self) -> None:
        """Set the weights and statistics to the EMA."""
        for variable, average in self._pairs:
            variable.assign(tf.convert_to_tensor(average))

    @contextmanager
    def as_weights(self) -> Iterator[None]:
        """Set weights and statistics to the EMA for the block, and restore them at its end."""
        weights = [tf.identity(tf.convert_to_tensor(variable)) for variable, _ in self._pairs]
        self.assign_to_weights()
        try:
            yield
        finally:
            for (variable, _), value in zip(self._pairs, weights, strict=True):
                variable.assign(value)


def prepare(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], strategy: Strategy, policy: str
) -> LossScale | None:
    """Build `optimizer` for summed gradients, in the strategy's scope; return the loss scale around it for float16.

    Keras sums the gradients in `apply`, once they are checked for overflow and clipped. Both need the sum.

    Raises:
        UserError: where a resumed run would silently train to other weights.
    """
    scale = LossScale(optimizer) if policy in ("mixed_float16", "float16") else None
    (scale or optimizer).build(list(variables))
    if untracked := keras_internals.untracked_variables(optimizer, optimizer.variables):
        raise UserError(
            f"{type(optimizer).__name__} has variables that checkpoints cannot include: {', '.join(untracked)}",
            "variables that build creates by add_variable or add_variable_from_reference",
        )
    keras_internals.expect_summed_gradients(optimizer)
    optimizer.update_step = update_step_of(optimizer)
    if strategy.coordinator is not None:
        keras_internals.count_in_place(optimizer)
    keras_internals.write_from_any_replica([*variables, *(scale or optimizer).variables])
    return scale


def update_step_of(optimizer: keras.optimizers.Optimizer) -> Callable[[tf.Tensor, tf.Variable, tf.Tensor], None]:
    """The optimizer's `update_step`, of gradient, variable and rate; for Adam and AdamW one operation a variable.

    Keras composes an update of a dozen operations for each variable, which take longer to trace, optimize and start
    than to compute: a network of a hundred small variables spends more on them than on its gradients.

    Equal up to rounding in float32 and float64, for the very classes of Keras, not for classes that extend them. In
    float32 Keras' Adam differs from its own formula by up to 2.4e-5 of an update, as it rounds `1 - beta_2` in one
    place and `beta_2` in another; the operation rounds `beta_2` alone.
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
