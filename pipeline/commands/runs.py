"""`python -m pipeline runs`: list the runs and sweeps in `outputs/`."""

import argparse
import json
import sys

from pipeline.command_line.command import Command, print_warning, say
from pipeline.paths import shorter

LONGEST_LINE = 10_000
"""Width of the table, in characters, if standard output is not a terminal: one line per run, for other programs."""

FILTERS = """filters:
  status=FINISHED  strategy=mirrored  train.epochs=5  'test/accuracy>0.9'  'seconds<60'  <beginning of an id>

Settings that were not given on the command line have their default values.
The status INTERRUPTED means that the run's process died; the command that started it resumes it."""


def _list(options: argparse.Namespace) -> int:
    """Print the runs and sweeps that match the filters."""
    from rich.console import Console

    from pipeline.sweep.listing import WIDE, as_dict, as_table
    from pipeline.sweep.select import read_all, select

    runs = select(read_all(options.outputs, print_warning), options.filter)
    if options.json:
        print(json.dumps([as_dict(run) for run in runs], indent=2))
    elif runs:
        console = Console(width=None if sys.stdout.isatty() else LONGEST_LINE, markup=False, highlight=False)
        console.print(as_table(runs, console.width >= WIDE))
    else:
        rest = " match" if options.filter else ". Try: python -m pipeline"
        say(f"no runs under {shorter(options.outputs)}{rest}")
    return 0


main = Command("runs", _list, "List the runs and sweeps in outputs/.", FILTERS)
main.add_argument("filter", nargs="*", help="list only runs that match all filters")
main.add_argument("--json", action="store_true", help="print everything that was recorded, as JSON")
