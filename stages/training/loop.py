"""The training loop of every synchronous strategy: k steps in one compiled function."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from stages.collectives import mean_over_workers, others_needed
from stages.data.batches import distributed, training_input
from stages.optimization.train_step import Step
from stages.results import Dataset, Strategy
from stages.settings.train import TrainSettings

CALL_SECONDS = 0.3
"""Length of a call where its steps are chosen: its Python takes less than a hundredth of it, and progress is seen."""


class Loop:
    """Takes `step` with the batches of `dataset`, from the run's `first_step` on.

    steps_per_call: steps that the next call should take. waited: seconds that the last one waited for its batches.
    """

    def __init__(
        self, strategy: Strategy, step: Step, dataset: Dataset, settings: TrainSettings, first_step: int = 0
    ) -> None:
        self.step = step
        self.steps_per_call = settings.steps_per_call or 4
        self._strategy = strategy
        self._is_chosen = settings.steps_per_call is not None
        source = training_input(
            dataset, settings.batch_size, settings.seed, settings.epochs, first_step, strategy.fixed_shapes
        )
        distribution = strategy.distribution
        self._batches = iter(distributed(distribution, source))
        clock = _clock()
        with tf.device("/cpu:0"):
            self._waited = waited = tf.Variable(0.0, dtype=tf.float64)
        self.waited = 0.0

        # Not a method: a function that refers to `self` would leave an iterator and its batches to the garbage
        # collector. No AutoGraph: rewriting a single loop takes as long as tracing it.
        @tf.function(reduce_retracing=True, autograph=False)
        def compiled(batches: tf.data.Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> None:
            waited.assign(0.0)

            def batch_in_time() -> Any:
                # A step begins when the previous one is complete, as a graph's loop waits for that.
                began = clock()
                with tf.control_dependencies([began]):
                    batch = next(batches)
                with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                    waited.assign_add(clock() - began)
                return batch

            def take(offset: tf.Tensor) -> tuple[tf.Tensor]:
                distribution.run(step, args=(batch_in_time(), first_step + tf.cast(offset, tf.int64)))
                return (offset + 1,)

            # Counted in int32, which TensorFlow keeps on the host, where the condition is read. int64 is on the GPU.
            tf.while_loop(lambda offset: offset < steps, take, (tf.constant(0),))

        self._compiled = compiled

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Runs `steps` steps, the first of which is the run's `first_step`; returns the means of the epoch so far."""
        with others_needed(f"at step {first_step} or soon after"):
            self._compiled(self._batches, tf.constant(first_step, tf.int64), tf.constant(steps))
            self.waited = float(self._waited.numpy())
            return self.step.means()

    def adapt(self, seconds: float) -> None:
        """Choose the steps of a call, once, by the seconds of a step."""
        if not self._is_chosen:
            # Workers with different numbers of steps would wait for each other forever.
            self.steps_per_call = max(int(CALL_SECONDS / mean_over_workers(self._strategy, seconds)), 1)
            self._is_chosen = True


def _clock() -> Callable[[], tf.Tensor]:
    """Returns an operation for the time, in seconds: float64 []."""
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:  # only deterministic operations are allowed, which it is not
        return lambda: tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])
    return tf.timestamp
