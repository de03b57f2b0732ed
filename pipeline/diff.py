"""`python -m pipeline.diff RUN RUN`: the differences between two runs."""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console as RichConsole
from rich.table import Table

from pipeline.command_line.command import command_parser, exit_code, print_warning, run_command
from pipeline.config.names import flatten
from pipeline.provenance.source_digest import NAME as CODE
from pipeline.run_folder.runs import Runs
from pipeline.run_folder.summary import Summary
from pipeline.tracking.journal import Journal
from stages.settings.places import regular_file

PACKAGES = "environment/packages.txt"

Pair = tuple[Any, Any]
"""A value in the first run and in the second; None where the run does not have it."""


@dataclass(frozen=True)
class Difference:
    """Names with the values of both runs, by section, where they differ.

    unknown: sections that one of the runs has not recorded.
    """

    sections: Mapping[str, Mapping[str, Pair]]
    unknown: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not any(self.sections.values())


def difference(first: Summary, second: Summary) -> Difference:
    """Compare two runs by the files in their folders.

    Returns:
        sections `settings`, `code` (digests of files), `packages` (versions), `data` (the data set's fingerprint) and
        `metrics` (the last value of each).
    """
    facts = [_facts(summary) for summary in (first, second)]
    if not all(fact["packages"] for fact in facts):  # only a tracked run has the whole list
        facts = [{**fact, "packages": run.versions} for fact, run in zip(facts, (first, second), strict=True)]
    names = ("settings", "code", "packages", "data", "metrics")
    unknown = tuple(name for name in names if any(not fact[name] for fact in facts))
    sections = {name: _differing(facts[0][name], facts[1][name]) for name in names if name not in unknown}
    return Difference(sections, unknown)


def _facts(summary: Summary) -> dict[str, Mapping[str, Any]]:
    folder = Path(summary.folder)
    journal = Journal(folder)
    packages: dict[str, str] = {}
    data: dict[str, str] = {}
    for entry in journal.entries:
        if entry.call == "text" and entry.arguments["name"] == PACKAGES:
            packages |= dict(line.split("==", 1) for line in entry.arguments["content"].splitlines() if "==" in line)
        elif entry.call == "dataset":
            data[entry.arguments["name"]] = entry.arguments["digest"]
    return {
        "settings": _settings(folder / "config.yaml"),
        "code": _json(folder / CODE),
        "packages": packages,
        "data": data,
        "metrics": summary.metrics,
    }


def _settings(path: Path) -> dict[str, Any]:
    try:
        document = OmegaConf.to_container(OmegaConf.load(regular_file(path)))
    except (OSError, ValueError):
        return {}
    return dict(flatten(document)) if isinstance(document, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(regular_file(path).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Pair]:
    pairs = {name: (first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])}
    return {name: pair for name, pair in pairs.items() if not _is_equal(*pair)}


def _is_equal(first: Any, second: Any) -> bool:
    both_nan = first != first and second != second
    return bool(first == second or both_nan)


COMMIT = "mlflow.source.git.commit"
PATCH = "code/diff.patch"


def code_of(run: Path) -> tuple[str | None, bool]:
    """Return the commit that a run was made with, and whether there were uncommitted changes, by its journal."""
    commit, is_changed = None, False
    for entry in Journal(run).entries:
        if entry.call == "tags":
            commit = entry.arguments["values"].get(COMMIT, commit)
        elif entry.call == "text" and entry.arguments["name"] == PATCH:
            is_changed = True
    return commit, is_changed


def code_lines(first: Path, second: Path) -> list[str]:
    """Return the commits of two runs, and the command that shows the lines in which they differ."""
    runs = [(run.name, *code_of(run)) for run in (first, second)]
    changes = "with uncommitted changes, the artifact {} of its tracked run"
    lines = [
        f"{name}: commit {commit or 'not recorded'}{f', {changes.format(PATCH)}' if is_changed else ''}"
        for name, commit, is_changed in runs
    ]
    commits = [commit for _, commit, _ in runs if commit]
    return [*lines, shlex.join(["git", "diff", *commits])] if len(set(commits)) == 2 else lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences; returns 0 if there are none, 1 if there are any, 2 if a run does not exist."""
    parser = command_parser("diff", __doc__)
    parser.add_argument("run", nargs=2, help="its folder, its folder's name, or the beginning of its id")
    parser.add_argument("--json", action="store_true", help="prints them as JSON: by section and name, both values")
    parser.add_argument("--code", action="store_true", help="prints also the commits and the `git diff` to type")
    options = parser.parse_args(arguments)
    return exit_code(lambda: _compare(options))


def _compare(options: argparse.Namespace) -> int:
    first, second = (Runs(options.outputs, print_warning).find(text) for text in options.run)
    differences = difference(first, second)
    lines = code_lines(Path(first.folder), Path(second.folder)) if options.code else []
    if options.json:
        sections = dict(differences.sections) | ({"lines": lines} if lines else {})
        print(json.dumps(sections, indent=2, default=str))
    else:
        _print(differences, Path(first.folder).name, Path(second.folder).name)
        print(*lines, sep="\n", end="\n" if lines else "")
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


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _change(pair: Pair) -> str:
    first, second = pair
    return "" if first is None or second is None else f"{second - first:+.4g}"


if __name__ == "__main__":
    run_command(main)
