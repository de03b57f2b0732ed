"""The jobs of a sweep: composed and checked together, before the first of them runs."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.checks.no_effect import refuse_unused
from pipeline.checks.registry import check_rules, check_surroundings
from pipeline.command_line.compose import Composed
from pipeline.config.debug import debugged
from pipeline.config.experiment import Experiment, read
from pipeline.config.keys import flatten
from pipeline.config.sweep_settings import MOST_JOBS
from pipeline.console import Console
from pipeline.exit_codes import WRONG_CONFIGURATION
from pipeline.planning.earlier import forked_run, other_run, plan_of
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.redaction import redact, redact_overrides
from pipeline.run import naming
from pipeline.run_folder.summary import best_metric
from stages.errors import UserError

CHECK_NOTE_SECONDS = 2.0
"""Seconds before the first line on how many jobs are checked, and between two of them."""

SHARED = ("dry_run", "max_jobs", "outputs", "resume", "tracking", "sweep")
"""Settings that all jobs of a sweep have in common."""


@dataclass
class SweepJob:
    """One job of a sweep."""

    number: int  # from 1
    label: str  # the overrides that tell it from the other jobs, without secrets
    experiment: Experiment
    overrides: tuple[str, ...]  # as Hydra composed them
    shown: list[str]  # as they were typed, without secrets
    identity: str
    sources: Sources
    exit_code: int | None = None  # None before it has ended
    refused: str | None = None  # why a rule refuses it, where such a job is skipped (`sweep.refused=skip`)
    reason: str | None = None  # why its process has refused it, before a run of it began

    @property
    def folder(self) -> str:
        return f"{self.number}_{slug(self.label)}"

    @property
    def run_name(self) -> str:
        return naming.label(self.label.split(), self.experiment.choices)

    @property
    def entry(self) -> dict[str, Any]:
        """The job in the index of its sweep."""
        entry: dict[str, Any] = {
            "number": self.number,
            "folder": self.folder,
            "overrides": self.shown,
            "identity": self.identity,
            "code": self.sources.digest,
        }
        if self.refused is not None:
            entry |= {"status": "SKIPPED", "reason": self.refused}
        if self.reason is not None:
            entry["reason"] = self.reason
        return entry if self.exit_code is None else {**entry, "exit_code": self.exit_code}


def refuse_too_many(total: int, limit: int) -> None:
    """Raises UserError where a sweep has more jobs than `max_jobs` allows."""
    if total > limit:
        fix = f"max_jobs={total}" if total <= MOST_JOBS else "fewer values of each setting"
        raise UserError(f"the values make {total:,} jobs, and max_jobs={limit}", f"{limit:,} jobs or fewer", fix)


def checked(composed: Iterable[Composed], total: int, console: Console, skips: bool = False) -> list[SweepJob]:
    """Return the jobs, about `total` in number, once all of them are known to work.

    Files, servers and devices are asked once, as the jobs share `outputs` and `tracking`.

    Args:
        skips: whether a job that a rule refuses is marked as refused instead.

    Raises:
        UserError: where any of the jobs is wrong, or all are refused.
    """
    jobs: list[SweepJob] = []
    refusals: list[UserError] = []
    first: Experiment | None = None  # as it was composed
    noted = time.monotonic()
    for number, job in enumerate(composed, 1):
        shown = redact_overrides([re.sub(r"\\(.)", r"\1", text) for text in job.overrides])  # without escapes
        try:
            experiment = read(job.document, job.choices, job.config_dirs)
            first = first or experiment
            _refuse_differing(experiment, first)
            refusal = _refusal(experiment, job)
            if refusal is None:
                experiment = debugged(experiment)
                if len(refusals) == len(jobs):  # the first one that may run
                    check_surroundings(experiment)
            elif skips:
                refusals.append(refusal)
            else:
                raise refusal
        except UserError as error:
            raise error.within(f"job {number:,} of {total:,} ({' '.join(shown)})") from error
        made = SweepJob(number, "", experiment, job.overrides, shown, identity(experiment), sources(experiment))
        if refusal is not None:
            made.exit_code, made.refused = WRONG_CONFIGURATION, str(redact(refusal.problem))
        jobs.append(made)
        if time.monotonic() - noted > CHECK_NOTE_SECONDS:
            noted = time.monotonic()
            console.log(f"checked {number:,} of {total:,} jobs")
    if len(refusals) == len(jobs):
        raise refusals[0].within(f"all {len(refusals)} jobs are refused, the first")
    for made, label in zip(jobs, job_labels([made.shown for made in jobs]), strict=True):
        made.label = label
    _refuse_equal(jobs)
    return jobs


def monitored(experiment: Experiment) -> str:
    """Returns the metric by which training chooses its best epoch, such as `val/best_loss`."""
    monitor = str(getattr(experiment.settings.get("train"), "monitor", "val_loss"))
    return best_metric(monitor) or f"train/{monitor}"


def _refusal(experiment: Experiment, job: Composed) -> UserError | None:
    """Returns the rule that an experiment breaks, if any."""
    try:
        refuse_unused(experiment, job.typed)
        check_job(experiment)
    except UserError as error:
        return error
    return None


def check_job(experiment: Experiment, surroundings: bool = False) -> None:
    """Raises UserError for the first rule that a job breaks, before any of its sweep begins.

    Args:
        surroundings: see `check_rules`.
    """
    check_rules(experiment, surroundings)
    plan_of(experiment)
    other_run(experiment)
    forked_run(experiment, starts=False)


def _refuse_equal(jobs: Sequence[SweepJob]) -> None:
    """Refuse jobs that would train the same twice, or could not be told apart in the sweep's records."""
    for name, reason, expected in (
        ("identity", "have the same settings", "each value once"),
        ("label", "differ in masked settings alone", "a setting whose name is not that of a secret"),
    ):
        first: dict[str, int] = {}
        for made in jobs:
            before = first.setdefault(getattr(made, name), made.number)
            if before != made.number:
                raise UserError(f"jobs {before} and {made.number} {reason} ({' '.join(made.shown)})", expected)


def _refuse_differing(experiment: Experiment, first: Experiment) -> None:
    """Refuses jobs that differ in what a sweep has but once."""
    of_first, of_job = _shared(first), _shared(experiment)
    for name in of_first | of_job:
        value, expected = of_job.get(name), of_first.get(name)
        if value != expected:
            example = _shown(value if expected is None else expected)
            raise UserError(
                f"{name}={_shown(value)}, where the first job has {_shown(expected)}",
                "one for the whole sweep",
                f"{name}={example if redact(example) == example else '<value>'}",
            )


def _shared(experiment: Experiment) -> dict[str, Any]:
    """Returns the settings that all jobs of a sweep have in common, by their names."""
    tracking = {f"tracking.{name}": value for name, value in vars(experiment.tracking).items() if name != "kind"}
    own = {name: getattr(experiment, name) for name in SHARED}
    return dict(flatten({**own, "tracking": experiment.tracking.kind, **tracking}))


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def job_labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns for each job the overrides that not all jobs share."""
    shared = set.intersection(*(set(job) for job in overrides)) if overrides else set()
    return [" ".join(text for text in job if text not in shared) or "the only job" for job in overrides]


def slug(label: str) -> str:
    """Returns `label` as a part of a file name."""
    return re.sub(r"[^\w=.,+-]+", "_", label.replace(" ", ","))[:100]
