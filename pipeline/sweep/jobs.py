"""Jobs of a sweep: their names, and their entries in its index."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.config.experiment import Experiment
from pipeline.paths import shorter
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.redaction import redact_overrides


@dataclass
class SweepJob:
    """One job of a sweep."""

    number: int  # from 1
    label: str  # the overrides that tell it from the other jobs, without secrets
    experiment: Experiment
    overrides: tuple[str, ...]  # as Hydra composed them
    exit_code: int | None = None  # None before it has ended
    reason: str | None = None  # why its process has refused it, before a run of it began
    only_trains: bool = False
    finishes: bool = False  # it runs the stages after training of the best job, whose number it has
    finished_by: str | None = None  # of the best job: the folder of the one that does

    @property
    def folder(self) -> str:
        return f"{self.number}_{slug(self.label)}" if not self.finishes else f"best_{self.number}"

    @cached_property
    def shown(self) -> list[str]:
        """The overrides as they were typed, without secrets."""
        return typed(self.overrides)

    @cached_property
    def identity(self) -> str:
        return identity(self.experiment)

    @cached_property
    def sources(self) -> Sources:
        return sources(self.experiment)

    @property
    def entry(self) -> dict[str, Any]:
        """The job in the index of its sweep."""
        facts = {
            "number": self.number,
            "folder": self.folder,
            "overrides": self.shown,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "finished_by": self.finished_by,
            "config_dirs": [shorter(folder) for folder in self.experiment.config_dirs] or None,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


def typed(overrides: Sequence[str]) -> list[str]:
    """Return overrides as they were typed: without Hydra's escapes, and without secrets."""
    return redact_overrides([re.sub(r"\\(.)", r"\1", text) for text in overrides])


def slug(label: str) -> str:
    """Return `label` as a part of a file name."""
    return re.sub(r"[^\w=.,+-]+", "_", label.replace(" ", ","))[:100]


def job_labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Return for each job the overrides that not all jobs share."""
    shared = set.intersection(*(set(job) for job in overrides)) if overrides else set()
    return [" ".join(text for text in job if text not in shared) or "the only job" for job in overrides]
