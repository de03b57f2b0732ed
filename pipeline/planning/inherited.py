"""Overrides that a command inherits from the run it resumes, forks or reuses: settings, but no code of its own."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from pipeline.command_line.arguments import Arguments
from pipeline.command_line.compose import Composer
from pipeline.command_line.overrides import quoted
from pipeline.config.errors import explained
from pipeline.config.names import split_override
from pipeline.config.schemas import SCHEMAS
from pipeline.paths import CONF, outputs_folder, shorter
from pipeline.provenance.source_digest import targets_in
from pipeline.redaction import MASK
from pipeline.run_folder.runs import Runs
from pipeline.tracking.models import ADDRESSES, run_of_model
from pipeline.tracking.store import Store
from stages.errors import UserError

_TARGET = re.compile(r"""_target_['"]?\s*[:=]\s*['"]?([^\s,'"}\])]+)""")

_OF_ONE_RUN = ("from", "run", "fork", "fork_weights", "outputs")
_NOT_INHERITED = {
    "resume": (),
    "fork": _OF_ONE_RUN,
    "run": (*_OF_ONE_RUN, "export.register", "export.alias", "export.promote_if"),
}
"""Settings that a command does not take over: what the other run began with, where it is, and its registration."""


def inherit_overrides(arguments: Arguments) -> Arguments:
    """Return `arguments` with the overrides of the run that they resume, fork or reuse, if they name one.

    The run's name is quoted, as 4e123456 would be a number.

    Raises:
        UserError: where there is no such run, it names code that the configuration does not, or a setting must be
            typed again because its secret was not kept.
    """
    typed = {_key(text): text.partition("=")[2].strip("'\"") for text in arguments.overrides}
    is_sweep = arguments.sweep or "sweep" in typed
    for option in ("resume", "fork", "run"):
        name = typed.get(option, "auto")
        if name in ("auto", "never", "null"):
            continue
        outputs = outputs_folder(_setting(arguments, "outputs"))
        if option == "run" and name.startswith(ADDRESSES):
            name = run_of_model(name, Store(_setting(arguments, "tracking"), outputs))
        words = [f"{option}={quoted(name)}" if _key(text) == option else text for text in arguments.overrides]
        arguments = replace(arguments, overrides=tuple(words))
        if is_sweep and option == "resume":  # a sweep's folder, which has no overrides of its own
            continue
        run = Runs(outputs).find(name, option)
        left_out = {*typed, "trust", *_NOT_INHERITED[option]}
        chosen = {key: value for key, value in typed.items() if not value.startswith("{")}
        others = {group for group, before in run.choices.items() if chosen.get(group, before) != before}
        overrides = [text for text in run.overrides if _key(text) not in left_out]
        overrides = [text for text in overrides if _key(text).partition(".")[0] not in others]
        _refuse_forgotten(overrides, f"{option}={name}", typed)
        inherited = tuple(text for text in overrides if MASK not in text)
        _check_trust(inherited, f"{option}={name}", Path(run.folder), typed, arguments.folders[1:])
        arguments = replace(arguments, inherited=inherited)
    return arguments


def _setting(arguments: Arguments, name: str) -> Any:
    """Return a setting, or those of a group, that a command line names, itself or by a single experiment.

    Raises:
        UserError: where it cannot be composed.
    """
    named = ((_key(text).partition(".")[0], text) for text in arguments.overrides)
    words = tuple(text for key, text in named if key == name or (key == "experiment" and "," not in text))
    with explained():
        value = Composer(Arguments(words, folders=arguments.folders)).one().document[name]
        return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value


def _refuse_forgotten(overrides: list[str], option: str, typed: Mapping[str, str]) -> None:
    """Refuse overrides whose secrets were not kept, unless they are typed again."""
    missing = [key for text in overrides if MASK in text and (key := _key(text)).partition(".")[0] not in typed]
    if missing:
        raise UserError(
            f"{option} had {', '.join(missing)} with a secret in it, which is not kept",
            "the setting once more",
            f"{option} {' '.join(f'{key}=<as before>' for key in missing)}",
        )


def _key(override: str) -> str:
    return split_override(override)[0].partition("@")[0]


def _check_trust(
    overrides: Sequence[str], option: str, folder: Path, typed: Mapping[str, str], config_dirs: Sequence[Path]
) -> None:
    """Refuse unknown code that a run's folder asks for, without `trust=true`.

    Args:
        option: that names the run, such as `resume=4d9eb298`.
    """
    if typed.get("trust", "").lower() in ("true", "yes", "on", "1"):
        return
    named = [(target, override) for override in overrides for target in _targets(override)]
    allowed = known_targets(config_dirs) if named else set()
    demands = [f"run {target} ({_key(override)})" for target, override in named if target not in allowed]
    if demands:
        raise UserError(
            f"{option} would {'; '.join(demands)}: {shorter(folder)} asks for it, and no file of conf/",
            "targets of conf/ and of --config-dir, or trust=true, once you have read what the folder asks for",
            "trust=true",
        )


def _targets(override: str) -> list[str]:
    """Return the targets that an override names; the whole of one in which they cannot be told."""
    found = _TARGET.findall(override)
    return found if len(found) == override.count("_target_") else [override]


def known_targets(config_dirs: Sequence[Path]) -> set[str]:
    """Return every `_target_` of the configuration's files and schemas."""
    targets = {
        field.default
        for schemas in SCHEMAS.values()
        for schema in schemas.values()
        for field in dataclasses.fields(schema)
        if field.name == "_target_" and isinstance(field.default, str)
    }
    for folder in (CONF, *config_dirs):
        for path in folder.rglob("*.yaml"):
            with suppress(OSError, ValueError, yaml.YAMLError):
                targets |= set(targets_in(yaml.safe_load(path.read_text())))
    return targets
