"""`python -m pipeline.diff RUN RUN`: the differences between two runs."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from pipeline.command_line.command import command_parser, exit_code, print_warning, run_command
from pipeline.comparison.difference import Difference, Pair, difference, source_diff
from pipeline.run_folder.runs import Runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the differences; returns 0 if there are none, 1 if there are any, 2 if a run does not exist."""
    parser = command_parser("diff", __doc__)
    parser.add_argument("run", nargs=2, help="its folder, its folder's name, or the beginning of its id")
    parser.add_argument("--json", action="store_true", help="prints them as JSON: by section and name, both values")
    parser.add_argument("--code", action="store_true", help="prints also the lines of code that differ, as git does")
    options = parser.parse_args(arguments)
    return exit_code(lambda: _compare(options))


def _compare(options: argparse.Namespace) -> int:
    first, second = (Runs(options.outputs, print_warning).find(text) for text in options.run)
    differences = difference(first, second)
    lines = source_diff(Path(first.folder), Path(second.folder)) if options.code else None
    if options.json:
        sections = dict(differences.sections) | ({"lines": lines} if options.code else {})
        print(json.dumps(sections, indent=2, default=str))
    else:
        _print(differences, Path(first.folder).name, Path(second.folder).name)
        if options.code:
            _print_code(lines)
    return 0 if differences.is_empty else 1


def _print(differences: Difference, first: str, second: str) -> None:
    console = RichConsole(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    for section, pairs in differences.sections.items():
        if not pairs:
            console.print(f"{section}: equal")
            continue
        table = Table(title=section, title_justify="left", box=None, pad_edge=False)
        table.add_column("", overflow="fold")
        for run in (first, second):
            table.add_column(run, overflow="fold")
        if section == "metrics":
            table.add_column("difference", justify="right")
        for name, pair in sorted(pairs.items()):
            table.add_row(name, *(_text(value) for value in pair), *([_change(pair)] if section == "metrics" else []))
        console.print(table)
    for section in differences.unknown:
        console.print(f"{section}: not recorded by both runs")


def _print_code(lines: str | None) -> None:
    if lines is None:
        lines = (
            "their lines of code are not available: a commit that is not in this repository, or changes not kept whole"
        )
    print(lines or "their lines of code are equal")


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _change(pair: Pair) -> str:
    first, second = pair
    return "" if first is None or second is None else f"{second - first:+.4g}"


if __name__ == "__main__":
    run_command(main)
