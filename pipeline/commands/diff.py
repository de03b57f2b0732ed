"""`python -m pipeline diff RUN RUN`: show the differences between two runs."""

import argparse
import shlex
from typing import Any

from pipeline.command_line.command import Command, print_warning, say
from pipeline.paths import shorter


def _diff(options: argparse.Namespace) -> int:
    """Print the differences; return 0 if there are none, else 1."""
    from pipeline.comparison.difference import difference
    from pipeline.runs.finding import Runs
    from stages.tables import aligned

    first, second = (Runs(options.outputs, print_warning).find(text) for text in options.run)
    sections = difference(first, second, print_warning)
    say(f"A  {shorter(first.folder)}\nB  {shorter(second.folder)}")
    for section, pairs in sections.items():
        rows = [(name, *map(_text, pair)) for name, pair in sorted(pairs.items())]
        say(*["", *aligned([(section, "A", "B"), *rows])] if rows else [f"\n{section}: equal"])
    if all(commits := sections.get("code", {}).get("commit", (None, None))):
        say(f"\nlines: {shlex.join(['git', 'diff', *commits])}")
    return 1 if any(sections.values()) else 0


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


main = Command("diff", _diff, "Show the differences between two runs.")
main.add_argument("run", nargs=2, help="a run: its folder, its folder's name, or the beginning of its id")
