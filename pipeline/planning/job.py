"""Jobs: runs to be made."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.checks.registry import check_rules
from pipeline.config.experiment import Experiment
from pipeline.planning.plan import PlannedStage
from pipeline.planning.reuse import plan_of
from pipeline.run_folder.summary import Summary


@dataclass(frozen=True)
class Predecessor:
    """The run that a job starts from: resumed in its own folder, or, as a fork, by its weights in a new run."""

    run: Summary
    is_fork: bool = False


class PrunedError(Exception):
    """A search ends its trial after `epoch`, counted from 1: others do better."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


OnEpoch = Callable[[Mapping[str, float], int], None]
"""Receives the metrics of each epoch by their full names, and its number from 1; may raise PrunedError."""


@dataclass(frozen=True)
class SweepRun:
    """The tracked run of a sweep, the parent of its jobs' runs. run_id: None if the sweep is not tracked."""

    run_id: str | None
    experiment: str


@dataclass(frozen=True)
class Job:
    """One run to be made.

    folder: of the run; None: a new one under `outputs/runs`.
    sweep: the sweep that it belongs to, if any; run_name: what its tracked run is called there: what differs.
    predecessor: the run that is resumed or forked, as `pipeline.planning.resume.resolve` decides; None: from scratch.
    started: when the user began to wait for it; deadline: when `job_timeout_seconds` is reached. Both in seconds of
        `time.monotonic()`.
    on_epoch: of a search's trial.
    tags: of its tracked run, about where it runs. is_supervised: another process has locked the folder for this one.
    """

    experiment: Experiment
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    sweep: SweepRun | None = None
    predecessor: Predecessor | None = None
    started: float = field(default_factory=time.monotonic)
    deadline: float | None = None
    on_epoch: OnEpoch | None = None
    run_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    is_supervised: bool = False

    @property
    def resumed(self) -> Summary | None:
        """The run that this job resumes, if any."""
        return self.predecessor.run if self.predecessor and not self.predecessor.is_fork else None

    @property
    def forked(self) -> Summary | None:
        """The run from whose weights this job starts a new one, if any."""
        return self.predecessor.run if self.predecessor and self.predecessor.is_fork else None

    def resuming(self, run: Summary | None) -> "Job":
        """Returns this job, resuming `run` in its folder; unchanged for None."""
        if run is None:
            return self
        return replace(self, folder=self.folder or Path(run.folder), predecessor=Predecessor(run))


def prepare(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Returns the plan of an experiment, after all checks.

    Raises:
        UserError: before TensorFlow is imported and before anything is recorded.
    """
    check_rules(experiment)
    return plan_of(experiment)
