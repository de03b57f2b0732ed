"""`python -m pipeline compare`: compare runs, name the winner, and report which differences are significant."""

import argparse
import re
import sys
from pathlib import Path

from pipeline.command_line.command import Command, print_warning, say
from pipeline.paths import shorter

EXAMPLES = """what to compare:
  (no argument)                        the jobs of the last sweep
  20261122-101500-4d9eb298 seed=1      the jobs of this sweep (its folder or its name) that match every filter
  4d9eb298 5e1a7c02                    these runs (folders, or beginnings of ids)
  status=FINISHED 'test/accuracy>0.9'  the runs that match every filter, as in `python -m pipeline runs`

Runs that differ only by seed are one row, with their mean and standard deviation. The winner is chosen on validation.
Differences in the primary metric (accuracy, RMSE, …) are measured from the baseline on the same test examples."""


def _compare(options: argparse.Namespace) -> int:
    """Print the comparison and write its files."""
    from rich.console import Console

    from pipeline.comparison.report import show, write
    from pipeline.sweep.select import compared

    to = Path(options.to).expanduser() if options.to else None
    baseline = _baseline(options.baseline)
    columns = [name for name in (options.columns or "").split(",") if name]
    sweep, comparison = compared(options.what, options.outputs, baseline, columns, print_warning)
    show(comparison, Console(width=None if sys.stdout.isatty() else 80, markup=False, highlight=False))
    # The folder of a sweep only gets the files of its standard comparison, which are also in MLflow.
    folder = to or (sweep if baseline is None and not columns else None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in write(comparison, folder):
            say(shorter(path))
    return 0


def _baseline(text: str | None) -> dict[str, str] | None:
    """Return the settings of the baseline from `name=value,name=value`."""
    if text is None:
        return None
    parts = [part.partition("=") for part in re.split(r",(?=[\w./+~]+=)", text)]
    return {name.strip(): value.strip() for name, _, value in parts}


main = Command("compare", _compare, "Compare the jobs of a sweep, or any runs.", EXAMPLES)
main.add_argument("what", nargs="*", help="a sweep, runs, or filters of runs (default: the last sweep)")
main.add_argument(
    "--baseline", metavar="NAME=VALUE,…", help="settings of the baseline (default: the first combination)"
)
main.add_argument("--columns", metavar="METRIC,…", help="metrics to show instead of the standard columns")
main.add_argument("--to", metavar="FOLDER", help="write the files to this folder (default for a sweep: its own folder)")
