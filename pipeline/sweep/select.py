"""Runs, jobs and sweeps under `outputs` with the status that they have now, filters of them, and what to compare."""

import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.comparison.comparison import Comparison, compare_runs
from pipeline.comparison.rows import FINISHING, ComparedRun, canonical, read_finished, with_test
from pipeline.config.names import split_override
from pipeline.paths import LOCK, NAME_TIME, age_order
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder, current_status
from pipeline.runs.journal import Journal
from pipeline.runs.summary import Summary, best_metric
from pipeline.sweep.index import compare, find_sweep, is_sweep, latest, read_index, sweep_folders
from stages.errors import UserError
from stages.settings.places import is_file_or_folder
from stages.settings.ranges import nearest

_FILTER = re.compile(r"(?P<name>[^=<>]+)(?P<operator>>=|<=|=|>|<)(?P<value>.*)")
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Entry:
    """A run, a job of a sweep, or a sweep, whose summary has its status and its name alone."""

    kind: str  # `run`, `job` or `sweep`
    status: str  # as it is now
    summary: Summary

    @property
    def folder(self) -> Path:
        return Path(self.summary.folder)

    @property
    def started(self) -> datetime:
        """Its beginning, by its name, its journal, or the file that is made at its beginning and never written."""
        with suppress(ValueError):
            return datetime.strptime(self.folder.name.rpartition("-")[0], NAME_TIME).replace(tzinfo=UTC).astimezone()
        for entry in Journal(self.folder).entries:
            if entry.call == "status":
                return datetime.fromtimestamp(entry.arguments["time"] / 1000).astimezone()
        path = self.folder / LOCK
        return datetime.fromtimestamp((path if path.exists() else self.folder).stat().st_mtime).astimezone()

    @property
    def validation(self) -> str | None:
        """The metric of the best epoch, such as `val/best_loss`; None before the first one."""
        name = best_metric((self.summary.weights or {}).get("monitor") or "")
        return name if name in self.summary.metrics else None

    @property
    def values(self) -> dict[str, Any]:
        """Values that a filter may name, by their names: options by their group, overrides by their dotted name."""
        overrides = dict(split_override(override) for override in self.summary.overrides if "=" in override)
        summary = self.summary
        own = {"status": self.status, "kind": self.kind, "experiment": summary.name, "seconds": summary.seconds}
        return {"debug": "none", **summary.choices, **overrides, **summary.metrics, **own}

    def value(self, name: str) -> Any:
        """Return a value by its name; of a setting that was not typed the default. None: the run has none."""
        values = self.values
        if name in values or "/" in name:  # a metric, which no configuration has
            return values.get(name)
        return read_finished(0, self.status, self.summary).setting(name)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON can hold it."""
        finite = {name: value if value - value == 0 else None for name, value in self.summary.metrics.items()}
        own = {"kind": self.kind, "status": self.status, "started": self.started.isoformat(timespec="seconds")}
        names = ("folder", "run_id", "seconds", "error", "choices", "overrides")
        facts = {name: getattr(self.summary, name) for name in names}
        return {**own, "experiment": self.summary.name, **facts, "validation": self.validation, "metrics": finite}


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
        summary = Summary(journal.run_id, index.status, name, str(folder), {})
        entries.append(Entry("sweep", current_status(index.status, folder), summary))
    return sorted(entries, key=lambda entry: age_order(entry.folder))


def run_entry(summary: Summary) -> Entry:
    """Return the entry of a run, from its summary."""
    folder = Path(summary.folder)
    return Entry("job" if is_sweep(folder.parent) else "run", current_status(summary.status, folder), summary)


def select(entries: Sequence[Entry], filters: Sequence[str]) -> list[Entry]:
    """Return the entries that match every filter.

    Args:
        filters: `name=value` for `status`, `kind`, `experiment`, an option or a setting; `name>number`, `>=`, `<`
            and `<=` for a metric, a number or `seconds`; any other word: the beginning of an id, or part of the
            folder's path.

    Raises:
        UserError: where a number is none, or no run has such an id, setting or metric.
    """
    for text in filters:
        match = _FILTER.fullmatch(text)
        entries = _filtered(entries, match) if match else _named(entries, text)
    return list(entries)


def _named(entries: Sequence[Entry], text: str) -> list[Entry]:
    found = [entry for entry in entries if (entry.summary.run_id or "").startswith(text) or text in str(entry.folder)]
    if entries and not found:
        expected = "the beginning of an id, part of a folder's path, or a filter such as status=FINISHED"
        raise UserError(f"no run matches {text}", expected, "python -m pipeline runs")
    return found


def _filtered(entries: Sequence[Entry], match: re.Match[str]) -> list[Entry]:
    name, sign, wanted = match.groups()
    found = [(entry, value) for entry in entries if (value := entry.value(name)) is not None]
    if entries and not found:
        known = sorted({known for entry in entries for known in entry.values})
        near = nearest(name, known) or nearest(name.partition("/")[2], [*known])
        longer = [other for other in known if other.startswith(name)]  # `test/acc`
        meant = shlex.quote(f"{(longer or [near])[0]}{sign}{wanted}") if longer or near else "status=FINISHED"
        known.sort(key=lambda other: not meant.strip("'").startswith(other))
        raise UserError(f"no run has a setting or metric {name}", known, meant)
    if sign == "=":
        return [entry for entry, value in found if canonical(str(value)) == canonical(wanted)]
    try:
        return [entry for entry, value in found if value != "null" and _COMPARE[sign](float(value), float(wanted))]
    except ValueError as error:
        fix = f"'{name}{sign}0.9'"
        raise UserError(f"{match[0]} does not compare two numbers", "a metric name and a number", fix) from error


def compared(
    what: Sequence[str],
    outputs: Path,
    baseline: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    warn: Callable[[str], None] = lambda line: None,
) -> tuple[Path | None, Comparison]:
    """Return the folder of the sweep that the words mean, None where they mean runs, and the comparison.

    Raises:
        UserError: where a word means nothing.
    """
    sweep = find_sweep(what[0], outputs) if len(what) == 1 else None if what else latest(outputs)
    if sweep is not None:
        return sweep, compare(sweep, baseline, columns)
    runs = _runs(what, outputs, warn)
    return None, compare_runs(f"{len(runs)} run{'s' * (len(runs) != 1)}", runs, baseline, columns)


def _runs(words: Sequence[str], outputs: Path, warn: Callable[[str], None]) -> list[ComparedRun]:
    """Return the runs that are named, of a sweep its jobs, or all, as far as they match every filter.

    A run that finishes a job stands for itself only where it is named.
    """
    filters = [word for word in words if re.search(r"[=<>]", word) and not is_file_or_folder(word)]
    runs = Runs(outputs, warn)
    names = [word for word in words if word not in filters]
    named = [run for word in names for run in _meant(word, runs)] if names else runs.all()
    different = {  # a run that is named twice is one
        run.folder: with_test(run) for run in named if names or not Path(run.folder).name.startswith(FINISHING)
    }
    entries = select([run_entry(run) for run in different.values()], filters)
    if not entries:
        raise UserError("no run matches", "a sweep, runs, or filters of runs", "python -m pipeline runs")
    return [read_finished(number, entry.status, entry.summary) for number, entry in enumerate(entries, 1)]


def _meant(word: str, runs: Runs) -> list[Summary]:
    """Return the run, or the runs of the jobs of the sweep, that a word means."""
    if (sweep := find_sweep(word, runs.outputs)) is None:
        return [runs.find(word)]
    found = (RunFolder(sweep / job["folder"]).read(runs.warn) for job in read_index(sweep).jobs)
    return [run for run in found if run is not None]
