"""Runs, jobs and sweeps under `outputs` with the status that they have now, and filters of them."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.config.keys import split_override
from pipeline.paths import age_order
from pipeline.run_folder.lock import LOCK, is_locked
from pipeline.run_folder.runs import Runs
from pipeline.run_folder.summary import Summary, best_metric
from pipeline.sweep.index import is_sweep, read_index, sweep_folders
from pipeline.tracking.journal import Journal
from stages.errors import UserError

INTERRUPTED = "INTERRUPTED"
"""Status of a run or sweep that has not ended while no process works on it; the same command resumes it."""

_FILTER = re.compile(r"(?P<name>[^=<>]+)(?P<operator>>=|<=|=|>|<)(?P<value>.*)")
_COMPARE = {"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Entry:
    """A run, a job of a sweep, or a sweep."""

    kind: str  # `run`, `job` or `sweep`
    folder: Path
    status: str
    experiment: str
    started: datetime
    run_id: str | None = None  # that of MLflow; None where it is not tracked
    settings: Mapping[str, str] = field(default_factory=dict)  # options by their group, overrides by their dotted name
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: str | None = None  # the metric of the best epoch, such as `val/best_loss`
    seconds: float = 0.0  # of its last command
    error: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Values that a filter may name, by their names."""
        own = {name: getattr(self, name) for name in ("status", "kind", "experiment", "seconds")}
        return {**self.settings, **self.metrics, **own}

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON can hold it."""
        finite = {name: value if value - value == 0 else None for name, value in self.metrics.items()}
        own = {"folder": str(self.folder), "started": self.started.isoformat(timespec="seconds"), "metrics": finite}
        return {**vars(self), **own, "settings": dict(self.settings)}


def read_entries(outputs: Path, warn: Callable[[str], None] = lambda line: None) -> list[Entry]:
    """Return every run, job and sweep under `outputs`, the oldest first.

    Args:
        warn: gets a line for each damaged file.
    """
    entries = [run_entry(run) for run in Runs(outputs, warn).all()]
    for folder in sweep_folders(outputs):
        try:
            index = read_index(folder)
        except UserError as error:
            warn(str(error))
            continue
        journal = Journal(folder)
        name = journal.store.get("experiment") or f"{len(index.jobs)} jobs"
        status = current_status(index.status, folder)
        entries.append(Entry("sweep", folder, status, name, _started(folder), journal.run_id))
    return sorted(entries, key=lambda entry: age_order(entry.folder))


def run_entry(summary: Summary) -> Entry:
    """Return the entry of a run, from its summary."""
    folder = Path(summary.folder)
    overrides = dict(split_override(override) for override in summary.overrides if "=" in override)
    validation = best_metric((summary.weights or {}).get("monitor", ""))
    return Entry(
        "job" if is_sweep(folder.parent) else "run",
        folder,
        current_status(summary.status, folder),
        summary.name,
        _started(folder),
        summary.run_id,
        {**summary.choices, **overrides},
        summary.metrics,
        validation if validation in summary.metrics else None,
        summary.seconds,
        summary.error,
    )


def current_status(recorded: str, folder: Path) -> str:
    """Return the status of a run or sweep: a recorded RUNNING counts while a process has its folder locked."""
    return INTERRUPTED if recorded == "RUNNING" and not is_locked(folder) else recorded


def _started(folder: Path) -> datetime:
    """Return when a run began, by the file that is made at its beginning and never written."""
    path = folder / LOCK
    return datetime.fromtimestamp((path if path.exists() else folder).stat().st_mtime).astimezone()


def select(entries: Sequence[Entry], filters: Sequence[str]) -> list[Entry]:
    """Return the entries that match every filter.

    Args:
        filters: `name=value` for `status`, `kind`, `experiment`, an option or an override; `name>number`, `>=`, `<`
            and `<=` for a metric or `seconds`; any other word: the beginning of an id, or part of the folder's path.

    Raises:
        UserError: where a number is none, or no run has such an id, setting or metric.
    """
    for text in filters:
        match = _FILTER.fullmatch(text)
        entries = _filtered(entries, match) if match else _named(entries, text)
    return list(entries)


def _named(entries: Sequence[Entry], text: str) -> list[Entry]:
    found = [entry for entry in entries if (entry.run_id or "").startswith(text) or text in str(entry.folder)]
    if entries and not found:
        expected = "the beginning of an id, part of a folder's path, or a filter such as status=FINISHED"
        raise UserError(f"there is no run {text}", expected, "python -m pipeline.runs")
    return found


def _filtered(entries: Sequence[Entry], match: re.Match[str]) -> list[Entry]:
    name, value = match["name"], match["value"]
    known = {known for entry in entries for known in entry.values}
    if entries and name not in known:
        raise UserError(f"no run has a setting or metric {name}", sorted(known), "status=FINISHED")
    convert: type[str] | type[float] = str if match["operator"] == "=" else float
    try:
        wanted = convert(value)
        return [
            entry
            for entry in entries
            if name in entry.values and _COMPARE[match["operator"]](convert(entry.values[name]), wanted)
        ]
    except ValueError as error:
        fix = f"'{name}{match['operator']}0.9'"
        raise UserError(f"{match[0]} does not compare two numbers", "a metric and a number", fix) from error
