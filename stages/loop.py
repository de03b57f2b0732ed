"""The training loop of every synchronous strategy: k steps in one compiled function."""

import math
import statistics
import time

import tensorflow as tf

from stages.agreement import mean_over_workers, others_needed
from stages.batches import training_input
from stages.results import Dataset, Strategy
from stages.settings.train import TrainSettings
from stages.step import Step

PYTHON_SHARE = 0.02
"""How much of the time may go into calling the compiled function, where the number of steps in a call is chosen."""

LONGEST_CALL_SECONDS = 1.0
"""A call that is chosen is no longer, so that progress is seen and a signal is heard."""


class Loop:
    """Takes `step` again and again, with the batches of `dataset` from the run's `first_step` on.

    steps_per_call: how many steps the next call should take.
    """

    def __init__(
        self, strategy: Strategy, step: Step, dataset: Dataset, settings: TrainSettings, first_step: int = 0
    ) -> None:
        self.step, self.steps_per_call = step, settings.steps_per_call or 4
        self._strategy = strategy
        self._is_chosen = settings.steps_per_call is not None
        source = training_input(
            dataset, settings.batch_size, settings.seed, settings.epochs, first_step, strategy.fixed_shapes
        )
        self._batches = iter(strategy.distribution.distribute_datasets_from_function(source))
        self._is_traced = False
        distribution = strategy.distribution

        # No method: a function that referred to `self` would leave the iterator to the garbage collector, which takes
        # many seconds over it now and then.
        @tf.function(reduce_retracing=True)
        def compiled(batches: tf.data.Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> None:
            for offset in tf.range(steps):
                distribution.run(step, args=(next(batches), first_step + offset))

        self._compiled = compiled

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Runs `steps` steps, the first of which is the run's `first_step`; returns the means of the epoch so far."""
        began = time.perf_counter()
        means = self._call(first_step, steps)
        if self._is_traced and not self._is_chosen:
            self._choose((time.perf_counter() - began) / steps)
        self._is_traced = True
        return means

    def _call(self, first_step: int, steps: int) -> dict[str, float]:
        with others_needed(f"at step {first_step} or soon after"):
            self._compiled(self._batches, tf.constant(first_step, tf.int64), tf.constant(steps, tf.int64))
            return self.step.means()

    def _choose(self, step_seconds: float) -> None:
        """Sets `steps_per_call` by what a step costs and what a call without any step does."""
        calls = []
        for _ in range(3):
            began = time.perf_counter()
            self._call(0, 0)
            calls.append(time.perf_counter() - began)
        # Workers that took different numbers would wait for each other for ever.
        call = mean_over_workers(self._strategy, statistics.median(calls))
        step = mean_over_workers(self._strategy, step_seconds)
        longest = max(int(LONGEST_CALL_SECONDS / step), 1)
        self.steps_per_call = min(math.ceil(call / (PYTHON_SHARE * step)), longest)
        self._is_chosen = True
