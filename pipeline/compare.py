"""`python -m pipeline.compare`: the jobs of a sweep side by side, as a table, a file and a plot."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console as RichConsole

from pipeline.paths import default_outputs
from pipeline.sweep.comparison import compare, latest, write
from pipeline.system import streams
from stages.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints and writes the comparison that the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser("python -m pipeline.compare", description=__doc__)
    parser.add_argument("sweep", nargs="?", help="a sweep's folder, or its name; the last one if left out")
    parser.add_argument("--outputs", type=Path, default=default_outputs(), help="where runs leave things")
    options = parser.parse_args(arguments)
    try:
        named = Path(options.sweep) if options.sweep else latest(options.outputs)
        folder = named if named.is_dir() else options.outputs / "sweeps" / named
        comparison = compare(folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    RichConsole(width=None if sys.stdout.isatty() else 160, markup=False).print(comparison.table())
    for path in write(comparison, folder):
        print(path)
    return 0


if __name__ == "__main__":
    streams.guard()
    sys.exit(main())
