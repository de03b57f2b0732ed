"""Loss and metrics of a model on a split, under any synchronous strategy."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from stages.data.batches import places, steps_per_epoch
from stages.data.columns import own_errors
from stages.data.examples import Batch, network_input
from stages.data.split import Split
from stages.data.step_input import passes
from stages.distribution.collectives import Totals, has_workers, replicas_here, sum_over_workers
from stages.networks.complexity import scoring_batch
from stages.results import Model, Strategy
from stages.safe_places import safe_place

LONGEST_CALL_SECONDS = 1.0
"""About how long a call of the compiled function takes: between calls a signal is heard."""

BATCH = 256
"""Examples at a time, over all replicas, where memory suffices: more are hardly faster."""

CHUNK_BYTES = 2**24
"""Of predictions that are in memory before they are handed on."""

Sink = Callable[[np.ndarray], None]
"""Takes what `Task.predict` returns for the next n examples of a split, float32 [n, width]."""


@dataclass(frozen=True)
class Scores:
    """loss: mean over the examples; metrics: of the task, by name; tables: its tables, such as `confusion`."""

    loss: float
    metrics: Mapping[str, float]
    tables: Mapping[str, np.ndarray]


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
            self._totals = Totals(loss=(), examples=(), **task.all_sums, **task.tables)
        step = _Step(model, self._totals)
        self._compiled, self._predicting = (
            _compiled(distribution, step, task.width, predicts) for predicts in (False, True)
        )
        self._steps_at_once = 1
        self._delivered = 0
        self._made: tuple[Split, int, tf.data.Iterator] | None = None

    def score(
        self,
        split: Split,
        batch_size: int,
        predictions: Sink | None = None,
    ) -> Scores:
        """Returns the scores on `split`, every example counted once.

        Args:
            batch_size: examples at a time, over all replicas; where they do not fit in memory, half as many.
            predictions: gets those of every example once, in the split's order. Of several workers each must have one,
                and each is given all.
        """
        self._delivered = 0
        while True:
            self._totals.reset()
            batches = self._input(split, batch_size)
            try:
                if predictions is None:
                    self._run(self._compiled, batches, steps_per_epoch(split, batch_size), split)
                else:
                    self._predict(batches, split, batch_size, predictions)
                break
            except BaseException as error:
                self._made = None  # an iterator is somewhere within a pass
                is_full = isinstance(error, tf.errors.ResourceExhaustedError)
                if not is_full or batch_size < 2 * self._here.in_sync or has_workers(self._whole):
                    raise
            batch_size = batch_size // 2
        sums = self._totals.read()
        tables = {name: sums[name] for name in self._task.tables}
        return Scores(float(sums["loss"] / sums["examples"]), self._task.all_scores(sums), tables)

    def _predict(self, batches: tf.data.Iterator, split: Split, batch_size: int, predictions: Sink) -> None:
        total = steps_per_epoch(split, batch_size)
        replicas = replicas_here(self._here.distribution)
        chunk = max(CHUNK_BYTES // (4 * batch_size * self._task.width), 1)
        for first in range(0, total, chunk):  # all workers sum their parts after the same steps
            steps = min(chunk, total - first)
            parts = self._run(self._predicting, batches, steps, split)
            count = min(steps * batch_size, len(split) - first * batch_size)
            values = self._in_order(parts, count, batch_size, replicas)
            values = values[max(self._delivered - first * batch_size, 0) :]  # the rest has been, in larger batches
            predictions(values)
            self._delivered += len(values)

    def _input(self, split: Split, batch_size: int) -> tf.data.Iterator:
        """Returns the batches of a pass; the last one is kept, since a training scores one split after every epoch."""
        if self._made is None or self._made[0] is not split or self._made[1] != batch_size:
            self._made = None  # two at a time would take twice the memory
            self._made = (split, batch_size, passes(self._here, split, batch_size))
            self._steps_at_once = 1
        return self._made[2]

    def _run(
        self,
        compiled: Callable[[tf.data.Iterator, tf.Tensor], Sequence[tf.Tensor]],
        batches: tf.data.Iterator,
        steps: int,
        split: Split,
    ) -> list[list[np.ndarray]]:
        """Takes `steps` steps in calls of about a second; returns what each call has returned, as arrays."""
        results = []
        while steps:
            count = min(self._steps_at_once, steps)
            began = time.perf_counter()
            with own_errors(split.inputs.values()):
                outputs = compiled(batches, tf.constant(count, tf.int64))
                results.append([part.numpy() for part in outputs])
            steps = steps - count
            self._steps_at_once = max(int(count * LONGEST_CALL_SECONDS / (time.perf_counter() - began)), 1)
            safe_place()
        return results

    def _in_order(
        self, parts: Sequence[Sequence[np.ndarray]], count: int, batch_size: int, replicas: tuple[range, int]
    ) -> np.ndarray:
        """Returns the predictions of the `count` examples of a chunk, float32 [count, width], whoever computed them.

        Args:
            parts: of each call, for each replica of this process, the outputs of its rows of each step.
            replicas: those of this process, and how many there are.
        """
        here, of = replicas
        values = np.zeros((count, self._task.width), np.float32)
        for replica, outputs in zip(here, zip(*parts, strict=True), strict=True):
            to = places(count, batch_size, replica, of, self._here.fixed_shapes)
            computed = np.concatenate(outputs)
            values[to[to >= 0]] = computed[to >= 0]
        return sum_over_workers(self._whole, values)  # one has an example, the others zeros


class _Step:
    """Scores a replica's batch."""

    def __init__(self, model: Model, totals: Totals) -> None:
        self._network = model.network
        self._totals = totals
        self._task = model.task

    def add(self, batch: Batch) -> tf.Tensor:
        """Adds to the totals; returns the network's outputs."""
        inputs, targets, weights, _ = batch
        outputs = self._network(network_input(inputs), training=False)
        examples = tf.reduce_sum(weights)
        losses = tf.cast(self._task.loss_of_each(targets, outputs), tf.float64)
        loss = tf.reduce_sum(losses * tf.cast(weights, tf.float64))
        for penalty in self._network.losses:
            loss += tf.cast(penalty, tf.float64) * tf.cast(examples, tf.float64)
        given = targets, outputs, weights
        self._totals.add(loss=loss, examples=examples, **self._task.add_all(*given), **self._task.tabulate(*given))
        return outputs

    def predict(self, batch: Batch) -> tf.Tensor:
        """Returns the task's predictions, float32 [b, width]; adds to the totals."""
        return self._task.predict(self.add(batch))


# No method: a function that refers to an object that holds an iterator leaves that to the garbage collector.
# No AutoGraph: to rewrite what has one loop takes as long as to trace it.


def _compiled(
    distribution: tf.distribute.Strategy, step: _Step, width: int, predicts: bool
) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Returns a function that scores the next steps.

    Args:
        predicts: whether it returns the predictions of each local replica, float32 [n, width].
    """

    @tf.function(reduce_retracing=True, autograph=False)
    def compiled(batches: tf.data.Iterator, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
        def take(done: tf.Tensor, *kept: tf.TensorArray) -> tuple[Any, ...]:
            outputs = distribution.run(step.predict if predicts else step.add, args=(next(batches),))
            parts = distribution.experimental_local_results(outputs) if predicts else ()
            index = tf.cast(done, tf.int32)
            return done + 1, *(array.write(index, part) for array, part in zip(kept, parts, strict=True))

        def array() -> tf.TensorArray:
            shape = (None, width)
            return tf.TensorArray(tf.float32, tf.cast(steps, tf.int32), infer_shape=False, element_shape=shape)

        arrays = [array() for _ in replicas_here(distribution)[0]] if predicts else []
        _, *kept = tf.while_loop(lambda done, *_: done < steps, take, (tf.constant(0, tf.int64), *arrays))
        return tuple(array.concat() for array in kept)

    return compiled
