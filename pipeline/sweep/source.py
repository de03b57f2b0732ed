"""Interfaces of sweeps and searches: the plan before any job begins, and a source that returns the jobs one by one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE
from pipeline.provenance.source_digest import Sources
from pipeline.runs.summary import Summary
from pipeline.sweep.jobs import SweepJob


class JobSource(Protocol):
    """The jobs of a sweep that has begun."""

    @property
    def jobs(self) -> Sequence[SweepJob]:
        """The jobs so far, in order, including jobs of earlier commands."""

    def next(self) -> SweepJob | None:
        """Return the next job to run; None if there is none now.

        Raises:
            UserError: If the sweep cannot continue.
        """

    def tell(self, job: SweepJob, run: Summary | None) -> None:
        """Receive the result of a job, which has ended with its `exit_code`.

        Args:
            job: The job.
            run: The summary of its run; None if the run has not begun.

        Raises:
            UserError: If the next jobs would fail for the same reason.
        """

    @property
    def has_succeeded(self) -> bool:
        """Whether the sweep has its result, once all jobs have ended."""

    def facts(self) -> Mapping[str, Any]:
        """Return the facts that the index of the sweep contains in addition to its jobs."""

    def draw(self) -> list[Path]:
        """Draw pictures of the results; return their files."""


class Work(Protocol):
    """The jobs that a command asks for, all of them checked. Nothing has been recorded yet."""

    kind: str
    """`sweep` or `search`."""
    unit: str
    """The word for a job: `job` or `trial`."""
    is_adaptive: bool
    """Whether a job depends on the results of earlier jobs."""
    name: str
    """The name of the tracked run."""
    settings: SweepSettings
    experiments: Sequence[Experiment]
    """The configurations that are known, at least one. All jobs have the same `outputs`, `tracking` and `resume`."""
    total: int
    """The largest number of jobs."""
    sources: Sources
    """The source code that the results depend on."""
    identity: str
    """Digest of the settings. Commands with equal ones run the same jobs."""

    def show(self, console: Console) -> None:
        """Print the plan, for `dry_run=true`."""

    def announce(self, console: Console, is_new: bool) -> None:
        """Print what the sweep will do, after the checks that only a new one needs.

        Raises:
            UserError: If it cannot begin.
        """

    def begin(self, folder: Path, console: Console) -> JobSource:
        """Return the jobs of the sweep in `folder`, including jobs of earlier commands."""


class KnownJobs:
    """A job source whose jobs are all known when it begins."""

    def __init__(self, jobs: Sequence[SweepJob]) -> None:
        self.jobs = jobs
        self._rest = iter(jobs)

    def next(self) -> SweepJob | None:
        return next((job for job in self._rest if job.exit_code is None), None)

    def tell(self, job: SweepJob, run: Summary | None) -> None:
        """Do nothing: no other job depends on the result."""

    @property
    def has_succeeded(self) -> bool:
        return all(job.exit_code == DONE for job in self.jobs)

    def facts(self) -> Mapping[str, Any]:
        return {}

    def draw(self) -> list[Path]:
        return []
