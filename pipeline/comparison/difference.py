"""Differences between two runs: settings, code, packages, data and metrics."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.provenance.source_digest import NAME as CODE
from pipeline.run_folder.summary import Summary
from pipeline.tracking.journal import Journal
from pipeline.tracking.params import flatten

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
        document = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError):
        return {}
    return dict(flatten(document)) if isinstance(document, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Pair]:
    pairs = {name: (first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])}
    return {name: pair for name, pair in pairs.items() if not _is_equal(*pair)}


def _is_equal(first: Any, second: Any) -> bool:
    both_nan = first != first and second != second
    return bool(first == second or both_nan)
