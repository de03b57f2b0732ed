"""A sweep over a grid: all of its jobs are composed and checked before the first one runs."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.checks.combinations import read_composed
from pipeline.checks.registry import check_rules, check_surroundings
from pipeline.command_line.compose import Composed
from pipeline.config.debug import debugged
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MOST_JOBS, SweepSettings
from pipeline.console import Console
from pipeline.decide.decision import check
from pipeline.decide.fork import forked_run
from pipeline.decide.reuse import plan_with, reused_run, with_compared_run
from pipeline.execute.facts import show_plan, sweep_name
from pipeline.provenance.source_digest import Sources
from pipeline.sweep.jobs import SweepJob, is_finished_later, job_labels, readable
from pipeline.sweep.source import KnownJobs
from stages.errors import UserError

SHARED = ("dry_run", "outputs", "resume", "tracking", "sweep")
"""Settings that all jobs of a sweep have in common."""


class Grid:
    """The work of a sweep whose jobs are all known. See `Work` for its attributes."""

    kind = "sweep"
    unit = "job"
    is_adaptive = False

    def __init__(self, jobs: Sequence[SweepJob], settings: SweepSettings) -> None:
        """Plan the sweep of `jobs`, at least one, which `checked_jobs` has returned."""
        self.jobs = jobs
        self.settings = settings
        self.experiments: Sequence[Experiment] = [job.experiment for job in jobs]
        self.name = sweep_name([job.label for job in jobs])
        self.total = len(jobs)
        self.sources = Sources({name: content for job in jobs for name, content in job.sources.files.items()})
        facts = json.dumps([(job.folder, job.identity) for job in jobs])
        self.identity = hashlib.sha256(facts.encode()).hexdigest()[:32]
        for job in jobs:
            job.only_trains = is_finished_later(job.experiment, settings)

    def show(self, console: Console) -> None:
        console.log(f"{self.total:,} jobs")
        for job in self.jobs:
            console.log(f"\n{job.label}")
            show_plan(job.experiment, check(job.experiment), console)

    def announce(self, console: Console, is_new: bool) -> None:
        for experiment in self.experiments if is_new else ():
            forked_run(experiment)

    def begin(self, folder: Path, console: Console) -> KnownJobs:
        return KnownJobs(self.jobs)


def checked_jobs(composed: Iterable[Composed], total: int) -> list[SweepJob]:
    """Return the jobs of a sweep, all of them checked.

    Files, servers and devices are checked once, because the jobs share `outputs` and `tracking`.

    Args:
        composed: The configurations of the jobs.
        total: The number of jobs, about.

    Raises:
        UserError: If there are too many, one of them is wrong, or two are the same.
    """
    if total > MOST_JOBS:
        problem = f"these values make {total:,} jobs"
        raise UserError(problem, f"at most {MOST_JOBS:,} jobs, or a search", "sweep=tpe sweep.trials=50")
    jobs: list[SweepJob] = []
    identities: dict[str, int] = {}
    first: Experiment | None = None  # as it was composed
    for number, one in enumerate(composed, 1):
        try:
            experiment = read_composed(one)
            first = first or experiment
            for name in SHARED:
                if getattr(experiment, name) != getattr(first, name):
                    raise UserError(f"its {name} differs from the first job's", f"the same {name} for the whole sweep")
            check_job(experiment)
            experiment = debugged(experiment)
            if not jobs:
                check_surroundings(experiment)
        except UserError as error:
            raise error.within(f"job {number:,} of {total:,} ({' '.join(readable(one.overrides))})") from error
        job = SweepJob(number, "", experiment)
        before = identities.setdefault(job.identity, number)
        if before != number:
            problem = f"jobs {before} and {number} have the same settings ({' '.join(job.shown)})"
            raise UserError(problem, "different values for each job")
        jobs.append(job)
    for job, label in zip(jobs, job_labels([job.shown for job in jobs]), strict=True):
        job.label = label
    return jobs


def check_job(experiment: Experiment, surroundings: bool = False) -> None:
    """Raise UserError for the first rule that a job breaks, before any of its sweep begins.

    Args:
        experiment: The configuration of the job.
        surroundings: See `check_rules`.
    """
    check_rules(experiment, surroundings)
    plan_with(experiment, reused_run(experiment))
    with_compared_run(experiment)
    forked_run(experiment, starts=False)
