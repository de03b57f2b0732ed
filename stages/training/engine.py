"""Engines that take the steps of a training: a loop under synchronous strategies, a coordinator with servers."""

from typing import Protocol

from stages.optimization.train_step import Step
from stages.results import Dataset, Strategy
from stages.settings.train import TrainSettings
from stages.training.loop import Loop
from stages.training.parameter_server import Coordinated


class Engine(Protocol):
    """Takes steps, several in a call.

    steps_per_call: steps that the next call should take.
    waited: seconds that the last call waited for its batches; None where that cannot be measured.
    """

    @property
    def steps_per_call(self) -> int: ...

    @property
    def waited(self) -> float | None: ...

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Takes `steps` steps, the first of which is the run's `first_step`; returns the epoch's means so far."""


def build_engine(strategy: Strategy, step: Step, dataset: Dataset, settings: TrainSettings, first_step: int) -> Engine:
    """Returns the engine for `strategy`, whose next step is the run's `first_step`."""
    if strategy.coordinator is not None:
        return Coordinated(strategy, step, dataset, settings)
    return Loop(strategy, step, dataset, settings, first_step)
