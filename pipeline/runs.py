"""`python -m pipeline.runs`: the runs and sweeps in `outputs/` as a table."""

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console as RichConsole
from rich.table import Table

from pipeline.command_line.command import command_parser, exit_code, print_warning, run_command
from pipeline.paths import shorter
from pipeline.sweep.select import Entry, read_entries, select
from stages.errors import UserError

LONGEST_LINE = 10_000
"""Characters of a line where no terminal limits it: a run is one line, for programs to read."""

FILTERS = """filters:
  status=FINISHED  strategy=mirrored  train.epochs=5  'test/accuracy>0.9'  'seconds<60'  <beginning of an id>

A run whose process died before its end is INTERRUPTED; the command that started it resumes it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command_parser("runs", __doc__, FILTERS)
    parser.add_argument("filter", nargs="*", help="shows only the runs that match every filter")
    parser.add_argument("--last", type=int, metavar="N", help="shows the last N")
    parser.add_argument("--json", action="store_true", help="prints everything that is known of them as JSON")
    options = parser.parse_args(arguments)
    return exit_code(lambda: _list(options))


def _list(options: argparse.Namespace) -> int:
    if options.last is not None and options.last < 1:
        raise UserError(f"--last={options.last}", "1 run or more", "--last=1")
    entries = select(read_entries(options.outputs, print_warning), options.filter)
    if options.last is not None:
        entries = entries[-options.last :]
    if options.json:
        print(json.dumps([entry.as_dict() for entry in entries], indent=2))
    elif entries:
        RichConsole(width=None if sys.stdout.isatty() else LONGEST_LINE, markup=False).print(_table(entries))
    else:
        rest = " match" if options.filter else ". Try: python -m pipeline"
        print(f"no runs under {shorter(options.outputs)}{rest}")
    return 0


def _table(entries: Sequence[Entry]) -> Table:
    tests = [name for name in ("test/accuracy", "test/loss") if any(name in entry.summary.metrics for entry in entries)]
    table = Table(box=None, pad_edge=False)
    for name in ("id", "status", "experiment", "started"):
        table.add_column(name, no_wrap=name != "experiment")
    for name in ("seconds", "best validation", *tests):
        table.add_column(name, justify="right")
    table.add_column("folder", overflow="fold")
    for entry in entries:
        run = entry.summary
        table.add_row(
            (run.run_id or "")[:8],
            entry.status,
            f"sweep of {run.name}" if entry.kind == "sweep" else run.name,
            f"{entry.started:%Y-%m-%d %H:%M}",
            f"{run.seconds:.0f}" if run.seconds else "",
            f"{entry.validation} {run.metrics[entry.validation]:.4f}" if entry.validation else "",
            *(f"{run.metrics[name]:.4f}" if name in run.metrics else "" for name in tests),
            shorter(entry.folder),
        )
    return table


if __name__ == "__main__":
    run_command(main)
