"""The differences between two runs in settings, code, packages, data, metrics and measurements."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.names import flatten
from pipeline.paths import shorter
from pipeline.provenance.identity import differing
from pipeline.provenance.source_digest import NAME as CODE
from pipeline.records import yaml_text
from pipeline.runs.journal import Journal
from pipeline.runs.summary import Summary, one_line

COMMIT = "mlflow.source.git.commit"
PATCH = "code/diff.patch"

MEASURED = re.compile(r"(seconds|_per_second|milliseconds|_mib|_fraction)$")
"""Endings of the names of metrics that are measured, and so differ between any two runs."""

Pair = tuple[Any, Any]
"""A value in the first run and in the second; None if the run does not have it."""


def difference(first: Summary, second: Summary, warn: Callable[[str], None]) -> dict[str, dict[str, Pair]]:
    """Return the values that differ between two runs, by section and name, as recorded in their folders.

    Args:
        first: The summary of the first run.
        second: The summary of the second run.
        warn: Is called with a warning if a file cannot be read, and so is not compared.

    Returns:
        The sections that both runs have recorded: `settings` (each once, although other groups may refer to it),
        `code` (digests of files, the commit), `packages` (versions of those that affect the results), `data` (the data
        set's fingerprint), `metrics` (the last value of each) and `measurements` (of time, speed and memory).
    """
    facts = [_facts(summary, warn) for summary in (first, second)]
    sections: dict[str, dict[str, Pair]] = {}
    for section in facts[0]:
        before, after = (fact[section] for fact in facts)
        if before and after:
            differ = {name: (before.get(name), after.get(name)) for name in differing(before, after)}
            sections[section] = {
                name: pair for name, pair in differ.items() if differ.get(name.partition(".")[2]) != pair
            }
    return sections


def _facts(summary: Summary, warn: Callable[[str], None]) -> dict[str, Mapping[str, Any]]:
    """Return the recorded values of a run, by section and name."""
    folder = summary.folder
    code = _read(folder / CODE, warn)
    for entry in Journal(folder).entries:
        arguments = entry.arguments
        if entry.call == "text" and arguments["name"] == PATCH:
            code["uncommitted changes"] = f"artifact {PATCH}"
        elif entry.call == "tags" and COMMIT in arguments["values"]:
            code["commit"] = arguments["values"][COMMIT]
    return {
        "settings": _read(folder / "config.yaml", warn),
        "code": code,
        "packages": summary.versions,
        "data": {"fingerprint": fingerprint} if (fingerprint := summary.facts.fingerprint) is not None else {},
        "metrics": {name: value for name, value in summary.metrics.items() if not MEASURED.search(name)},
        "measurements": {name: value for name, value in summary.metrics.items() if MEASURED.search(name)},
    }


def _read(path: Path, warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the values in a YAML or JSON file by their dotted names; warn and return none if it cannot be read."""
    try:
        return dict(flatten(yaml.safe_load(yaml_text(path)) or {}))
    except FileNotFoundError:  # the run ended before writing it
        return {}
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        warn(f"{shorter(path)} cannot be read and is not compared ({one_line(error)})")
        return {}
