"""A requested run: the input of `decide`, from a command, a sweep or a cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.config.experiment import Experiment
from pipeline.provenance.code_state import CodeState
from pipeline.runs.folder import RunFolder


class PrunedError(Exception):
    """A search ends a trial after `epoch`, counted from 1, because other trials are better."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


OnEpoch = Callable[[Mapping[str, float], int], None]
"""Receives the metrics of an epoch by their full names, and its number from 1; may raise PrunedError."""


@dataclass(frozen=True)
class Part:
    """The place of a run in a sweep."""

    sweep_id: str | None
    """The id of the sweep's tracked run; None if the sweep is not tracked."""
    experiment: str
    """The name of the sweep's experiment in MLflow."""
    code: CodeState | None
    """The state of the repository when the sweep began, if there is one."""
    name: str
    """The name of the run in MLflow: the settings that distinguish it from the other jobs."""
    combination: str = ""
    """The name without the seed."""


@dataclass(frozen=True)
class Job:
    """A requested run."""

    experiment: Experiment
    folder: RunFolder | None = None
    """The run's folder; None means a new folder, or the folder of the run that the command resumes."""
    part: Part | None = None
    """Its place in a sweep; None for a single run."""
    only_trains: bool = False
    """Whether the stages after training are skipped, because another job runs them for the best model."""
    on_epoch: OnEpoch | None = None
    """For a trial of a search: receives the metrics of each epoch, and may end the trial early."""
