"""Loss and confusion matrix of a model on a split, under any synchronous strategy."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from stages.data.batches import Batch, InputFunction, distributed, evaluation_input, places, steps_per_epoch
from stages.distribution.accumulators import Totals
from stages.distribution.collectives import sum_over_workers
from stages.images import Images, own_errors
from stages.networks.inference_memory import scoring_batch
from stages.optimization.losses import cross_entropy
from stages.results import Model, Split, Strategy
from stages.safe_places import safe_place

LONGEST_CALL_SECONDS = 1.0
"""About how long a call of the compiled function takes: between calls a signal is heard."""

CHUNK_BYTES = 2**24
"""Of predictions that are in memory before they are handed on."""

Sink = Callable[[np.ndarray, np.ndarray], None]
"""Takes probabilities, float32 [n, classes], and predicted classes, int32 [n], of the next n examples of a split."""


@dataclass(frozen=True)
class Scores:
    """loss: mean over the examples; confusion: int64 [classes, classes], rows are true classes."""

    loss: float
    confusion: np.ndarray

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / self.confusion.sum())


class Scorer:
    """Scores `model`; each function is traced once and serves every split of the same image size."""

    def __init__(self, strategy: Strategy, model: Model, num_classes: int) -> None:
        self._whole = strategy
        self._strategy = strategy.distribution
        if strategy.coordinator is not None:  # the chief scores, on a copy of the model that it has
            self._strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        self._fixed_shapes = strategy.fixed_shapes
        self._network = model.network
        self._at_most = scoring_batch(model.network, None if strategy.coordinator else strategy)
        self._loss = cross_entropy(model.outputs)
        self._probabilities = tf.identity if model.outputs == "probabilities" else tf.nn.softmax
        self._num_classes = num_classes
        self._steps_at_once = self._replicas_here = 1
        with self._strategy.scope():
            self._totals = Totals(loss=(), examples=(), confusion=(num_classes, num_classes))
        # No AutoGraph: to rewrite what has one loop takes as long as to trace it.
        self._compiled = tf.function(self._steps, reduce_retracing=True, autograph=False)
        self._compiled_with_predictions = tf.function(
            self._steps_with_predictions, reduce_retracing=True, autograph=False
        )
        self._made: tuple[Split, int, _NotedInput, Iterable[Batch]] | None = None

    def score(
        self,
        split: Split,
        batch_size: int,
        between: Callable[[], None] = safe_place,
        predictions: Sink | None = None,
    ) -> Scores:
        """Returns the scores on `split`, every example counted once.

        Args:
            batch_size: examples at a time, over all replicas; fewer where they exceed `memory.SCORING_BYTES`.
            between: is called about every second; it may raise to end the scoring.
            predictions: gets those of every example once, in the split's order. Of several workers each must have one,
                and each is given all.
        """
        batch_size = min(batch_size, self._at_most)
        self._totals.reset()
        self._steps_at_once = 1
        source, made = self._input(split, batch_size)
        batches = iter(made)
        self._replicas_here = len(source.replicas()[0])
        total = steps_per_epoch(split, batch_size)
        if predictions is None:
            self._run(self._compiled, batches, total, split.images, between)
        else:
            chunk = max(CHUNK_BYTES // (4 * batch_size * (self._num_classes + 1)), 1)
            for first in range(0, total, chunk):  # all workers sum their parts after the same steps
                steps = min(chunk, total - first)
                parts = self._run(self._compiled_with_predictions, batches, steps, split.images, between)
                count = min(steps * batch_size, len(split) - first * batch_size)
                values = self._in_order(parts, count, batch_size, source.replicas())
                predictions(values[:, :-1], np.rint(values[:, -1]).astype(np.int32))
        sums = self._totals.read()
        return Scores(float(sums["loss"] / sums["examples"]), np.rint(sums["confusion"]).astype(np.int64))

    def _input(self, split: Split, batch_size: int) -> "tuple[_NotedInput, Iterable[Batch]]":
        """Returns the input of a pass; the last one is kept, since a training scores one split after every epoch."""
        if self._made is None or self._made[0] is not split or self._made[1] != batch_size:
            source = _NotedInput(evaluation_input(split, batch_size, self._fixed_shapes))
            self._made = split, batch_size, source, distributed(self._strategy, source)
        return self._made[2:]

    def _run(
        self,
        compiled: Callable[[tf.data.Iterator, tf.Tensor], Sequence[tf.Tensor] | None],
        batches: tf.data.Iterator,
        steps: int,
        images: Images,
        between: Callable[[], None],
    ) -> list[list[np.ndarray]]:
        """Takes `steps` steps in calls of about a second; returns what each call has returned, as arrays."""
        results = []
        while steps:
            count, began = min(self._steps_at_once, steps), time.perf_counter()
            with own_errors(images):
                outputs = compiled(batches, tf.constant(count, tf.int64))
                results.append([part.numpy() for part in outputs or ()])
            steps -= count
            self._steps_at_once = max(int(count * LONGEST_CALL_SECONDS / (time.perf_counter() - began)), 1)
            between()
        return results

    def _in_order(
        self, parts: Sequence[Sequence[np.ndarray]], count: int, batch_size: int, replicas: tuple[range, int]
    ) -> np.ndarray:
        """Returns the outputs of the `count` examples of a chunk, float32 [count, classes + 1], whoever computed them.

        Args:
            parts: of each call, for each replica of this process, the outputs of its rows of each step.
            replicas: those of this process, and how many there are.
        """
        here, of = replicas
        values = np.zeros((count, self._num_classes + 1), np.float32)
        for replica, outputs in zip(here, zip(*parts, strict=True), strict=True):
            to = places(count, batch_size, replica, of, self._fixed_shapes)
            computed = np.concatenate(outputs)
            values[to[to >= 0]] = computed[to >= 0]
        return sum_over_workers(self._whole, values)  # one has an example, the others zeros

    def _steps(self, batches: tf.data.Iterator, steps: tf.Tensor) -> None:
        def take(done: tf.Tensor) -> tuple[tf.Tensor]:
            self._strategy.run(self._step, args=(next(batches),))
            return (done + 1,)

        tf.while_loop(lambda done: done < steps, take, (tf.constant(0, tf.int64),))

    def _steps_with_predictions(self, batches: tf.data.Iterator, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns for each replica of this process the outputs of its rows in all steps, float32 [n, classes + 1]."""

        def take(done: tf.Tensor, *kept: tf.TensorArray) -> tuple[Any, ...]:
            parts = self._strategy.experimental_local_results(self._strategy.run(self._step, args=(next(batches),)))
            step = tf.cast(done, tf.int32)
            return done + 1, *(array.write(step, part) for array, part in zip(kept, parts, strict=True))

        start = (tf.constant(0, tf.int64), *self._arrays(steps))
        _, *kept = tf.while_loop(lambda done, *_: done < steps, take, start)
        return tuple(array.concat() for array in kept)

    def _arrays(self, steps: tf.Tensor) -> tuple[tf.TensorArray, ...]:
        shape = (None, self._num_classes + 1)
        return tuple(
            tf.TensorArray(tf.float32, tf.cast(steps, tf.int32), infer_shape=False, element_shape=shape)
            for _ in range(self._replicas_here)
        )

    def _step(self, batch: Batch) -> tf.Tensor:
        """Adds to the totals; returns probabilities and, as one more column, the predicted class, float32 [b, …]."""
        images, labels, weights = batch
        outputs = self._network(images, training=False)
        examples = tf.reduce_sum(weights)
        losses = tf.cast(self._loss(labels, outputs), tf.float64)
        loss = tf.reduce_sum(losses * tf.cast(weights, tf.float64))
        for penalty in self._network.losses:
            loss += tf.cast(penalty, tf.float64) * tf.cast(examples, tf.float64)
        predicted = tf.argmax(outputs, axis=-1, output_type=labels.dtype)
        confusion = tf.math.confusion_matrix(labels, predicted, self._num_classes, weights, dtype=tf.float64)
        self._totals.add(loss=loss, examples=examples, confusion=confusion)
        wide = outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)
        probabilities = tf.cast(self._probabilities(wide), tf.float32)
        return tf.concat([probabilities, tf.cast(predicted, tf.float32)[:, tf.newaxis]], axis=1)


class _NotedInput:
    """An input function that notes for which replicas of how many it was called."""

    def __init__(self, source: InputFunction) -> None:
        self._source = source
        self._context = tf.distribute.InputContext()

    def __call__(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        self._context = context
        return self._source(context)

    def replicas(self) -> tuple[range, int]:
        """Returns the replicas that the input serves, and how many there are."""
        count = self._context.num_replicas_in_sync
        here = count // self._context.num_input_pipelines
        first = self._context.input_pipeline_id * here
        return range(first, first + here), count
