"""Catalog of the runs and sweeps under `outputs`, each with the status that it has now."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.config.keys import split_override
from pipeline.paths import age_order, shorter
from pipeline.run_folder.lock import LOCK, is_locked
from pipeline.run_folder.runs import Runs
from pipeline.run_folder.summary import Summary, best_metric
from pipeline.sweep.index import is_sweep, read_index, sweep_folders
from pipeline.tracking.journal import Journal
from stages.errors import UserError

INTERRUPTED = "INTERRUPTED"
"""Status of a run or sweep that has not ended while no process works on it; the same command resumes it."""

KINDS = ("run", "job", "sweep")
STATUSES = ("RUNNING", "FINISHED", "FAILED", "KILLED", INTERRUPTED)

_FILTER = re.compile(r"(?P<name>[^=<>]+)(?P<operator>>=|<=|=|>|<)(?P<value>.*)")


@dataclass(frozen=True)
class CatalogEntry:
    """A run, a job of a sweep, or a sweep.

    kind: `run`, `job` or `sweep`. run_id: that of MLflow; None where it is not tracked.
    settings: what a filter may name: options by their group, and overrides by their dotted name.
    validation: the metric by which the best epoch was chosen, such as `val/best_loss`; None before the first epoch.
    seconds: those of its last command.
    """

    kind: str
    folder: Path
    status: str
    experiment: str
    started: datetime
    run_id: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: str | None = None
    seconds: float = 0.0
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the entry as JSON can hold it."""
        values = {name: getattr(self, name) for name in ("kind", "status", "experiment", "run_id", "seconds", "error")}
        values |= {"folder": str(self.folder), "started": self.started.isoformat(timespec="seconds")}
        finite = {name: value if value - value == 0 else None for name, value in self.metrics.items()}
        return {**values, "validation": self.validation, "settings": dict(self.settings), "metrics": finite}


def read_catalog(outputs: Path, warn: Callable[[str], None] = lambda line: None) -> list[CatalogEntry]:
    """Returns every run, job and sweep under `outputs`, the oldest first.

    Args:
        warn: gets a line for each damaged file.
    """
    entries = runs_in(outputs, warn)
    entries += [entry for folder in sweep_folders(outputs) if (entry := _sweep(folder, warn)) is not None]
    return sorted(entries, key=lambda entry: age_order(entry.folder))


def runs_in(outputs: Path, warn: Callable[[str], None]) -> list[CatalogEntry]:
    """Returns every run and job under `outputs`, the oldest first; calls `warn` for each damaged file."""
    return [run_entry(run) for run in Runs(outputs, warn).all()]


def run_entry(summary: Summary) -> CatalogEntry:
    """Returns the entry of the run in the folder that `summary` names."""
    folder = Path(summary.folder)
    overrides = dict(split_override(override) for override in summary.overrides if "=" in override)
    validation = best_metric((summary.weights or {}).get("monitor", ""))
    return CatalogEntry(
        "job" if is_sweep(folder.parent) else "run",
        folder,
        status_now(summary.status, folder),
        summary.name,
        _started(folder),
        summary.run_id,
        {**summary.choices, **overrides},
        summary.metrics,
        validation if validation in summary.metrics else None,
        summary.seconds,
        summary.error,
    )


def _sweep(folder: Path, warn: Callable[[str], None]) -> CatalogEntry | None:
    try:
        status, jobs, _ = read_index(folder)
    except UserError as error:
        warn(str(error))
        return None
    journal = Journal(folder)
    experiment = journal.store.get("experiment") or f"{len(jobs)} jobs"
    return CatalogEntry("sweep", folder, status_now(status, folder), experiment, _started(folder), journal.run_id)


def status_now(recorded: str, folder: Path) -> str:
    """Returns the status of a run or sweep: a recorded RUNNING counts while a process has its folder locked."""
    return INTERRUPTED if recorded == "RUNNING" and not is_locked(folder) else recorded


def _started(folder: Path) -> datetime:
    """Returns when a run began, by the file that is made at its beginning and never written."""
    path = folder / LOCK
    return datetime.fromtimestamp((path if path.exists() else folder).stat().st_mtime).astimezone()


def select(entries: Sequence[CatalogEntry], filters: Sequence[str]) -> list[CatalogEntry]:
    """Returns the entries that match every filter.

    Args:
        filters: `name=value` for `status`, `kind`, `experiment`, an option or an override; `name>number`, `>=`, `<`
            and `<=` for a metric or `seconds`; any other word: the beginning of an id, or part of the folder's path.

    Raises:
        UserError: where a number is none, or no run has such an id, setting, metric or status.
    """
    for text in filters:
        match = _FILTER.fullmatch(text)
        if match is None:
            entries = _named(entries, text)
        elif match["operator"] == "=":
            entries = _equal(entries, match["name"], match["value"])
        else:
            entries = _compared(entries, match["name"], match["operator"], match["value"])
    return list(entries)


def _named(entries: Sequence[CatalogEntry], text: str) -> list[CatalogEntry]:
    matching = [entry for entry in entries if (entry.run_id or "").startswith(text) or text in str(entry.folder)]
    if entries and not matching:
        raise UserError(
            f"there is no run {text}",
            "the beginning of an id, part of a folder's path, or a filter such as status=FINISHED",
            "python -m pipeline.runs",
        )
    return matching


def _equal(entries: Sequence[CatalogEntry], name: str, value: str) -> list[CatalogEntry]:
    own = ("status", "kind", "experiment")
    known = {*own, *(setting for entry in entries for setting in entry.settings)}
    if entries and name not in known:
        raise UserError(f"no run has a setting {name}", ", ".join(sorted(known)), "status=FINISHED")
    values = {"status": STATUSES, "kind": KINDS}.get(name)
    if values is not None and value not in values:
        raise UserError(f"{name}={value} is no {name} of a run", values, f"{name}={values[0]}")
    return [
        entry for entry in entries if str(getattr(entry, name) if name in own else entry.settings.get(name)) == value
    ]


def _compared(entries: Sequence[CatalogEntry], name: str, operator: str, value: str) -> list[CatalogEntry]:
    known = {"seconds", *(metric for entry in entries for metric in entry.metrics)}
    if entries and name not in known:
        raise UserError(f"no run has a metric {name}", ", ".join(sorted(known)), "'test/accuracy>0.9'")
    try:
        bound = float(value)
    except ValueError as error:
        raise UserError(
            f"{name}{operator}{value}: {value!r} is no number", "a number", f"'{name}{operator}0.9'"
        ) from error
    compare = {
        ">": float.__gt__,
        ">=": float.__ge__,
        "<": float.__lt__,
        "<=": float.__le__,
    }[operator]
    numbers = [entry.seconds if name == "seconds" else entry.metrics.get(name) for entry in entries]
    return [
        entry for entry, number in zip(entries, numbers, strict=True) if number is not None and compare(number, bound)
    ]


def find_entry(entries: Sequence[CatalogEntry], text: str, outputs: Path) -> CatalogEntry:
    """Returns the run that a user means by its folder, its folder's name or the beginning of its id.

    Raises:
        UserError: where there is none, or several.
    """
    path = Path(text).expanduser().resolve()
    matching = [
        entry
        for entry in entries
        if entry.folder.resolve() == path
        or entry.folder.name == text
        or (len(text) >= 4 and (entry.run_id or "").startswith(text))
    ]
    if len(matching) != 1:
        number = f"{len(matching)} runs" if matching else "no run"
        raise UserError(
            f"{text} is {number} under {shorter(outputs)}",
            "the folder of a run, or the beginning of its id (4 digits or more)",
            "python -m pipeline.runs",
        )
    return matching[0]
