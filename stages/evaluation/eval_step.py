"""Loss and metrics of a model on a split, under any synchronous strategy."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.collectives import Totals, has_workers, replicas_here, sum_over_workers
from stages.data.batches import passes, places, steps_per_epoch
from stages.data.examples import first_inputs, network_input
from stages.data.split import Split
from stages.networks.complexity import scoring_batch
from stages.reporter import safe_place
from stages.results import Model, Strategy

LONGEST_CALL_SECONDS = 1.0
"""About how long a call of the compiled function takes: between calls a signal is heard."""

BATCH = 256
"""Examples at a time, over all replicas, where memory suffices: more are hardly faster."""


@dataclass(frozen=True)
class Scores:
    """loss: mean over the examples; metrics: of the task, by name.

    predictions: what `Head.rows` returns for each example, float32 [n, width], in the split's order; None: unasked.
    """

    loss: float
    metrics: Mapping[str, float]
    predictions: np.ndarray | None = None


class Scorer:
    """Scores `model`; each function is traced once and serves every split of the same image size.

    most: examples whose batch takes `SCORING_BYTES` of `stages.networks.complexity`, over all replicas.
    """

    def __init__(self, strategy: Strategy, model: Model) -> None:
        self._whole = strategy
        self._here = strategy
        if strategy.coordinator is not None:  # the chief scores, on a copy of the model that it has
            self._here = Strategy(tf.distribute.OneDeviceStrategy("/cpu:0"), ("/cpu:0",))
        self.most = scoring_batch(model.network, strategy.in_sync)
        self._task = task = model.task
        distribution = self._here.distribution
        with distribution.scope():
            self._totals = Totals(loss=(), examples=(), **task.all_sums)
        self._compiled, self._predicting = (
            _compiled(distribution, model, self._totals, predicts) for predicts in (False, True)
        )
        self._steps_at_once = 1
        self._made: tuple[Split, int, tf.data.Iterator] | None = None

    def score(self, split: Split, batch_size: int, predicts: bool = False) -> Scores:
        """Return the scores on `split`, every example counted once.

        Args:
            batch_size: examples at a time, over all replicas; where they do not fit in memory, half as many.
            predicts: whether predictions are among them, in every worker all.
        """
        while True:
            self._totals.reset()
            try:
                parts = self._run(self._predicting if predicts else self._compiled, split, batch_size)
                break
            except tf.errors.ResourceExhaustedError:
                if batch_size < 2 * self._here.in_sync or has_workers(self._whole):
                    raise
                batch_size = batch_size // 2
        sums = self._totals.read()
        predictions = self._in_order(parts, len(split), batch_size) if predicts else None
        return Scores(float(sums["loss"] / sums["examples"]), self._task.all_scores(sums), predictions)

    def _input(self, split: Split, batch_size: int) -> tf.data.Iterator:
        """Return the batches of a pass; the last one is kept, since a training scores one split after every epoch."""
        if self._made is None or self._made[0] is not split or self._made[1] != batch_size:
            self._made = None  # two at a time would take twice the memory
            self._made = (split, batch_size, passes(self._here, split, batch_size))
            self._steps_at_once = 1
        return self._made[2]

    def _run(self, compiled: Callable[..., Sequence[tf.Tensor]], split: Split, batch_size: int) -> list[Any]:
        """Take the steps of a pass in calls of about a second; return what each call has returned, as arrays."""
        batches, steps, results = self._input(split, batch_size), steps_per_epoch(split, batch_size), []
        while steps:
            count = min(self._steps_at_once, steps)
            began = time.perf_counter()
            outputs = compiled(batches, tf.constant(count))
            results.append([part.numpy() for part in outputs])
            steps = steps - count
            self._steps_at_once = max(int(count * LONGEST_CALL_SECONDS / (time.perf_counter() - began)), 1)
            safe_place()
        return results

    def _in_order(self, parts: Sequence[Sequence[np.ndarray]], count: int, batch_size: int) -> np.ndarray:
        """Return the predictions of the `count` examples of a split, float32 [count, width], whoever computed them.

        Args:
            parts: of each call, for each replica of this process, the outputs of its rows of each step.
        """
        here, of = replicas_here(self._here.distribution)
        values = np.zeros((count, self._task.head.width), np.float32)
        for replica, outputs in zip(here, zip(*parts, strict=True), strict=True):
            to = places(count, batch_size, replica, of, self._here.fixed_shapes)
            computed = np.concatenate(outputs)
            values[to[to >= 0]] = computed[to >= 0]
        return sum_over_workers(self._whole, values)  # one has an example, the others zeros


def predictions_of(model: Model, split: Split, rows: np.ndarray) -> np.ndarray:
    """Return `Head.predictions` of some examples of a split, by their rows, int64 [n]; of few, as they are kept."""
    size, parts = scoring_batch(model.network), []
    for start in range(0, len(rows), size):
        some = split.take(rows[start : start + size])
        outputs = model.network(first_inputs(some, len(some)), training=False)
        parts.append(model.task.head.predictions(outputs).numpy())
        safe_place()
    return np.concatenate(parts)


# No method: a function that refers to an object that holds an iterator leaves that to the garbage collector.
# No AutoGraph: to rewrite what has one loop takes as long as to trace it.


def _compiled(
    distribution: tf.distribute.Strategy, model: Model, totals: Totals, predicts: bool
) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Return a function that scores the next steps, adding to `totals`.

    Args:
        predicts: whether it returns the predictions of each local replica, float32 [n, width].
    """
    network, task = model.network, model.task

    def score(batch: Example) -> tf.Tensor:
        """Add a replica's batch; return the network's outputs, or the task's predictions, float32 [b, width]."""
        inputs, targets, weights, _ = batch
        outputs = network(network_input(inputs), training=False)
        examples = tf.reduce_sum(weights)
        losses = tf.cast(task.loss.of_each(targets, outputs), tf.float64)
        loss = tf.reduce_sum(losses * tf.cast(weights, tf.float64))
        for penalty in network.losses:
            loss += tf.cast(penalty, tf.float64) * tf.cast(examples, tf.float64)
        totals.add(loss=loss, examples=examples, **task.add_all(targets, outputs, weights))
        return task.head.rows(targets, outputs) if predicts else outputs

    @tf.function(reduce_retracing=True, autograph=False)
    def compiled(batches: tf.data.Iterator, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
        def take(done: tf.Tensor, *kept: tf.TensorArray) -> tuple[Any, ...]:
            outputs = distribution.run(score, args=(next(batches),))
            parts = distribution.experimental_local_results(outputs) if predicts else ()
            return done + 1, *(array.write(done, part) for array, part in zip(kept, parts, strict=True))

        def array() -> tf.TensorArray:
            shape = (None, task.head.width)
            return tf.TensorArray(tf.float32, steps, infer_shape=False, element_shape=shape)

        arrays = [array() for _ in replicas_here(distribution)[0]] if predicts else []
        # Counted in int32, which TensorFlow keeps on the host, where the condition is read. int64 is on the GPU.
        _, *kept = tf.while_loop(lambda done, *_: done < steps, take, (tf.constant(0), *arrays))
        return tuple(array.concat() for array in kept)

    return compiled
