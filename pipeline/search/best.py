"""The best configuration of a search, as an experiment file that runs as it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline.config.keys import split_override
from pipeline.config.options import Options
from pipeline.redaction.mask import redact_overrides
from stages.storage.atomic import atomic_write

FOLDER = "conf"
"""In a search's folder: what `--config-dir` takes."""

EXPERIMENT = "experiment"

OF_THE_COMMAND = ("sweep", "outputs", "resume", "max_jobs", "dry_run", "trust", "hang_seconds", "job_timeout_seconds")
"""Settings of the search, and of the machine that it ran on, that say nothing of the experiment."""


def write_experiment(lines: Sequence[str], comment: str, options: Options, folder: Path, name: str) -> Path:
    """Writes the overrides `lines` as the experiment `name` into a search's folder; returns its path.

    Those with secrets are left out, and named: the file is an artifact of the search's run.

    Args:
        comment: what stands above it. options: those of the groups, to tell the choice of an option from a value.
    """
    parser = OverridesParser.create()
    secrets = with_secrets(lines)
    if secrets:
        comment += f"\nWithout what holds secrets, to be given with the command: {', '.join(secrets)}"
    overrides = [parser.parse_override(line) for line in lines if split_override(line)[0] not in secrets]
    defaults: list[Any] = []
    chosen: list[Any] = []
    values: dict[str, Any] = {}
    for override in overrides:
        if override.key_or_group.partition(".")[0] in OF_THE_COMMAND:
            continue
        group = override.key_or_group
        if group == EXPERIMENT:
            defaults.append(str(override.value()))  # another experiment, which this one starts from
        elif group in options.groups and not isinstance(override.value(), Mapping):
            is_new = override.is_add() and group not in options.defaults
            chosen.append({f"{'' if is_new else 'override '}/{group}": _plain(override.value())})
        else:
            _set(values, group.split("."), _plain(override.value()))
    header = "".join(f"# {line}\n" for line in comment.splitlines())
    body = {"defaults": [*defaults, *chosen, "_self_"], **values}
    path = folder / FOLDER / EXPERIMENT / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, f"# @package _global_\n{header}{yaml.safe_dump(body, sort_keys=False, allow_unicode=True)}")
    return path


def with_secrets(lines: Sequence[str]) -> list[str]:
    """Returns the names of the overrides that hold secrets and belong to the experiment."""
    names = [
        split_override(line)[0] for line, shown in zip(lines, redact_overrides(lines), strict=True) if shown != line
    ]
    return [name for name in names if name.partition(".")[0] not in OF_THE_COMMAND]


def _plain(value: Any) -> Any:
    """Returns a value as YAML can hold it: Hydra's quoted strings as strings."""
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.text if hasattr(value, "text") else value


def _set(values: dict[str, Any], names: Sequence[str], value: Any) -> None:
    *outer, last = names
    for name in outer:
        values = values.setdefault(name, {})
    values[last] = value
