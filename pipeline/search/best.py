"""The best configuration of a search, as an experiment file that is one run."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from pipeline.command_line.compose import Composed
from pipeline.config.experiment import read
from pipeline.config.options import Options
from pipeline.paths import outputs_folder, shorter
from pipeline.redaction import redact
from stages.storage.atomic import atomic_write

FOLDER = "conf"
"""In a search's folder: what `--config-dir` takes."""

EXPERIMENT = "experiment"

OF_THE_COMMAND = ("outputs", "resume", "max_jobs", "dry_run", "trust", "hang_seconds", "job_timeout_seconds")
"""Settings of the command, and of the machine that it ran on, that say nothing of the experiment."""


def write_experiment(composed: Composed, comment: str, options: Options, folder: Path, name: str) -> Path:
    """Write the whole configuration of a trial as the experiment `name` into a search's folder; return its path.

    The file chooses the trial's option in every group and sets every value. So it stands alone: neither what the search
    varies nor the experiment file that it came from is read again. Secrets are left out and named, as the file is an
    artifact of the search's run.

    Args:
        comment: stands above it. options: those of the groups, to tell an option that is replaced from one that is new.
    """
    values, secrets = _values(composed)
    if secrets:
        comment += f"\nWithout what holds secrets, to be given with the command: {', '.join(secrets)}"
    header = "".join(f"# {line}\n" for line in comment.splitlines())
    body = {"defaults": [*_choices(composed, options), "_self_"], **values}
    path = folder / FOLDER / EXPERIMENT / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, f"# @package _global_\n{header}{yaml.safe_dump(body, sort_keys=False, allow_unicode=True)}")
    return path


def run_command(composed: Composed, options: Options, folder: Path, name: str) -> str:
    """Return the command that runs the experiment `name` of the search in `folder`, once, beside the search."""
    words = ["python", "-m", "pipeline", *composed.flags, "--config-dir", shorter(folder / FOLDER)]
    if composed.config_dirs:
        words.append(f"hydra.searchpath=[{','.join(map(str, composed.config_dirs))}]")
    words.append(f"{'' if EXPERIMENT in options.defaults else '+'}{EXPERIMENT}={name}")
    words += [line for line in composed.overrides if line.startswith("~")]  # no file can remove what another one sets
    outputs = folder.parent.parent
    if outputs != outputs_folder(None):
        words.append(f"outputs={shorter(outputs)}")
    if composed.flags:
        words.append("sweep=none")  # the primary configuration may say itself what varies
    return " ".join([*map(shlex.quote, words), *(f"{secret}=…" for secret in _values(composed)[1])])


def _choices(composed: Composed, options: Options) -> list[dict[str, Any]]:
    """Return what chooses the options of a trial, as entries of a defaults list."""
    chosen: dict[str, Any] = {group: composed.choices[group] for group in composed.choices if group in options.groups}
    for group in (EXPERIMENT, "debug", "sweep"):
        chosen.pop(group, None)
    if "sweep" in options.defaults:
        chosen["sweep"] = "none"
    new_first = sorted(chosen, key=lambda group: group in options.defaults)  # as Hydra wants them
    return [
        {f"{'override ' if group in options.defaults else ''}/{group}": chosen[group]}
        for group in new_first
        if chosen[group] is not None
    ]


def _values(composed: Composed) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a trial's experiment, and the dotted names of those that are left out as secrets."""
    document = read(composed.document, composed.choices, composed.config_dirs).document
    plain = OmegaConf.to_container(document, resolve=False)
    assert isinstance(plain, dict)
    secrets: list[str] = []
    own = {name: value for name, value in plain.items() if name not in OF_THE_COMMAND}
    return _without_secrets(own, redact(own), "", secrets), secrets


def _without_secrets(
    plain: Mapping[Any, Any], masked: Mapping[Any, Any], path: str, secrets: list[str]
) -> dict[Any, Any]:
    """Return `plain` without the values that differ in `masked`, whose names are added to `secrets`."""
    kept: dict[Any, Any] = {}
    for (key, value), (shown_key, shown) in zip(plain.items(), masked.items(), strict=True):
        if isinstance(value, Mapping) and key == shown_key:
            kept[key] = _without_secrets(value, shown, f"{path}{key}.", secrets)
        elif (key, value) == (shown_key, shown):
            kept[key] = value
        else:
            secrets.append(f"{path}{shown_key}")
    return kept
