"""Runs, jobs and sweeps under `outputs` with the status that they have now, filters of them, and what to compare."""

import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.comparison.comparison import Comparison, compare_runs
from pipeline.comparison.rows import FINISHING, RunRecord, canonical, recorded, with_test
from pipeline.config.names import split_override
from pipeline.paths import age_order
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import Journal
from pipeline.runs.summary import Summary
from pipeline.sweep.index import compare, find_sweep, is_sweep, latest, read_index, sweep_folders
from stages.errors import UserError
from stages.settings.places import is_file_or_folder
from stages.settings.ranges import nearest

_FILTER = re.compile(r"(?P<name>[^=<>]+)(?P<operator>>=|<=|=|>|<)(?P<value>.*)")
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def read_all(outputs: Path, warn: Callable[[str], None] = lambda line: None) -> list[RunRecord]:
    """Return every run, job and sweep under `outputs`, the oldest first.

    Args:
        outputs: The folder of all results.
        warn: Gets a line for each damaged file.
    """
    records = [record_of(run) for run in Runs(outputs, warn).all()]
    for folder in sweep_folders(outputs):
        try:
            index = read_index(folder)
        except UserError as error:
            warn(str(error))
            continue
        journal = Journal(folder)
        name = journal.header.experiment or f"{len(index.jobs)} jobs"
        records.append(recorded(Summary(journal.run_id, index.status, name, folder, {}), "sweep"))
    return sorted(records, key=lambda run: age_order(run.folder))


def record_of(summary: Summary) -> RunRecord:
    """Return the run or job with this summary."""
    return recorded(summary, "job" if is_sweep(summary.folder.parent) else "run")


def values_of(run: RunRecord) -> dict[str, Any]:
    """Return the values that a filter may name: options by their group, overrides by their dotted name, metrics."""
    summary = run.summary
    overrides = dict(split_override(override) for override in summary.overrides if "=" in override)
    own = {"status": run.status, "kind": run.kind, "experiment": summary.name, "seconds": summary.seconds}
    return {"debug": "none", **summary.choices, **overrides, **summary.metrics, **own}


def value_of(run: RunRecord, name: str) -> Any:
    """Return a value by its name, including defaults of settings; None if the run has none."""
    values = values_of(run)
    return values.get(name) if name in values or "/" in name else run.setting(name)  # only metrics have a slash


def select(runs: Sequence[RunRecord], filters: Sequence[str]) -> list[RunRecord]:
    """Return the runs that match every filter.

    Args:
        runs: Runs, jobs and sweeps.
        filters: `name=value` for `status`, `kind`, `experiment`, an option or a setting; `name>number`, `>=`, `<`
            and `<=` for a metric, a number or `seconds`; any other word: the beginning of an id, or part of the
            folder's path.

    Raises:
        UserError: If a text is compared as a number, or no run has such an id, setting or metric.
    """
    for text in filters:
        match = _FILTER.fullmatch(text)
        runs = _filtered(runs, match) if match else _named(runs, text)
    return list(runs)


def _named(runs: Sequence[RunRecord], text: str) -> list[RunRecord]:
    matching = [run for run in runs if (run.summary.run_id or "").startswith(text) or text in str(run.folder)]
    if runs and not matching:
        expected = "the beginning of an id, part of a folder's path, or a filter such as status=FINISHED"
        raise UserError(f"no run matches {text}", expected, "python -m pipeline runs")
    return matching


def _filtered(runs: Sequence[RunRecord], match: re.Match[str]) -> list[RunRecord]:
    name, sign, wanted = match.groups()
    with_value = [(run, value) for run in runs if (value := value_of(run, name)) is not None]
    if runs and not with_value:
        known = sorted({known for run in runs for known in values_of(run)})
        near = nearest(name, known) or nearest(name.partition("/")[2], [*known])
        longer = [other for other in known if other.startswith(name)]  # `test/acc`
        meant = shlex.quote(f"{(longer or [near])[0]}{sign}{wanted}") if longer or near else "status=FINISHED"
        known.sort(key=lambda other: not meant.strip("'").startswith(other))
        raise UserError(f"no run has a setting or metric {name}", known, meant)
    if sign == "=":
        return [run for run, value in with_value if canonical(str(value)) == canonical(wanted)]
    try:
        return [run for run, value in with_value if value != "null" and _COMPARE[sign](float(value), float(wanted))]
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
    """Return the comparison that the words of a command ask for, and the folder of the sweep if they name one.

    Args:
        what: The name of a sweep, or names and filters of runs; empty for the last sweep.
        outputs: The folder of all results.
        baseline: See `compare_runs`.
        columns: See `compare_runs`.
        warn: Gets a line for each damaged file.

    Raises:
        UserError: If a word matches no sweep or run.
    """
    sweep = find_sweep(what[0], outputs) if len(what) == 1 else None if what else latest(outputs)
    if sweep is not None:
        return sweep, compare(sweep, baseline, columns)
    runs = _runs(what, outputs, warn)
    return None, compare_runs(f"{len(runs)} run{'s' * (len(runs) != 1)}", runs, baseline, columns)


def _runs(words: Sequence[str], outputs: Path, warn: Callable[[str], None]) -> list[RunRecord]:
    """Return the runs that are named, or all, if they match every filter. The name of a sweep means its jobs.

    The results of a run that finishes a job belong to the job, unless that run is named itself.
    """
    filters = [word for word in words if re.search(r"[=<>]", word) and not is_file_or_folder(word)]
    runs = Runs(outputs, warn)
    names = [word for word in words if word not in filters]
    named = [run for word in names for run in _meant(word, runs)] if names else runs.all()
    different = {  # a run that is named twice is one
        run.folder: with_test(run) for run in named if names or not run.folder.name.startswith(FINISHING)
    }
    selected = select([record_of(run) for run in different.values()], filters)
    if not selected:
        raise UserError("no run matches", "a sweep, runs, or filters of runs", "python -m pipeline runs")
    return [replace(run, number=number) for number, run in enumerate(selected, 1)]


def _meant(word: str, runs: Runs) -> list[Summary]:
    """Return the run, or the runs of the jobs of the sweep, that a word means."""
    if (sweep := find_sweep(word, runs.outputs)) is None:
        return [runs.find(word)]
    summaries = (RunFolder(sweep / job["folder"]).read(runs.warn) for job in read_index(sweep).jobs)
    return [run for run in summaries if run is not None]
