"""The training step of a replica: gradients, their sum over the replicas, the update, the totals."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.collectives import Totals
from stages.data.batches import augmented, first_row_of_step, fixed_rows_of
from stages.data.split import Split
from stages.optimization.exact_apply import EMA, prepare
from stages.optimization.gradients import Gradients
from stages.optimization.optimizers import exclude_from_decay
from stages.results import Strategy
from stages.settings.train import TrainSettings


class Step:
    """Takes one training step of the model of `gradients` with `optimizer`, when called in a replica.

    The gradient of a step is that of the mean loss over the global batch, however the batch is split: replicas
    sum their gradients and the weights of their examples in one reduction, and divide the one by the other. The weight
    of an example is its own times that of its class, 1 by default. Keras averages the means of the replicas, which is
    another number where per-replica batches differ in size.

    totals: sums of loss, examples and the task's metrics since they were last reset.
    sums: the variables of these and of the network's own metrics; seeds: variables of random layers that a checkpoint
    holds: none, as they follow from the number of the step.
    ema: the EMA of the weights and of the statistics in `gradients.state`.
    """

    def __init__(
        self,
        strategy: Strategy,
        gradients: Gradients,
        optimizer: keras.optimizers.Optimizer,
        settings: TrainSettings,
        split: Split,
    ) -> None:
        """Prepares steps over the training `split`."""
        self.optimizer = optimizer
        self.gradients = gradients
        self._model = model = gradients.model
        self._examples = len(split)
        self._batch_size = settings.batch_size
        self._usual_count = settings.batch_size * gradients.mean_weight(split)
        self._fixed_rows = fixed_rows_of(settings.batch_size, strategy.in_sync, strategy.fixed_shapes)
        with strategy.distribution.scope():
            self.totals = Totals(loss=(), examples=(), **model.task.all_sums)
            exclude_from_decay(optimizer, model.network, settings.optimizer.decay_exclude)
            self.loss_scale = prepare(optimizer, model.network.trainable_variables, strategy, model.policy)
            self.ema = EMA(optimizer, gradients.state)
        self.sums = [*self.totals.variables, *(v for metric in model.metrics for v in metric.variables)]
        self.seeds: list[keras.Variable] = []
        self._state = [variable.value for variable in gradients.state]
        self._are_means = [v.value.dtype.is_floating and v.aggregation != "sum" for v in gradients.state]

    @tf.autograph.experimental.do_not_convert  # no control flow for AutoGraph, half of a run's tracing
    def __call__(self, batch: Example, step: tf.Tensor) -> None:
        """Takes `step` of the run with its per-replica batch."""
        if batch.uniforms:  # not in `gradients`: XLA has no projective transform
            assert self._model.transforms, "the stage `model` comes before `augment`"
            batch = augmented(batch, self._model.transforms)
        replica = tf.distribute.get_replica_context()
        scale = tf.constant(1.0, self.gradients.dtype)
        if self.loss_scale is not None:  # that of the mean
            scale = self.loss_scale.dynamic_scale / self._usual_count
        place = replica.replica_id_in_sync_group, replica.num_replicas_in_sync
        first_row = first_row_of_step(step, self._examples, self._batch_size, place, self._fixed_rows)
        result = self.gradients(batch, step, first_row, scale)
        examples = result.sums["examples"]
        state = result.state if replica.num_replicas_in_sync == 1 else self._terms(result.state, examples, replica)
        total, loss, *sums = _sum(replica, [examples, result.sums["loss"], *result.gradients, *state])
        count = tf.where(total > 0, total, 1)  # of examples that all weigh 0, what is summed is 0
        gradients, state = sums[: len(result.gradients)], sums[len(result.gradients) :]
        if replica.num_replicas_in_sync > 1:
            state = [
                tf.where(total > 0, tf.cast(new / tf.cast(count, new.dtype), old.dtype), old)
                if is_mean
                else tf.cast(new, old.dtype)
                for new, old, is_mean in zip(state, self._state, self._are_means, strict=True)
            ]
        # Not narrower than float32, in which Keras finds their norm.
        means = [tf.cast(g, _wide(g)) / tf.cast(count * scale, _wide(g)) for g in gradients]
        if self.loss_scale is not None:
            means = [mean * tf.cast(self.loss_scale.dynamic_scale, mean.dtype) for mean in means]  # a power of two
            finite = self.loss_scale.check_finite(means)
            state = [tf.where(finite, new, old) for new, old in zip(state, self._state, strict=True)]
        if state:
            replica.merge_call(self._assign_state, args=(state,))
        (self.loss_scale or self.optimizer).apply(means)
        self._add(result.sums, result.metrics, tf.math.is_finite(loss))

    def _terms(
        self, state: Sequence[tf.Tensor], examples: tf.Tensor, replica: tf.distribute.ReplicaContext
    ) -> list[tf.Tensor]:
        """Returns the terms of a sum over the replicas.

        Floats are weighted by this replica's examples, and whole numbers are the first replica's. Of what the network
        declares a sum, the first replica gives its value, and the others what they have added. All are float32 or
        wider, as a variance times a count may be too large for float16.
        """
        is_first = tf.equal(replica.replica_id_in_sync_group, 0)
        terms = []
        for variable, new, old, is_mean in zip(self.gradients.state, state, self._state, self._are_means, strict=True):
            wide = _wide(new) if new.dtype.is_floating else tf.int64
            value = tf.cast(new, wide)
            counted = value - tf.cast(old, wide) if variable.aggregation == "sum" else tf.zeros_like(value)
            terms.append(value * tf.cast(examples, wide) if is_mean else tf.where(is_first, value, counted))
        return terms

    def _assign_state(self, distribution: tf.distribute.Strategy, values: Sequence[tf.Tensor]) -> None:
        for variable, value in zip(self._state, values, strict=True):
            distribution.extended.update(variable, lambda copy, new: copy.assign(new), args=(value,), group=False)

    def is_of_xla(self, error: tf.errors.OpError) -> bool:
        """Return whether XLA, and not the network, raised `error`."""
        return self.gradients.is_of_xla(error)

    def means(self) -> dict[str, float]:
        """Returns the mean `loss` of the examples in `totals`, the task's metrics and the network's own."""
        sums = self.totals.read()
        nothing = 1.0 if self.loss_scale is None else np.nan  # the first examples may weigh 0; or no loss was finite
        sums["examples"] = np.where(sums["examples"] > 0, sums["examples"], nothing)
        with np.errstate(invalid="ignore"):
            results = {metric.name: keras.ops.convert_to_numpy(metric.result()) for metric in self._model.metrics}
            return {name: float(value) for name, value in results.items() if np.size(value) == 1} | {
                "loss": float(sums["loss"] / sums["examples"]),
                **self._model.task.all_scores(sums),
            }

    def reset(self) -> None:
        """Resets the means."""
        self.totals.reset()
        for metric in self._model.metrics:
            metric.reset_state()

    def _add(self, sums: dict[str, tf.Tensor], metrics: Sequence[tf.Tensor], finite: tf.Tensor) -> None:
        if self.loss_scale is not None:  # its step is skipped; without scaling, NaN must be seen
            sums = {name: tf.where(finite, value, tf.zeros_like(value)) for name, value in sums.items()}
            metrics = [tf.where(finite, value, tf.zeros_like(value)) for value in metrics]
        self.totals.add(**sums)
        for variable, value in zip(self.gradients.metrics, metrics, strict=True):
            variable.value.assign_add(value)  # by its growth: in one variable for many replicas, each counts once


def _wide(value: tf.Tensor) -> tf.DType:
    return tf.float64 if value.dtype == tf.float64 else tf.float32


def _sum(replica: tf.distribute.ReplicaContext, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sums over the replicas, one reduction a dtype, as collectives pack the tensors of one call."""
    sums: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(value.dtype for value in values):
        places = [index for index, value in enumerate(values) if value.dtype == dtype]
        reduced = replica.all_reduce(tf.distribute.ReduceOp.SUM, [values[index] for index in places])
        sums.update(zip(places, reduced, strict=True))
    return [sums[index] for index in range(len(values))]
