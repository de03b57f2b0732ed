"""The runs and sweeps in `outputs/` as a table."""

import csv
from collections.abc import Sequence
from contextlib import suppress

from rich.table import Table

from pipeline.execute.facts import label
from pipeline.paths import shorter
from pipeline.sweep.select import Entry
from stages.errors import printable

WIDE = 160
"""Columns of a terminal from which the folders are shown too."""


def as_table(entries: Sequence[Entry], is_wide: bool) -> Table:
    """Return one row per run and sweep; a sweep is shown with the result of its best combination.

    Args:
        entries: The runs and sweeps.
        is_wide: Whether to show their folders too.
    """
    results = [_result(entry) for entry in entries]
    names = list(dict.fromkeys(name for result in results for name in result))
    table = Table(box=None, pad_edge=False)
    for name in ("id", "status", "run", "started"):
        table.add_column(name, no_wrap=True)
    for name in ("s", *(name.replace("best_", "").replace("/", " ") for name in names)):
        table.add_column(printable(name), justify="right")
    if is_wide:
        table.add_column("folder", overflow="fold")
    for entry, result in zip(entries, results, strict=True):
        run = entry.summary
        title = {"run": f"{run.name} {label(run.overrides, run.choices)}", "sweep": f"sweep of {run.name}"}.get(
            entry.kind, f"└ {label(run.overrides, run.choices)}"
        )
        table.add_row(
            printable((run.run_id or (entry.folder.name[-8:] if entry.kind == "run" else ""))[:8]),
            entry.status,
            printable(title.strip()),
            f"{entry.started:%Y-%m-%d %H:%M}" if is_wide else f"{entry.started:%m-%d %H:%M}",
            f"{run.seconds:.0f}" if run.seconds else "",
            *(f"{result[name]:.4g}" if name in result else "" for name in names),
            *([printable(shorter(entry.folder))] if is_wide else []),
        )
    return table


def _result(entry: Entry) -> dict[str, float]:
    """Return the best validation metric and the first test metric of a run, or of the winner of a sweep."""
    metrics = dict(entry.summary.metrics)
    if entry.kind == "sweep" and (table := entry.folder / "comparison.csv").is_file():
        with suppress(OSError, ValueError, TypeError, csv.Error), table.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("best") == "true"]
            metrics = {name: float(text) for row in rows[:1] for name, text in row.items() if "/" in name and text}
    validation = entry.validation or next((name for name in metrics if name.startswith("val/best_")), "")
    tests = [name for name in metrics if name.startswith("test/")]  # those of a sweep are in the order of its columns
    tested = min(tests, key=lambda name: name != f"test/{entry.summary.primary}", default="")
    return {name: metrics[name] for name in (validation, tested) if name in metrics}
