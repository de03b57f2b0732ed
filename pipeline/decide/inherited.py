"""Overrides that a command inherits from the run it resumes, forks or reuses. Settings that name code are refused."""

import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.command_line.arguments import Arguments
from pipeline.command_line.compose import Composer
from pipeline.command_line.overrides import parsed
from pipeline.config.errors import explained
from pipeline.config.names import flatten, split_override
from pipeline.paths import outputs_folder
from pipeline.redaction import MASK
from pipeline.runs.finding import Runs
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import Journal
from pipeline.runs.summary import Summary
from pipeline.tracking.models import ADDRESSES, run_of_model
from pipeline.tracking.store import Store, is_named_by_user
from stages.errors import UserError
from stages.settings.ranges import quoted

_ORIGIN = ("from", "run", "fork", "fork_weights", "outputs")
_NOT_INHERITED = {
    "resume": (),
    "fork": _ORIGIN,
    "run": (*_ORIGIN, "export.register", "export.alias", "export.promote_if"),
}
"""Settings that a command does not inherit: where the other run started from, its location, and its registration."""

_OUTSIDE_ACCESS = ("cluster.address", "cluster.hosts", "cluster.options", "tracking.options")
"""Settings that let other machines send code to this one or get its credentials, or that pass commands to a shell."""


def inherit_overrides(arguments: Arguments) -> Arguments:
    """Return `arguments` with the overrides of the run that they resume, fork or reuse, if they name a run.

    The name of the run is quoted, because Hydra would read 4e123456 as a number.

    Raises:
        UserError: If there is no such run, or a setting must be typed again.
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
        if is_sweep and option == "resume":  # it names the folder of a sweep, which has no overrides
            continue
        run = Runs(outputs).find(name, option)
        left_out = {*typed, *_NOT_INHERITED[option]}
        chosen = {key: value for key, value in typed.items() if not value.startswith("{")}
        others = {group for group, before in run.choices.items() if chosen.get(group, before) != before}
        overrides = [text for text in run.overrides if _key(text) not in left_out]
        overrides = [text for text in overrides if _key(text).partition(".")[0] not in others]
        if run.choices.get("data") == "table" and "data" not in others:
            overrides += _as_chosen(run, {*typed, *map(_key, overrides)})
        _refuse_untyped(overrides, f"{option}={name}", typed, Journal(run.folder).is_own)
        arguments = replace(arguments, inherited=tuple(text for text in overrides if MASK not in text))
    return arguments


OF_TABLES = ("optimizer", "schedule", "train")
"""Groups whose option `data=table` chooses."""


def _as_chosen(run: Summary, known: Set[str]) -> list[str]:
    """Return overrides for what `data=table` chose when the run was started. It may choose differently by now.

    Args:
        run: The earlier run, on a table.
        known: Settings and groups that have an override.
    """
    words = [f"{group}={run.choices[group]}" for group in OF_TABLES if group in run.choices and group not in known]
    config = RunFolder(run.folder).config
    is_auto = run.choices.get("model") == "auto" and "model" not in known
    if is_auto and OmegaConf.select(config, "model.network.columns") is None:
        words.append("model.network.columns=mlp")
    features: Any = OmegaConf.select(config, "data.features")
    has_images = isinstance(features, DictConfig) and "image" in features.values()
    if has_images and "data.only_images" not in known and OmegaConf.select(config, "data.only_images") is None:
        words.append("data.only_images=true")
    return words


def _setting(arguments: Arguments, name: str) -> Any:
    """Return a setting, or the settings of a group, from the command line and the experiment file that it names.

    Raises:
        UserError: If the configuration cannot be composed.
    """
    named = ((_key(text).partition(".")[0], text) for text in arguments.overrides)
    words = tuple(text for key, text in named if key == name or (key == "experiment" and "," not in text))
    with explained():
        value = Composer(Arguments(words, folders=arguments.folders)).one().document[name]
        return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value


def _refuse_untyped(overrides: Sequence[str], option: str, typed: Mapping[str, str], is_own: bool) -> None:
    """Refuse overrides that the user must type again: those that could run code, and those with a secret.

    The folder of the run may come from somebody else.

    Args:
        overrides: The overrides of the run.
        option: The override that names the run.
        typed: The overrides on the command line.
        is_own: Whether a command of this user wrote the run on this machine, so the address of its store is trusted.
    """
    words = [text for text in overrides if MASK not in text and _could_run_code(text, is_own)]
    secret = [_key(text) for text in overrides if MASK in text]
    words += [f"{key}=<as before>" for key in secret if key.partition(".")[0] not in typed]
    if words:
        named = ", ".join(map(_key, words))
        problem = f"{option}: {named} is not inherited, because it holds a secret, an address, an interpolation or code"
        raise UserError(problem, "these settings on the command line", f"{option} {' '.join(map(shlex.quote, words))}")


def _could_run_code(override: str, is_own: bool) -> bool:
    """Return whether an override names code, has an interpolation, or connects to another machine.

    Hydra's grammar unquotes keys and values, so both the text and its parsed form are searched.
    """
    if "_target_" in override or "${" in override:
        return True
    for one in parsed([override]):
        value = {one.key_or_group: one.value()}
        if any(part in str(value) for part in ("_target_", "${")):
            return True
        for name, text in flatten(value):
            is_of_cluster = f"{name}.".startswith("cluster.") and not str(text).isprintable()
            if name == "tracking.uri" and not is_own and not is_named_by_user(str(text)):
                return True
            if is_of_cluster or any(f"{name}.".startswith(f"{setting}.") for setting in _OUTSIDE_ACCESS):
                return True
    return False


def _key(override: str) -> str:
    return split_override(override)[0].partition("@")[0]
