"""The training step, which is the same under every strategy: gradients, their sum over the replicas, the update."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.collectives import Totals
from stages.data.batches import augmented, first_row_of_step, fixed_rows_of
from stages.data.examples import spec_of
from stages.optimization.ema import EMA
from stages.optimization.exact_apply import prepare
from stages.optimization.gradients import Gradients, Result
from stages.optimization.loss_scale import LossScale, all_finite
from stages.optimization.optimizers import exclude_from_decay
from stages.optimization.xla import for_usual_rows, rows_for_xla
from stages.results import Model
from stages.training.engine import Setup
from stages.training.state import TrainState


class TrainStep:
    """A training step of the model of `gradients`, which each replica calls with its own batch.

    Its gradient is the gradient of the mean loss over the global batch, however the batch is split: replicas sum their
    gradients and the weights of their examples in one reduction, and divide the one by the other. The weight of an
    example is its own weight times the weight of its class, 1 by default. Keras averages the means of the replicas,
    which is a different number if their batches differ in size.
    """

    def __init__(self, setup: Setup, is_compiled: bool) -> None:
        """Trace the gradients, and create the variables of the steps.

        Args:
            setup: What the steps are built from.
            is_compiled: Whether XLA compiles the gradients.
        """
        strategy, settings, split = setup.strategy, setup.settings, setup.dataset.train
        rows = rows_for_xla(settings, len(split), strategy.in_sync) if is_compiled else None
        self.model = model = setup.model
        self.gradients = gradients = Gradients(
            model, setup.task, settings, spec_of(setup.dataset), strategy.in_sync, rows
        )
        if model.has_own_loss:
            setup.loss.check_use(model, settings)
        gradients.warn_of_draws(setup.reporter)
        self._optimizer = optimizer = setup.optimizer
        self._take: Callable[[Example, tf.Tensor], None] = self.take
        self._accumulates = settings.optimizer.accumulation > 1
        self._examples = len(split)
        self._batch_size = settings.batch_size
        self._usual_count = settings.batch_size * gradients.mean_weight(split)
        self._fixed_rows = fixed_rows_of(settings.batch_size, strategy.in_sync, strategy.fixed_shapes)
        weights = model.network.trainable_variables
        with strategy.distribution.scope():
            self.sums = EpochSums(model, gradients.metrics)
            exclude_from_decay(optimizer, model.network, settings.optimizer.decay_exclude)
            prepare(optimizer, weights)
            self._loss_scale = LossScale() if model.policy in ("mixed_float16", "float16") else None
            self._ema = EMA(settings.optimizer.ema_momentum, weights, gradients.buffers)
        self.state = TrainState.of(
            strategy, setup.whole.network, optimizer, self._ema, self._loss_scale, self.sums.variables
        )
        self._buffers = [variable.value for variable in gradients.buffers]
        self._are_means = [v.value.dtype.is_floating and v.aggregation != "sum" for v in gradients.buffers]

    def compile_as_one(self) -> None:
        """Have XLA compile the whole step instead of the gradients only. There must be one replica.

        This has no effect with accumulation, because XLA would not compute the parts of a batch one after the other to
        save memory. Nor has it for variables of int32, which TensorFlow keeps on the host, out of reach of a GPU.
        """
        variables = [*self.state.sums, *(variable for part in self.state.parts.values() for variable in part)]
        is_on_host = any(tf.as_dtype(variable.dtype) == tf.int32 for variable in variables)
        if self.gradients.is_compiled and not self._accumulates and not is_on_host:
            self.gradients.is_compiled = False
            compiled = tf.function(self.take, jit_compile=True, autograph=False)
            self._take = for_usual_rows(compiled, self.take, self.gradients.xla_rows or 0)

    @tf.autograph.experimental.do_not_convert  # no control flow for AutoGraph, half of a run's tracing
    def __call__(self, batch: Example, step: tf.Tensor) -> None:
        """Take `step` of the run with the batch of this replica."""
        if batch.uniforms:  # not in `take`: XLA has no projective transform
            assert self.model.transforms, "the stage `model` comes before `augment`"
            batch = augmented(batch, self.model.transforms)
        self._take(batch, step)

    @tf.autograph.experimental.do_not_convert
    def take(self, batch: Example, step: tf.Tensor) -> None:
        """Take a step with a batch that is augmented."""
        replica = tf.distribute.get_replica_context()
        scale = self._scale()
        result = self.gradients(batch, step, self._first_row(step, replica), scale)
        total, loss, gradients, buffers = self._reduced(replica, result)
        count = tf.where(total > 0, total, 1)  # if all examples weigh 0, the sums are 0
        # Not narrower than float32, in which Keras computes their norm.
        means = [tf.cast(g, _wide(g)) / tf.cast(count * scale, _wide(g)) for g in gradients]
        if replica.num_replicas_in_sync > 1:
            buffers = self._mean_buffers(buffers, total, count)
        if self._loss_scale is None:
            self._update(means, buffers)
        else:
            self._loss_scale.update_if(all_finite(means), self._update, means, buffers)
        # With a loss scale, the step of a loss that is not finite is skipped. Without one, NaN must be visible.
        self.sums.add(result, None if self._loss_scale is None else tf.math.is_finite(loss))

    def _scale(self) -> tf.Tensor:
        """Return the factor of the summed loss. The loss scale itself is a factor of the mean loss."""
        one = tf.constant(1.0, self.gradients.dtype)
        return one if self._loss_scale is None else self._loss_scale.value / self._usual_count

    def _first_row(self, step: tf.Tensor, replica: tf.distribute.ReplicaContext) -> tf.Tensor:
        place = replica.replica_id_in_sync_group, replica.num_replicas_in_sync
        return first_row_of_step(step, self._examples, self._batch_size, place, self._fixed_rows)

    def _reduced(
        self, replica: tf.distribute.ReplicaContext, result: Result
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Return the number of examples, the loss, the gradients and the buffers, summed over the replicas."""
        examples = result.sums["examples"]
        buffers = result.buffers
        if replica.num_replicas_in_sync > 1:
            buffers = self._terms(result.buffers, examples, replica)
        total, loss, *sums = _sum(replica, [examples, result.sums["loss"], *result.gradients, *buffers])
        return total, loss, sums[: len(result.gradients)], sums[len(result.gradients) :]

    def _terms(
        self, buffers: Sequence[tf.Tensor], examples: tf.Tensor, replica: tf.distribute.ReplicaContext
    ) -> list[tf.Tensor]:
        """Return this replica's terms of the sums of the buffers.

        Floats are weighted by this replica's examples. Whole numbers are the first replica's. For variables that the
        network declares as sums, the first replica adds its value, and the others what they have added to theirs. All
        terms are float32 or wider, as a variance times a count may be too large for float16.
        """
        is_first = tf.equal(replica.replica_id_in_sync_group, 0)
        terms = []
        old_values = zip(self.gradients.buffers, buffers, self._buffers, self._are_means, strict=True)
        for variable, new, old, is_mean in old_values:
            wide = _wide(new) if new.dtype.is_floating else tf.int64
            value = tf.cast(new, wide)
            counted = value - tf.cast(old, wide) if variable.aggregation == "sum" else tf.zeros_like(value)
            terms.append(value * tf.cast(examples, wide) if is_mean else tf.where(is_first, value, counted))
        return terms

    def _mean_buffers(self, sums: Sequence[tf.Tensor], total: tf.Tensor, count: tf.Tensor) -> list[tf.Tensor]:
        """Return the new values of the buffers from the sums of `_terms`."""
        return [
            tf.where(total > 0, tf.cast(new / tf.cast(count, new.dtype), old.dtype), old)
            if is_mean
            else tf.cast(new, old.dtype)
            for new, old, is_mean in zip(sums, self._buffers, self._are_means, strict=True)
        ]

    def _update(self, means: Sequence[tf.Tensor], buffers: Sequence[tf.Tensor]) -> None:
        """Assign the buffers and update the weights and the EMA, in each replica with the same values."""
        if buffers:
            tf.distribute.get_replica_context().merge_call(self._assign_buffers, args=(buffers,))
        self._optimizer.apply(means)
        self._ema.update(self._optimizer.iterations)

    def _assign_buffers(self, distribution: tf.distribute.Strategy, values: Sequence[tf.Tensor]) -> None:
        for variable, value in zip(self._buffers, values, strict=True):
            distribution.extended.update(variable, lambda copy, new: copy.assign(new), args=(value,), group=False)

    def means(self) -> dict[str, float]:
        """Return the mean loss and the metrics of the examples of the epoch so far."""
        return self.sums.means(skips=self._loss_scale is not None)


class EpochSums:
    """Sums of the loss, the examples and the metrics over the steps of an epoch."""

    def __init__(self, model: Model, metrics: Sequence[keras.Variable]) -> None:
        """Begin with zeros. Call this in the strategy's scope.

        Args:
            model: The model whose task defines the sums.
            metrics: The variables of the network's own metrics.
        """
        self._model = model
        self._metrics = metrics
        self.totals = Totals(loss=(), examples=(), **model.task.all_sums)

    @property
    def variables(self) -> list[Any]:
        """All variables, in the order in which checkpoints have them."""
        return [*self.totals.variables, *self._metrics]

    def add(self, result: Result, counts: tf.Tensor | None) -> None:
        """Add a replica's result. Call this in a replica.

        Args:
            result: The result of a batch.
            counts: Whether the step counts; None: it does.
        """
        sums, metrics = result.sums, result.metrics
        if counts is not None:
            sums = {name: tf.where(counts, value, tf.zeros_like(value)) for name, value in sums.items()}
            metrics = [tf.where(counts, value, tf.zeros_like(value)) for value in metrics]
        self.totals.add(**sums)
        for variable, value in zip(self._metrics, metrics, strict=True):
            variable.value.assign_add(value)  # its growth: if replicas share the variable, each counts once

    def means(self, skips: bool) -> dict[str, float]:
        """Return the mean `loss`, the task's metrics and the network's own metrics.

        Args:
            skips: Whether steps may be skipped. If all of them were, the mean loss is NaN. Otherwise an epoch without
                examples began with examples that weigh 0, and the mean loss is 0.
        """
        sums = self.totals.read()
        sums["examples"] = np.where(sums["examples"] > 0, sums["examples"], np.nan if skips else 1.0)
        with np.errstate(invalid="ignore"):
            results = {metric.name: keras.ops.convert_to_numpy(metric.result()) for metric in self._model.metrics}
            return {name: float(value) for name, value in results.items() if np.size(value) == 1} | {
                "loss": float(sums["loss"] / sums["examples"]),
                **self._model.task.all_scores(sums),
            }

    def reset(self) -> None:
        """Begin an epoch."""
        self.totals.reset()
        for metric in self._model.metrics:
            metric.reset_state()


def _wide(value: tf.Tensor) -> tf.DType:
    return tf.float64 if value.dtype == tf.float64 else tf.float32


def _sum(replica: tf.distribute.ReplicaContext, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums over the replicas, with one reduction per dtype, as collectives pack the tensors of one call."""
    sums: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(value.dtype for value in values):
        places = [index for index, value in enumerate(values) if value.dtype == dtype]
        reduced = replica.all_reduce(tf.distribute.ReduceOp.SUM, [values[index] for index in places])
        sums.update(zip(places, reduced, strict=True))
    return [sums[index] for index in range(len(values))]
