"""The jobs of a sweep: their names, their entries in its index, and the jobs that finish the best of them."""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.comparison.rows import FINISHING
from pipeline.config.experiment import Experiment, read
from pipeline.config.names import split_override
from pipeline.config.schemas import SweepSettings
from pipeline.decide.job import OnEpoch
from pipeline.decide.plan import after_training
from pipeline.paths import shorter
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.redaction import redact_overrides
from pipeline.runs.summary import Summary


@dataclass
class SweepJob:
    """One job of a sweep."""

    number: int
    """Its number, counted from 1."""
    label: str
    """The overrides in which it differs from the other jobs, without secrets."""
    experiment: Experiment
    exit_code: int | None = None
    """The exit code; None until it has ended and will not run again."""
    reason: str | None = None
    """The reason why its process refused it before its run began."""
    only_trains: bool = False
    """Whether the stages after training are skipped, because another job may run them later."""
    finishes: bool = False
    """Whether it runs the stages after training for the job with the same number."""
    on_epoch: OnEpoch | None = None
    """For a trial of a search: receives the metrics of each epoch, and may end the trial early."""

    @property
    def folder(self) -> str:
        """The name of its folder, which is in the folder of the sweep."""
        return f"{self.number}_{slug(self.label)}" if not self.finishes else f"{FINISHING}{self.number}"

    @cached_property
    def shown(self) -> list[str]:
        """The overrides as they were typed, without secrets."""
        return readable(self.experiment.overrides)

    @cached_property
    def identity(self) -> str:
        return identity(self.experiment)

    @cached_property
    def sources(self) -> Sources:
        return sources(self.experiment)

    @property
    def entry(self) -> dict[str, Any]:
        """The job's entry in the index of its sweep."""
        facts = {
            "number": self.number,
            "folder": self.folder,
            "overrides": self.shown,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "config_dirs": [shorter(folder) for folder in self.experiment.config_dirs] or None,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    def finishing(self, folder: Path) -> "SweepJob":
        """Return the job that evaluates and exports the model that this one trained, in the sweep `folder`."""
        begins = {"from": after_training(self.experiment)[0], "run": str(folder / self.folder)}
        document = copy.deepcopy(self.experiment.document)
        document.update({**begins, "fork": None, "fork_weights": "best", "resume": "auto"})
        before = self.experiment
        own = [line for line in before.overrides if split_override(line)[0] not in ("fork", "fork_weights")]
        overrides = (*own, *(f"{name}={value}" for name, value in begins.items()))
        experiment = read(document, before.choices, before.config_dirs, overrides)
        return SweepJob(self.number, self.label, experiment, finishes=True)


def is_finished_later(experiment: Experiment, settings: SweepSettings) -> bool:
    """Return whether a job ends with its training, because only the best job runs the stages after it."""
    is_whole = settings.finish == "all" or experiment.from_stage is not None
    return not is_whole and bool(after_training(experiment))


def has_only_trained(job: SweepJob, run: Summary) -> bool:
    """Return whether the finished run of a job lacks the stages after training, although it was not pruned."""
    later = {run.stages[name].status for name in after_training(job.experiment) if name in run.stages}
    return later == {"skipped"} and run.facts.pruned_after_epoch is None


def readable(overrides: Sequence[str]) -> list[str]:
    """Return overrides as the user typed them, without Hydra's escapes and without secrets."""
    return redact_overrides([re.sub(r"\\(.)", r"\1", text) for text in overrides])


def slug(label: str) -> str:
    """Return `label` as part of a file name, at most 100 bytes long."""
    return re.sub(r"[^\w=.,+-]+", "_", label.replace(" ", ",")).encode()[:100].decode(errors="ignore")


def job_labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Return the overrides of each job that not all jobs share."""
    shared = set.intersection(*(set(job) for job in overrides)) if overrides else set()
    return [" ".join(text for text in job if text not in shared) or "the only job" for job in overrides]
