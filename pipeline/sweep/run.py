"""Sweeps over values that are known: all jobs are composed and checked before the first of them runs."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

from pipeline.checks.combinations import read_composed
from pipeline.checks.registry import check_rules, check_surroundings
from pipeline.command_line.compose import Composed
from pipeline.config.debug import debugged
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE, SWEEP_FAILED
from pipeline.planning.earlier import forked_run, other_run, plan_of
from pipeline.planning.job import Job
from pipeline.provenance.source_digest import Sources
from pipeline.run.facts import show_plan, sweep_name
from pipeline.run_folder.runs import has_finished
from pipeline.sweep.index import SweepJob, job_labels, typed
from pipeline.sweep.session import Session
from pipeline.system import signals
from stages.errors import UserError

SHARED = ("dry_run", "outputs", "resume", "tracking", "sweep")
"""Settings that all jobs of a sweep have in common."""


class Sweep(Session):
    """The jobs of a sweep: all of them are known."""

    kind = "sweep"
    unit = "job"
    is_adaptive = False

    def __init__(self, jobs: Sequence[SweepJob], settings: SweepSettings, console: Console) -> None:
        super().__init__(settings, console)
        self.experiments = [job.experiment for job in jobs]
        for job in jobs:
            self.add(job)
        self.name = sweep_name([job.label for job in jobs])
        self.total = len(jobs)
        self.sources = Sources({name: content for job in jobs for name, content in job.sources.files.items()})
        facts = json.dumps([(job.folder, job.identity) for job in jobs])
        self.identity = hashlib.sha256(facts.encode()).hexdigest()[:32]

    def show(self) -> None:
        self.console.log(f"{self.total:,} jobs")
        for job in self.jobs:
            self.console.log(f"\n{job.label}")
            show_plan(job.experiment, plan_of(job.experiment), self.console)

    def begin(self, is_new: bool) -> None:
        for experiment in self.experiments if is_new else ():
            forked_run(experiment)

    def draw(self) -> Iterator[Job]:
        left = []
        for made in self.jobs:
            if has_finished(self.folder / made.folder):
                self.say(made, "finished earlier, skipped")
                self.take_over(made)
                made.exit_code = DONE
            else:
                left.append(made)
            signals.check()
        self.write()
        yield from map(self.job, left)

    def exit_code(self) -> int:
        return SWEEP_FAILED if any(job.exit_code != DONE for job in self.jobs) else DONE


def checked(composed: Iterable[Composed], total: int) -> list[SweepJob]:
    """Return the jobs, about `total` in number, once all of them are known to work.

    Files, servers and devices are asked once, as the jobs share `outputs` and `tracking`.

    Raises:
        UserError: where any of the jobs is wrong, or two are the same.
    """
    jobs: list[SweepJob] = []
    identities: dict[str, int] = {}
    first: Experiment | None = None  # as it was composed
    for number, job in enumerate(composed, 1):
        try:
            experiment = read_composed(job)
            first = first or experiment
            for name in SHARED:
                if getattr(experiment, name) != getattr(first, name):
                    raise UserError(f"its {name} is not that of the first job", f"one {name} for the whole sweep")
            check_job(experiment)
            experiment = debugged(experiment)
            if not jobs:
                check_surroundings(experiment)
        except UserError as error:
            raise error.within(f"job {number:,} of {total:,} ({' '.join(typed(job.overrides))})") from error
        made = SweepJob(number, "", experiment, job.overrides)
        before = identities.setdefault(made.identity, number)
        if before != number:
            problem = f"jobs {before} and {number} have the same settings ({' '.join(made.shown)})"
            raise UserError(problem, "each value once")
        jobs.append(made)
    for made, label in zip(jobs, job_labels([made.shown for made in jobs]), strict=True):
        made.label = label
    return jobs


def check_job(experiment: Experiment, surroundings: bool = False) -> None:
    """Raise UserError for the first rule that a job breaks, before any of its sweep begins.

    Args:
        surroundings: see `check_rules`.
    """
    check_rules(experiment, surroundings)
    plan_of(experiment)
    other_run(experiment)
    forked_run(experiment, starts=False)
