"""Differences between two runs: settings, code, packages, data and metrics."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.keys import flatten
from pipeline.paths import CHECKOUT
from pipeline.provenance.code_state import git
from pipeline.provenance.source_digest import NAME as CODE
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
    """Compares two runs by the files in their folders.

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


def source_diff(first: Path, second: Path, repository: Path | None = None) -> str | None:
    """Returns what git shows between the trees of two runs; empty where they are equal.

    None where that cannot be known: a run outside a repository, a commit that this repository does not have, changes
    that were cut or masked when they were recorded.

    Args:
        first, second: the folders of the runs.
        repository: None: that of this project, or for an installed package that of the working directory.
    """
    start = repository or CHECKOUT or Path.cwd()
    objects = git(start, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    top = git(start, "rev-parse", "--show-toplevel")
    if objects is None or top is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        # What is written, an index and trees, is kept out of the user's repository.
        variables = {"GIT_OBJECT_DIRECTORY": scratch, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects.strip()}
        trees = [_tree(Path(top.strip()), folder, Path(scratch), variables) for folder in (first, second)]
        if None in trees:
            return None
        return git(Path(top.strip()), "diff", *map(str, trees), **variables)


def _tree(top: Path, run: Path, scratch: Path, variables: dict[str, str]) -> str | None:
    """Returns the name of the tree that the run was made with: its commit with its uncommitted changes."""
    commit = None
    patch = ""
    for entry in Journal(run).entries:
        if entry.call == "tags":
            commit = entry.arguments["values"].get(COMMIT, commit)
        elif entry.call == "text" and entry.arguments["name"] == PATCH:
            patch = str(entry.arguments["content"])
    if commit is None:
        return None
    variables = {**variables, "GIT_INDEX_FILE": str(scratch / f"index-{run.name}")}
    if git(top, "read-tree", commit, **variables) is None:
        return None
    changes = patch[patch.find("diff --git ") :] if "diff --git " in patch else ""
    if changes:
        file = scratch / f"changes-{run.name}.patch"
        file.write_text(changes)
        if git(top, "apply", "--cached", "--whitespace=nowarn", str(file), **variables) is None:
            return None
    written = git(top, "write-tree", **variables)
    return written.strip() if written else None
