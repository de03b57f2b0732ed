"""Loss and confusion matrix of a model on a split, under any synchronous strategy."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from stages.data.batches import Batch, distributed, evaluation_input, steps_per_epoch
from stages.distribution.accumulators import Totals
from stages.images import own_errors
from stages.networks.inference_memory import scoring_batch
from stages.optimization.losses import cross_entropy
from stages.results import Model, Split, Strategy
from stages.safe_places import safe_place

LONGEST_CALL_SECONDS = 1.0
"""About how long a call of the compiled function takes: between calls a signal is heard."""


@dataclass(frozen=True)
class Scores:
    """loss: mean over the examples; confusion: int64 [classes, classes], rows are true classes."""

    loss: float
    confusion: np.ndarray

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / self.confusion.sum())


class Scorer:
    """Scores `model`; the function is traced once and serves every split of the same image size."""

    def __init__(self, strategy: Strategy, model: Model, num_classes: int) -> None:
        self._strategy = strategy.distribution
        if strategy.coordinator is not None:  # the chief scores, on a copy of the model that it has
            self._strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        self._fixed_shapes = strategy.fixed_shapes
        self._network = model.network
        self._at_most = scoring_batch(model.network, None if strategy.coordinator else strategy)
        self._loss = cross_entropy(model.outputs)
        self._num_classes = num_classes
        with self._strategy.scope():
            self._totals = Totals(loss=(), examples=(), confusion=(num_classes, num_classes))
        self._compiled = tf.function(self._steps, reduce_retracing=True)

    def score(self, split: Split, batch_size: int, between: Callable[[], None] = safe_place) -> Scores:
        """Returns the scores on `split`, every example counted once.

        Args:
            batch_size: examples at a time, over all replicas; fewer where they exceed `memory.SCORING_BYTES`.
            between: is called about every second; it may raise to end the scoring.
        """
        batch_size = min(batch_size, self._at_most)
        self._totals.reset()
        batches = iter(distributed(self._strategy, evaluation_input(split, batch_size, self._fixed_shapes)))
        left, together = steps_per_epoch(split, batch_size), 1
        while left:
            steps, began = min(together, left), time.perf_counter()
            with own_errors(split.images):
                self._compiled(batches, tf.constant(steps, tf.int64))
            left -= steps
            together = max(int(steps * LONGEST_CALL_SECONDS / (time.perf_counter() - began)), 1)
            between()
        sums = self._totals.read()
        return Scores(float(sums["loss"] / sums["examples"]), np.rint(sums["confusion"]).astype(np.int64))

    def _steps(self, batches: tf.data.Iterator, steps: tf.Tensor) -> None:
        for _ in tf.range(steps):
            self._strategy.run(self._step, args=(next(batches),))

    @tf.autograph.experimental.do_not_convert  # no control flow of Python's on tensors: tracing takes half the time
    def _step(self, batch: Batch) -> None:
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
