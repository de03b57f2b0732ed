"""`python -m pipeline.diff RUN RUN`: the differences between two runs."""

import argparse
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.command_line.command import Command, print_warning, run_command, say
from pipeline.config.names import flatten
from pipeline.paths import shorter
from pipeline.provenance.identity import differing
from pipeline.provenance.source_digest import NAME as CODE
from pipeline.records import yaml_text
from pipeline.run_folder.journal import Journal
from pipeline.run_folder.runs import Runs
from pipeline.run_folder.summary import FINGERPRINT, Summary, one_line
from stages.tables import aligned

COMMIT = "mlflow.source.git.commit"
PATCH = "code/diff.patch"

MEASURED = re.compile(r"(seconds|_per_second|milliseconds|_mib|_fraction)$")
"""Ends of the names of metrics that differ between any two runs."""

Pair = tuple[Any, Any]
"""A value in the first run and in the second; None where the run does not have it."""


def difference(first: Summary, second: Summary) -> dict[str, dict[str, Pair]]:
    """Return the values that differ between two runs, by section and name, as the files in their folders have them.

    Returns:
        Sections that both runs have recorded: `settings` (each once, although other groups may refer to it), `code`
        (digests of files, the commit), `packages` (versions of those that affect the results), `data` (the data set's
        fingerprint), `metrics` (the last value of each) and `measurements` (of time, speed and memory).
    """
    facts = [_facts(summary) for summary in (first, second)]
    sections: dict[str, dict[str, Pair]] = {}
    for section in facts[0]:
        before, after = (fact[section] for fact in facts)
        if before and after:
            differ = {name: (before.get(name), after.get(name)) for name in differing(before, after)}
            sections[section] = {
                name: pair for name, pair in differ.items() if differ.get(name.partition(".")[2]) != pair
            }
    return sections


def _facts(summary: Summary) -> dict[str, Mapping[str, Any]]:
    folder = Path(summary.folder)
    code = _read(folder / CODE)
    for entry in Journal(folder).entries:
        given = entry.arguments
        if entry.call == "text" and given["name"] == PATCH:
            code["uncommitted changes"] = f"artifact {PATCH}"
        elif entry.call == "tags" and COMMIT in given["values"]:
            code["commit"] = given["values"][COMMIT]
    return {
        "settings": _read(folder / "config.yaml"),
        "code": code,
        "packages": summary.versions,
        "data": {name: value for name, value in summary.facts.items() if name == FINGERPRINT},
        "metrics": {name: value for name, value in summary.metrics.items() if not MEASURED.search(name)},
        "measurements": {name: value for name, value in summary.metrics.items() if MEASURED.search(name)},
    }


def _read(path: Path) -> dict[str, Any]:
    """Return a file of names and values, YAML or JSON, by dotted names; empty, with a warning, if it cannot be read."""
    try:
        return dict(flatten(yaml.safe_load(yaml_text(path)) or {}))
    except FileNotFoundError:  # the run ended before it had one
        return {}
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        print_warning(f"{shorter(path)} cannot be read and is not compared ({one_line(error)})")
        return {}


def _compare(options: argparse.Namespace) -> int:
    """Print the differences; return 0 if there are none, 1 if there are any."""
    first, second = (Runs(options.outputs, print_warning).find(text) for text in options.run)
    sections = difference(first, second)
    say(f"A  {shorter(Path(first.folder))}\nB  {shorter(Path(second.folder))}")
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


main = Command("diff", _compare, "Show the differences between two runs.")
main.add_argument("run", nargs=2, help="a run: its folder, its folder's name, or the beginning of its id")

if __name__ == "__main__":
    run_command(main)
