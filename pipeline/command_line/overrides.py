"""Overrides, checked before composition: each has an effect, or is refused with what to type instead."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, ValueType
from hydra.errors import HydraException

from pipeline.config.errors import unknown_option
from pipeline.config.names import Options
from stages.errors import UserError

_INSTEAD: Mapping[str, str] = {
    "run.dir sweep.dir output_subdir sweep.subdir job_logging hydra_logging job.chdir": "outputs=<folder>",
    "job.name": "name=<name>",
    "launcher": "sweep.n_jobs=2",
    "sweeper": "sweep=tpe",
    "verbose": "HYDRA_FULL_ERROR=1 python -m pipeline …",
    "callbacks": "'train.callbacks=[{_target_: keras.callbacks.TerminateOnNaN}]'",
}
"""From Hydra's own settings, which have no effect here, to what has theirs."""

_LAUNCHERS = {"submitit_slurm": "cluster=slurm", "submitit": "cluster=slurm", "ray": "cluster=ray", "basic": "-m"}
"""Launchers of Hydra that run jobs elsewhere; others run several at a time."""


def parsed(words: Sequence[str], options: Options) -> tuple[Override, ...]:
    """Returns `words` as parsed by Hydra.

    Raises:
        UserError: for the first that cannot be parsed.
    """
    overrides = []
    for index, word in enumerate(words):
        try:
            overrides += OverridesParser.create().parse_overrides([_with_patterns(word)])
        except (HydraException, RecursionError, ValueError) as error:  # a number of thousands of digits
            raise _unreadable(words, index, options) from error
    return tuple(overrides)


def without_replaced(overrides: Sequence[Override]) -> tuple[tuple[Override, ...], tuple[Override, ...]]:
    """Returns the effective overrides, and those that a later one of the same key replaces.

    Mappings merge, and a deleted key may be set again.
    """
    last_of_key = {_key(override): override for override in overrides}
    effective: list[Override] = []
    replaced: list[Override] = []
    for override in overrides:
        later = last_of_key[_key(override)]
        is_effective = later is override or override.is_delete() or isinstance(later.value(), dict)
        (effective if is_effective else replaced).append(override)
    return tuple(effective), tuple(replaced)


def checked(overrides: Sequence[Override], options: Options, sweep: bool) -> tuple[Override, ...]:
    """Returns the overrides in the form that Hydra takes.

    `+group=option` and `++group=option` become `group=option` where the group already has an option, and a group set to
    the null that it has by default is left out.

    Args:
        overrides: as they were typed.
        options: those of the groups.
        sweep: whether several values of one key make several jobs.

    Raises:
        UserError: for the first that Hydra would ignore, or that has no effect here.
    """
    effective = []
    for override in overrides:
        key = override.key_or_group
        if key == "hydra" or key.startswith(("hydra.", "hydra/")):
            raise of_hydra(override.input_line or key, key, sweep)
        if key in options.groups and not isinstance(override.value(), dict):
            choice = _choice_of_option(override, options)
            effective += [] if choice is None else [choice]
        else:
            effective.append(override)
    for override in effective:
        _check_value(override, options, sweep)
        _check_deletion(override)
    _check_together({override.key_or_group: override for override in effective}, sweep)
    return tuple(effective)


def of_hydra(typed: str, key: str, sweep: bool = True) -> UserError:
    """Returns the error for one of Hydra's own settings.

    Args:
        typed: the setting with its value.
        key: its name, such as `hydra.run.dir`.
        sweep: whether several jobs are asked for.
    """
    name = key.removeprefix("hydra")[1:].replace("/", ".")
    value = typed.partition("=")[2]
    found = next((names for names in _INSTEAD if name.startswith(tuple(names.split()))), None)
    fix = _INSTEAD[found] if found else "--help"
    if name == "launcher":
        fix = next((here for launcher, here in _LAUNCHERS.items() if value.startswith(launcher)), fix)
    elif name.endswith((".n_jobs", ".n_trials")) and value.isdecimal():
        fix = f"sweep.n_jobs={value}" if name.endswith("n_jobs") else f"sweep=tpe sweep.trials={value}"
    if fix.startswith(("sweep", "-m")) and not sweep:
        fix = f"python -m pipeline -m <key>=<a>,<b> {fix}".removesuffix(" -m")
    expected = "what has its effect in this project, or hydra.searchpath alone"
    return UserError(f"{typed}: Hydra's own settings have no effect here", expected, fix)


def of_sweep(override: Override) -> bool:
    """Returns whether `override` is of the group `sweep`, which is no part of a job."""
    return override.key_or_group == "sweep" or override.key_or_group.startswith("sweep.")


def chooses_sweep(overrides: Sequence[Override]) -> bool:
    """Returns whether one of `overrides` chooses a file that says what varies, or says it itself."""
    return any(
        override.key_or_group.startswith("sweep.over")
        or (override.key_or_group == "sweep" and override.value() not in (None, "none"))
        for override in overrides
    )


def sweep_lines(override: Override) -> Iterator[str]:
    """Yields `override`, which has passed `checked`, with each of its values, as typed."""
    if not override.is_sweep_override():
        yield str(override.input_line)
        return
    for value in override.sweep_string_iterator():
        yield f"{override.get_key_element()}={value}"


def sweep_length(override: Override) -> int:
    """Returns how many values `override` takes in turn, without making them.

    Raises:
        UserError: for an interval, from which only a search can take values.
    """
    value: Any = override.value()
    if override.is_interval_sweep():
        raise _without_steps(override)
    if not override.is_range_sweep():
        return len(value.list)
    start, stop, step = (Decimal(part) for part in (value.start, value.stop, value.step))  # as Hydra counts
    return max(0, math.ceil((stop - start) / step)) if step else 0


def _without_steps(override: Override) -> UserError:
    key = override.get_key_element()
    value = override.value()
    assert isinstance(value, IntervalSweep)
    start, end = float(value.start or 0), float(value.end or 0)
    return UserError(
        f"{override.input_line} is a range without steps, and a sweep runs every value",
        f"{key}=a,b,c, or range(<from>,<below>,<step>), or a search: sweep=tpe",
        f"'{key}=range({start:g},{end:g},{(end - start) / 4:g})'",
    )


def _key(override: Override) -> str:
    return override.key_or_group + (f"@{override.package}" if override.package else "")


def _with_patterns(word: str) -> str:
    """Returns `precision.layers.conv2d*=float32` as `precision.layers={conv2d*: float32}`.

    Hydra's names hold no asterisk, and a name that the configuration does not have would need a plus sign.
    """
    match = re.fullmatch(r"((?:precision|strategy)\.layers)\.([^=]+)=(.+)", word)
    if match is None:
        return word
    values = match[3].split(",")
    return f"{match[1]}=" + ",".join(f"{{{match[2]}: {value}}}" for value in values)


def _unreadable(words: Sequence[str], index: int, options: Options) -> UserError:
    """Returns the error for a word that Hydra cannot parse: one that is split, or spelled in another way."""
    word, problem = words[index], f"'{words[index]}' is not an override"
    if index and words[index - 1].endswith("="):
        return UserError(f"{problem}: a space follows {words[index - 1]}", "no spaces", f"{words[index - 1]}{word}")
    joined = " ".join(words[index : index + 3]).strip()
    spaced = re.match(r"-*([\w./@]+) ?(==|:=|=|:|(?<= )) ?([^\s=]+)(?= |$)", joined)
    key, equals, value = word.partition("=")
    if spaced and (not equals or spaced[2] != "=" or re.search(r"\s", key)):
        return UserError(problem, "key=value, without spaces", f"{spaced[1]}={spaced[3]}")
    if equals and re.fullmatch(r"[+~]{0,2}[\w.@/:$-]+", key):
        for opening, closing in ("[]", "{}", "()"):
            missing = closing * (value.count(opening) - value.count(closing))
            if missing:
                return UserError(f"{word}: a bracket stays open", f"as many {closing}", f"'{word}{missing}'")
        quoted = value.strip("'\"").replace("'", "")
        return UserError(
            f"{word} cannot be read",
            "a value, in quotes inside quotes where it has brackets, commas, colons, quotes or =",
            f"\"{key}='{quoted}'\"",
        )
    if equals and (item := re.fullmatch(r"([+]{0,2}[\w.]+)\[(\d+)\]", key)):
        return UserError(f"{word} cannot be read", "a dot before the number of an item", f"{item[1]}.{item[2]}={value}")
    if word in options.groups:
        choices = [f"{word}={name}" for name in options.groups[word]]
        return UserError(problem, choices, choices[0])
    group = next((group for group, names in options.groups.items() if word in names), None)
    if group:
        return UserError(problem, "key=value", f"{group}={word}")
    return UserError(problem, "key=value, such as train.epochs=5", f"{word.strip('-= ') or 'train.epochs'}=<value>")


def _choice_of_option(override: Override, options: Options) -> Override | None:
    """Returns the choice of a group's option in Hydra's form; None where it is the default null."""
    group = override.key_or_group
    value = override.value()
    typed = override.input_line or group
    names = options.groups[group]
    default = options.defaults.get(group)
    may_be_null = group in options.defaults and default is None
    fix = f"{group}={default or (names[0] if names else '<option>')}"
    if override.is_delete():
        is_stage = group in ("evaluate", "export", "augment")
        expected = f"pipeline.{group}=null, which leaves a stage out" if is_stage else sorted(names)
        raise UserError(f"{typed}: a group cannot be removed", expected, fix)
    if override.package and (group in options.defaults or not override.is_add()):
        raise UserError(f"{typed}: the place of an option cannot be changed", f"{group}=<option>", f"{group}={value}")
    if value is None and may_be_null:
        return None
    for name in _chosen(override, default is not None, sorted(names), fix):
        if name in names or (name == "null" and may_be_null):
            continue
        if value is None:
            raise UserError(f"{group}=null: a group cannot be null", sorted(names), fix)
        raise unknown_option(group, name, sorted(names), default or "")
    prefix = "" if group in options.defaults or not typed.startswith("+") else "+"
    plain = prefix + typed.lstrip("+")
    return override if plain == typed else parsed([plain], options)[0]


def _chosen(override: Override, takes_one: bool, names: Sequence[str], fix: str) -> list[str]:
    """Returns the options that an override of a group names, for a sweep those of all jobs.

    Args:
        takes_one: whether the group takes a single option.
        names: the group's options; `fix`: the fix; both for errors.
    """
    value = override.value()
    if override.is_sweep_override():
        is_list = override.is_choice_sweep() and override.value_type != ValueType.GLOB_CHOICE_SWEEP
        return list(override.sweep_string_iterator()) if is_list else []
    if not isinstance(value, list):
        return ["null" if value is None else str(value)]
    if not value:
        raise UserError(f"{override.input_line} chooses no option", names, fix)
    if len(value) > 1 and takes_one:
        group = override.key_or_group
        raise UserError(f"{override.input_line} chooses several options", "one of them", f"{group}={value[0]}")
    return [str(name) for name in value]


def _check_together(overrides: Mapping[str, Override], sweep: bool) -> None:
    """Raises UserError for overrides that have no effect with, or without, others."""
    if "max_jobs" in overrides and not sweep:
        raise UserError("max_jobs limits a sweep, and this is one run", "-m", "python -m pipeline -m …")
    resume = overrides["resume"].value() if "resume" in overrides else "auto"
    fork = overrides["fork"].value() if "fork" in overrides else None
    if fork is not None and resume not in ("auto", "never"):
        raise UserError(
            f"resume={resume} with fork: a run is resumed, or a new one started from its weights",
            "one of them",
            f"fork={fork}",
        )


def _check_value(override: Override, options: Options, sweep: bool) -> None:
    """Raises UserError for several values in a single run, and for values that a sweep cannot enumerate."""
    if not override.is_sweep_override():
        return
    key = override.get_key_element()
    typed = str(override.input_line)
    if of_sweep(override):
        raise UserError(f"{typed} gives several values to a sweep itself", "one value", f"{key}=<value>")
    if not sweep:
        raise UserError(
            f"{typed} gives several values to one run",
            "one value, a list in brackets, or a sweep with -m",
            f"python -m pipeline -m {typed if '(' not in typed else repr(typed)}",
        )
    value: Any = override.value()
    if getattr(value, "shuffle", False):
        raise UserError(
            f"{typed} would give another order each time, so the same command could not resume the sweep",
            f"{key}=a,b,c, or sort(…)",
            f"'{key}={typed.partition('=')[2].removeprefix('shuffle(').removesuffix(')')}'",
        )
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        _expand_glob(override, options)
    if not override.is_interval_sweep() and sweep_length(override) == 0:
        raise UserError(f"{typed} has no value", "at least one", f"{key}=a,b")


def _expand_glob(override: Override, options: Options) -> None:
    """Replaces a pattern by the options that it matches."""
    typed = str(override.input_line)
    group = override.key_or_group
    names = options.groups.get(group)
    if names is None:
        raise UserError(f"{typed}: only names of options match a pattern", f"{group}=a,b,c", f"{group}=a,b")
    pattern: Any = override.value()
    matches = pattern.filter(sorted(names))
    if not matches:
        raise UserError(f"{typed} matches no option", names, f"'{group}=glob(*)'")
    override.value_type = ValueType.CHOICE_SWEEP
    override._value = ChoiceSweep(list=list(matches))


def _check_deletion(override: Override) -> None:
    """Raises UserError for `~` in front of a stage or a top-level setting."""
    if not override.is_delete():
        return
    name = override.key_or_group
    if name.startswith("pipeline."):
        raise UserError(f"{override.input_line}: a stage is left out by null", f"{name}=null", f"{name}=null")
    if "." not in name:
        raise UserError(f"{override.input_line}: a setting cannot be removed", "another value", f"{name}=<value>")
