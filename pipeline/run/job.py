"""A job: what is to be run, and what its end is called."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.checks.registry import check_rules
from pipeline.config.experiment import Experiment
from pipeline.run.plan import PlannedStage, make_plan
from pipeline.run.summary import Summary

DONE, FAILED, WRONG_CONFIGURATION, SWEEP_FAILED = 0, 1, 2, 3
STOPPED = (129, 130, 141, 143)
"""Exit codes of what a signal has ended: SIGHUP, SIGINT, SIGPIPE (its standard output was closed), SIGTERM."""


@dataclass(frozen=True)
class Job:
    """One run to be made.

    folder: of the run; None: a new one under `outputs/runs`.
    parent: the id of the sweep's run, and `mlflow_experiment` its experiment; None where the job is no sweep's.
    started: when the user began to wait for it, in seconds of `time.monotonic()`; None: when it is run.
    deadline: when it is to end by `job_timeout_seconds`, by the same clock.
    resumed: the run in `folder`, if it is to be gone on with; fork: the run from whose weights a new one starts.
    """

    experiment: Experiment
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    parent: str | None = None
    mlflow_experiment: str | None = None
    deadline: float | None = None
    resumed: Summary | None = None
    fork: Summary | None = None
    started: float | None = None


def prepare(experiment: Experiment) -> tuple[PlannedStage, ...]:
    """Returns the plan of an experiment that can work.

    Raises:
        UserError: before TensorFlow is imported and before anything is recorded.
    """
    check_rules(experiment)
    return make_plan(experiment)


def exit_code(codes: Sequence[int]) -> int:
    """Returns the exit code of a sweep whose jobs gave `codes`: that of an interruption, else 3 if any failed."""
    interrupted = [code for code in codes if code in STOPPED]
    return interrupted[0] if interrupted else SWEEP_FAILED if any(codes) else DONE
