"""`python -m pipeline.runs`: the runs and sweeps in `outputs/` as a table."""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console as RichConsole
from rich.table import Table

from pipeline.command_line.command import Command, print_warning, run_command, say
from pipeline.paths import shorter
from pipeline.run.facts import label
from pipeline.sweep.select import Entry, read_entries, select
from stages.errors import printable

LONGEST_LINE = 10_000
"""Characters of a line where no terminal limits it: a run is one line, for programs to read."""

WIDE = 160
"""Columns from which on the folders are shown, too."""

FILTERS = """filters:
  status=FINISHED  strategy=mirrored  train.epochs=5  'test/accuracy>0.9'  'seconds<60'  <beginning of an id>

Settings that were not given on the command line have their default values.
The status INTERRUPTED means that the run's process died; the command that started it resumes it."""


def _list(options: argparse.Namespace) -> int:
    entries = select(read_entries(options.outputs, print_warning), options.filter)
    if options.json:
        print(json.dumps([entry.as_dict() for entry in entries], indent=2))
    elif entries:
        console = RichConsole(width=None if sys.stdout.isatty() else LONGEST_LINE, markup=False, highlight=False)
        console.print(_table(entries, console.width >= WIDE))
    else:
        rest = " match" if options.filter else ". Try: python -m pipeline"
        say(f"no runs under {shorter(options.outputs)}{rest}")
    return 0


def _table(entries: Sequence[Entry], is_wide: bool) -> Table:
    """Return a row for each entry, a sweep's with the result of its best setting; `is_wide`: with the folders."""
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
    """Return the best validation and the first test metric of a run; of a sweep those of the setting that won."""
    metrics = dict(entry.summary.metrics)
    if entry.kind == "sweep" and (table := entry.folder / "comparison.csv").is_file():
        with suppress(OSError, ValueError, TypeError, csv.Error), table.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("best") == "true"]
            metrics = {name: float(text) for row in rows[:1] for name, text in row.items() if "/" in name and text}
    validation = entry.validation or next((name for name in metrics if name.startswith("val/best_")), "")
    tests = [name for name in metrics if name.startswith("test/")]  # of a sweep in the order of its columns
    tested = min(tests, key=lambda name: name != f"test/{entry.summary.primary}", default="")
    return {name: metrics[name] for name in (validation, tested) if name in metrics}


main = Command("runs", _list, "List the runs and sweeps in outputs/.", FILTERS)
main.add_argument("filter", nargs="*", help="list only runs that match all filters")
main.add_argument("--json", action="store_true", help="print everything that was recorded, as JSON")

if __name__ == "__main__":
    run_command(main)
