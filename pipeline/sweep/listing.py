"""The runs and sweeps in `outputs/` as a table."""

import csv
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from pipeline.comparison.rows import RunRecord
from pipeline.execute.facts import label
from pipeline.paths import LOCK, NAME_TIME, shorter
from pipeline.runs.journal import Journal
from stages.errors import printable

WIDE = 160
"""Minimum width of a terminal, in characters, at which the table also shows the folders."""


def started(run: RunRecord) -> datetime:
    """Return when a run, job or sweep began.

    Its name or its journal has the time. Otherwise it is the time of the lock, a file that is never written again.
    """
    with suppress(ValueError):
        return datetime.strptime(run.folder.name.rpartition("-")[0], NAME_TIME).replace(tzinfo=UTC).astimezone()
    for entry in Journal(run.folder).entries:
        if entry.call == "status":
            return datetime.fromtimestamp(entry.arguments["time"] / 1000).astimezone()
    path = run.folder / LOCK
    return datetime.fromtimestamp((path if path.exists() else run.folder).stat().st_mtime).astimezone()


def as_dict(run: RunRecord) -> dict[str, Any]:
    """Return everything that is recorded about a run, with values that JSON can represent."""
    finite = {name: value if value - value == 0 else None for name, value in run.metrics.items()}
    own = {"kind": run.kind, "status": run.status, "started": started(run).isoformat(timespec="seconds")}
    names = ("run_id", "seconds", "error", "choices", "overrides")
    facts = {name: getattr(run.summary, name) for name in names}
    own |= {"experiment": run.summary.name, "folder": str(run.folder)}
    return {**own, **facts, "validation": run.validation, "metrics": finite}


def as_table(runs: Sequence[RunRecord], is_wide: bool) -> Table:
    """Return one row per run and sweep; a sweep is shown with the result of its best combination.

    Args:
        runs: The runs, jobs and sweeps.
        is_wide: Whether to show their folders too.
    """
    results = [_result(run) for run in runs]
    names = list(dict.fromkeys(name for result in results for name in result))
    table = Table(box=None, pad_edge=False)
    for name in ("id", "status", "run", "started"):
        table.add_column(name, no_wrap=True)
    for name in ("s", *(name.replace("best_", "").replace("/", " ") for name in names)):
        table.add_column(printable(name), justify="right")
    if is_wide:
        table.add_column("folder", overflow="fold")
    for run, result in zip(runs, results, strict=True):
        summary, began = run.summary, started(run)
        what = label(summary.overrides, summary.choices)
        title = {"run": f"{summary.name} {what}", "sweep": f"sweep of {summary.name}", "job": f"└ {what}"}[run.kind]
        table.add_row(
            printable((summary.run_id or (run.folder.name[-8:] if run.kind == "run" else ""))[:8]),
            run.status,
            printable(title.strip()),
            f"{began:%Y-%m-%d %H:%M}" if is_wide else f"{began:%m-%d %H:%M}",
            f"{summary.seconds:.0f}" if summary.seconds else "",
            *(f"{result[name]:.4g}" if name in result else "" for name in names),
            *([printable(shorter(run.folder))] if is_wide else []),
        )
    return table


def _result(run: RunRecord) -> dict[str, float]:
    """Return the best validation metric and the first test metric of a run, or of the winner of a sweep."""
    metrics = dict(run.metrics)
    if run.kind == "sweep" and (table := run.folder / "comparison.csv").is_file():
        with suppress(OSError, ValueError, TypeError, csv.Error), table.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("best") == "true"]
            metrics = {name: float(text) for row in rows[:1] for name, text in row.items() if "/" in name and text}
    validation = run.validation or next((name for name in metrics if name.startswith("val/best_")), "")
    tests = [name for name in metrics if name.startswith("test/")]  # those of a sweep are in the order of its columns
    tested = min(tests, key=lambda name: name != f"test/{run.summary.primary}", default="")
    return {name: metrics[name] for name in (validation, tested) if name in metrics}
