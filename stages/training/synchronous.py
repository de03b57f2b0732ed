"""The engine of every synchronous strategy: k steps in one compiled function."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from stages.collectives import mean_over_workers, others_needed
from stages.data.batches import distributed, training_input
from stages.optimization.xla import choose_jit
from stages.training.engine import Setup
from stages.training.outcome import warn_of_memory
from stages.training.own_steps import OwnSteps
from stages.training.step import TrainStep

CALL_SECONDS = 0.3
"""Length of a call if the number of its steps is chosen: Python takes less than a hundredth of it, and progress is
visible."""


class Synchronous(OwnSteps):
    """Takes steps that all replicas take together, in one loop of TensorFlow."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.scored, self.whole = setup.model, setup.whole
        self.steps_per_call = setup.settings.steps_per_call or 4
        self._is_chosen = setup.settings.steps_per_call is not None
        warn_of_memory(setup.model, setup.strategy, setup.settings, setup.reporter)
        self.is_compiled = choose_jit(setup.settings, setup.strategy, setup.model)
        self.step = TrainStep(setup, self.is_compiled)
        if setup.strategy.in_sync == 1:
            self.step.compile_as_one()
        self.state = self.step.state
        with tf.device("/cpu:0"):
            self._waited = tf.Variable(0.0, dtype=tf.float64)
        self.waited: float | None = 0.0

    def begin(self, first_step: int, epochs: int) -> None:
        setup = self._setup
        size, seed = setup.settings.batch_size, setup.settings.seed
        source = training_input(setup.dataset, size, seed, epochs, first_step, setup.strategy.fixed_shapes)
        self._batches = iter(distributed(setup.strategy.distribution, source))
        self._compiled = _loop(setup.strategy.distribution, self.step, self._waited)

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        with others_needed(f"at step {first_step} or soon after"):
            self._compiled(self._batches, tf.constant(first_step, tf.int64), tf.constant(steps))
            self.waited = float(self._waited.numpy())
            return self.step.means()

    def adapt(self, seconds: float) -> None:
        """Choose `steps_per_call` once, unless the settings have it."""
        if not self._is_chosen:
            # Workers with different numbers of steps would wait for each other forever.
            self.steps_per_call = max(int(CALL_SECONDS / mean_over_workers(self._setup.strategy, seconds)), 1)
            self._is_chosen = True

    def refresh(self) -> None:
        """The weights are here."""


# A function, not a method: a function that refers to `self` would leave an iterator and its batches to the garbage
# collector. No AutoGraph: rewriting a single loop takes as long as tracing it.
def _loop(distribution: tf.distribute.Strategy, step: TrainStep, waited: tf.Variable) -> Any:
    """Return a function that takes steps with the batches of an iterator, and measures how long it waits for them."""
    clock = _clock()

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

    return compiled


def _clock() -> Callable[[], tf.Tensor]:
    """Return an operation for the time, in seconds: float64 []."""
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:  # only deterministic operations are allowed, which it is not
        return lambda: tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])
    return tf.timestamp
