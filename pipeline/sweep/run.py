"""The jobs of a sweep are composed and checked, all of them before the first one runs."""

from collections.abc import Iterable

from pipeline.checks.combinations import read_composed
from pipeline.checks.registry import check_rules, check_surroundings
from pipeline.command_line.compose import Composed
from pipeline.config.debug import debugged
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MOST_JOBS
from pipeline.decide.fork import forked_run
from pipeline.decide.reuse import plan_with, reused_run, with_compared_run
from pipeline.sweep.index import SweepJob, job_labels, typed
from stages.errors import UserError

SHARED = ("dry_run", "outputs", "resume", "tracking", "sweep")
"""Settings that all jobs of a sweep have in common."""


def checked(composed: Iterable[Composed], total: int) -> list[SweepJob]:
    """Return the jobs, about `total` in number, once all of them are known to work.

    Files, servers and devices are asked once, as the jobs share `outputs` and `tracking`.

    Raises:
        UserError: where there are too many, any of them is wrong, or two are the same.
    """
    if total > MOST_JOBS:
        problem = f"these values make {total:,} jobs"
        raise UserError(problem, f"at most {MOST_JOBS:,} jobs, or a search", "sweep=tpe sweep.trials=50")
    jobs: list[SweepJob] = []
    identities: dict[str, int] = {}
    first: Experiment | None = None  # as it was composed
    for number, job in enumerate(composed, 1):
        try:
            experiment = read_composed(job)
            first = first or experiment
            for name in SHARED:
                if getattr(experiment, name) != getattr(first, name):
                    raise UserError(f"its {name} differs from the first job's", f"the same {name} for the whole sweep")
            check_job(experiment)
            experiment = debugged(experiment)
            if not jobs:
                check_surroundings(experiment)
        except UserError as error:
            raise error.within(f"job {number:,} of {total:,} ({' '.join(typed(job.overrides))})") from error
        made = SweepJob(number, "", experiment)
        before = identities.setdefault(made.identity, number)
        if before != number:
            problem = f"jobs {before} and {number} have the same settings ({' '.join(made.shown)})"
            raise UserError(problem, "different values for each job")
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
    plan_with(experiment, reused_run(experiment))
    with_compared_run(experiment)
    forked_run(experiment, starts=False)
