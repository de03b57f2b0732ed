"""Asynchronous training under ParameterServerStrategy: workers take steps at their own pace."""

from typing import Any

import tensorflow as tf

from stages.data.batches import WITHOUT_AUTOTUNER, RandomChanges, batch_of_rows, order, steps_per_epoch
from stages.data.examples import SplitReader, gathering, weights_of
from stages.optimization.train_step import Step
from stages.results import Dataset, Strategy
from stages.settings.train import TrainSettings

CALL_SECONDS = 3.0
"""Long enough that workers seldom wait for each other, short enough that progress is seen and a signal is heard."""


class Coordinated:
    """Schedules steps on workers; the unfinished steps of a lost worker go to another.

    A worker holds the training split, and receives the numbers of the examples of each step: every example is trained
    on once an epoch, whichever worker takes it, and again if a worker dies between its update and its answer.

    steps_per_call: as many as take about CALL_SECONDS, after which workers wait for each other.
    """

    def __init__(self, strategy: Strategy, step: Step, dataset: Dataset, settings: TrainSettings) -> None:
        assert strategy.coordinator is not None
        self.step = step
        self._coordinator = strategy.coordinator
        self._dataset = dataset
        self._settings = settings
        self._per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        self.steps_per_call = 8
        self.waited = None  # workers make their batches within a step
        split = dataset.train
        columns = {name: tf.constant(column) for name, column in split.inputs.items()}
        held = columns, tf.constant(split.target_values), weights_of(split)
        once = tf.data.Dataset.from_tensors
        whole = tf.function(lambda: once(held).repeat().with_options(WITHOUT_AUTOTUNER), autograph=False)
        self._splits = iter(self._coordinator.create_per_worker_dataset(whole))
        distribution = strategy.distribution
        size = settings.batch_size
        changes = RandomChanges(dataset, size, settings.seed)

        # No method, as in the loop: the iterator must not be left to the garbage collector.
        @tf.function(reduce_retracing=True)
        def compiled(splits: Any, examples: tf.Tensor, first_step: tf.Tensor) -> None:
            columns, targets, weights = next(splits)
            readers = {name: gathering(column) for name, column in columns.items()}
            held = SplitReader(readers, lambda rows: tf.gather(targets, rows), weights)

            for index in tf.range(-(-tf.size(examples) // size)):
                in_batch = examples[index * size : (index + 1) * size]
                number = first_step + tf.cast(index, tf.int64)
                count = tf.size(in_batch, tf.int64)
                rows = tf.range(count), tf.ones([count], tf.float64)
                batch = batch_of_rows(held, in_batch, rows, number, changes)
                distribution.run(step, args=(batch, number))

        self._compiled = compiled

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Has the workers run `steps` steps of one epoch, and waits for them; returns the means of the epoch so far."""
        size = self._settings.batch_size
        together = self._settings.steps_per_call or 4
        epoch, done = divmod(first_step, self._per_epoch)
        examples = order(len(self._dataset.train), self._settings.seed, tf.constant(epoch, tf.int64))
        for step in range(done, done + steps, together):
            end = min(step + together, done + steps)
            start = tf.constant(epoch * self._per_epoch + step, tf.int64)
            self._coordinator.schedule(self._compiled, (self._splits, examples[step * size : end * size], start))
        self._coordinator.join()
        return self.step.means()

    def adapt(self, seconds: float) -> None:
        """Choose the steps of a call by the seconds that each of the last ones took."""
        self.steps_per_call = max(int(CALL_SECONDS / seconds), 1)
