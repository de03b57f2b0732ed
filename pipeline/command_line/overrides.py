"""Overrides, checked before anything is composed: each has an effect, or is refused with what to type instead."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, ValueType
from hydra.errors import HydraException

from pipeline.config.options import Options
from stages.errors import UserError

_FOLDER = ("a run's folder is made below `outputs`", "outputs=<folder>")
_VARIABLE = ("a shell sets variables of the environment", "<NAME>=<value> python -m pipeline …")
_SWEEP = ("with -m every combination runs, one job after another, each in a process of its own", "-m <key>=<a>,<b>")
_LOG = ("a run's log is pipeline.log in its folder", "outputs=<folder>")
_HELP = ("--help", "--help")
INSTEAD = {
    "run": _FOLDER,
    "sweep": _FOLDER,
    "output_subdir": _FOLDER,
    "job.chdir": (
        "the working directory stays as it is, and a run's folder is made below `outputs`",
        "outputs=<folder>",
    ),
    "job.name": ("`name` names an experiment", "name=<name>"),
    "job.env_set": _VARIABLE,
    "job.env_copy": _VARIABLE,
    "mode": ("-m makes a sweep", "-m <key>=<a>,<b>"),
    "launcher": _SWEEP,
    "sweeper": _SWEEP,
    "verbose": ("HYDRA_FULL_ERROR=1 shows the traceback of an error", "HYDRA_FULL_ERROR=1 python -m pipeline …"),
    "job_logging": _LOG,
    "hydra_logging": _LOG,
    "callbacks": ("Keras callbacks", "'train.callbacks=[{_target_: keras.callbacks.TerminateOnNaN}]'"),
    "help": _HELP,
    "hydra_help": _HELP,
}
"""From Hydra's own settings, which have no effect here, to what there is for the same purpose, and what to type."""


def parsed(words: Sequence[str], options: Options) -> tuple[Override, ...]:
    """Returns `words` as Hydra reads them.

    Raises:
        UserError: for the first that it cannot read.
    """
    return tuple(_parsed(word, options) for word in words)


def without_replaced(overrides: Sequence[Override]) -> tuple[tuple[Override, ...], tuple[Override, ...]]:
    """Returns the overrides that count, and those of keys that are given again later.

    Mappings merge, and what is deleted may be given again.
    """
    last = {_key(override): override for override in overrides}
    replaced = tuple(
        override
        for override in overrides
        if last[_key(override)] is not override
        and not override.is_delete()
        and not isinstance(last[_key(override)].value(), dict)
    )
    gone = {id(override) for override in replaced}
    return tuple(override for override in overrides if id(override) not in gone), replaced


def checked(overrides: Sequence[Override], options: Options, sweep: bool) -> tuple[Override, ...]:
    """Returns the overrides in the form in which Hydra takes them.

    Hydra's `+group=option` and `++group=option` become `group=option` where the group has an option already, and a
    group that is set to the null which it has anyway is left out.

    Args:
        overrides: as they were typed.
        options: what the groups offer.
        sweep: whether several values of one key make several jobs.

    Raises:
        UserError: for the first that Hydra would ignore, or takes in a way that has no effect here.
    """
    for override in overrides:
        key = override.key_or_group
        if key.startswith(("hydra.", "hydra/")) or key == "hydra":
            raise of_hydra(override.input_line or key, key)
    kept = [_of_group(override, options) if _is_group(override, options) else override for override in overrides]
    effective = tuple(override for override in kept if override is not None)
    for override in effective:
        _check_value(override, options, sweep)
        _check_deletion(override)
    _check_together({override.key_or_group: override for override in effective}, sweep)
    return effective


def _key(override: Override) -> str:
    return override.key_or_group + (f"@{override.package}" if override.package else "")


def _check_together(given: Mapping[str, Override], sweep: bool) -> None:
    """Raises UserError for what has no effect beside, or without, something else on the command line."""
    if "max_jobs" in given and not sweep:
        raise UserError("max_jobs limits a sweep, and this is one run", "-m", "python -m pipeline -m …")
    resumed = given["resume"].value() if "resume" in given else "auto"
    if "fork" in given and given["fork"].value() is not None and resumed not in ("auto", "never"):
        raise UserError(
            f"resume={resumed} with fork: a run is resumed, or a new one started from its weights",
            "one of them",
            f"fork={given['fork'].value()}",
        )


def of_hydra(given: str, key: str) -> UserError:
    """Returns the error for one of Hydra's own settings.

    Args:
        given: as it was given.
        key: its name, such as `hydra.run.dir`.
    """
    name = key.removeprefix("hydra")[1:].replace("/", ".")
    allowed, fix = "hydra.searchpath alone", "--help"
    for start, instead in INSTEAD.items():
        if name == start or name.startswith(f"{start}."):
            allowed, fix = instead
    return UserError(f"{given}: Hydra's own settings have no effect here", allowed, fix)


def sweep_lines(override: Override) -> Iterator[str]:
    """Yields `override`, which has passed `checked`, with each of its values in turn, as a user types it."""
    if not override.is_sweep_override():
        yield str(override.input_line)
        return
    for value in override.sweep_string_iterator():
        yield f"{override.get_key_element()}={value}"


def sweep_length(override: Override) -> int:
    """Returns how many values `override` takes in turn, without making them."""
    value: Any = override.value()
    if not override.is_range_sweep():
        return len(value.list)
    start, stop, step = (Decimal(part) for part in (value.start, value.stop, value.step))  # as Hydra counts
    return max(0, math.ceil((stop - start) / step)) if step else 0


def _parsed(word: str, options: Options) -> Override:
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except (HydraException, RecursionError) as error:
        raise _unreadable(word, options) from error


def _unreadable(word: str, options: Options) -> UserError:
    key, equals, value = word.partition("=")
    if equals and re.fullmatch(r"[+~]{0,2}[\w.@/:$-]+", key):
        for opening, closing in ("[]", "{}", "()"):
            if value.count(opening) > value.count(closing):
                missing = closing * (value.count(opening) - value.count(closing))
                return UserError(
                    f"{word} cannot be read: a bracket stays open", f"as many {closing}", f"'{word}{missing}'"
                )
        quoted = value.strip("'\"").replace("'", "")
        return UserError(
            f"{word} cannot be read",
            "a value, in quotes inside quotes where it has brackets, commas, colons, quotes or =",
            f"\"{key}='{quoted}'\"",
        )
    for group, names in options.groups.items():
        if word in names:
            return UserError(f"'{word}' is not an override", "key=value", f"{group}={word}")
    if word in options.groups:
        names = options.groups[word]
        return UserError(f"'{word}' is not an override", [f"{word}={name}" for name in names], f"{word}={names[0]}")
    bare = word.lstrip("-")
    if word.startswith("-") and equals:
        return UserError(f"unknown flag '{word}'", "key=value, without dashes", bare)
    return UserError(
        f"'{word}' is not an override", "key=value, such as train.epochs=5", f"{bare or 'train.epochs'}=<value>"
    )


def _is_group(override: Override, options: Options) -> bool:
    return override.key_or_group in options.groups and not isinstance(override.value(), dict)


def _of_group(override: Override, options: Options) -> Override | None:
    """Returns the choice of a group's option as Hydra takes it; None where it chooses what is chosen anyway."""
    group, value = override.key_or_group, override.value()
    names, default = options.groups[group], options.defaults.get(group)
    given = override.input_line or group
    allowed: str | list[str] = sorted(names)
    fix = f"{group}={default or (names[0] if names else '<option>')}"
    if override.is_delete():
        if group in ("evaluate", "export", "augment"):
            allowed = f"pipeline.{group}=null, which leaves a stage out"
        raise UserError(f"{given}: a group cannot be removed", allowed, fix)
    if override.package and (group in options.defaults or not override.is_add()):
        raise UserError(
            f"{given}: the place of an option cannot be changed", f"{group}=<option>", f"{group}={override.value()}"
        )
    if override.is_sweep_override():
        listed = override.is_choice_sweep() and override.value_type != ValueType.GLOB_CHOICE_SWEEP
        values = list(override.sweep_string_iterator()) if listed else []
    elif value is None and group in options.defaults and default is None:
        return None
    else:
        values = [str(one) for one in value] if isinstance(value, list) else ["null" if value is None else str(value)]
        if not values:
            raise UserError(f"{given} chooses no option", allowed, fix)
        if len(values) > 1 and default is not None:
            raise UserError(f"{given} chooses several options", "one of its options", f"{group}={values[0]}")
    for one in values:
        if one not in names and not (one == "null" and group in options.defaults and default is None):
            near = difflib.get_close_matches(one, names, 1, cutoff=0.4)
            typed = f"{group}={near[0]}" if near else fix
            raise UserError(
                f"{group}=null: a group cannot be null" if value is None else f"unknown option '{group}={one}'",
                allowed,
                typed,
            )
    prefix = "" if group in options.defaults or not given.startswith("+") else "+"
    plain = prefix + given.lstrip("+")
    return override if plain == given else _parsed(plain, options)


def _check_value(override: Override, options: Options, sweep: bool) -> None:
    """Raises UserError for several values in one run, and for values that no sweep can count."""
    if not override.is_sweep_override():
        return
    key, given = override.get_key_element(), str(override.input_line)
    if not sweep:
        raise UserError(
            f"{given} gives several values to one run",
            "one value, a list in brackets, or a sweep with -m",
            f"python -m pipeline -m {given if '(' not in given else repr(given)}",
        )
    if override.is_interval_sweep():
        interval: Any = override.value()
        start, end = interval.start, interval.end
        raise UserError(
            f"{given} is a range without steps, and a sweep runs every value",
            f"{key}=a,b,c, or range(<from>,<below>,<step>)",
            f"'{key}=range({start:g},{end:g},{(end - start) / 4:g})'",
        )
    value = override.value()
    if getattr(value, "shuffle", False):
        raise UserError(
            f"{given} would give another order each time, so the same command could not resume the sweep",
            f"{key}=a,b,c, or sort(…)",
            f"'{key}={given.partition('=')[2].removeprefix('shuffle(').removesuffix(')')}'",
        )
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        _expand_glob(override, options)
    if sweep_length(override) == 0:
        raise UserError(f"{given} has no value", "at least one", f"{key}=a,b")


def _expand_glob(override: Override, options: Options) -> None:
    """Makes a choice of the names that a pattern matches."""
    given, group = str(override.input_line), override.key_or_group
    names = options.groups.get(group)
    if names is None:
        raise UserError(f"{given}: only names of options match a pattern", f"{group}=a,b,c", f"{group}=a,b")
    pattern: Any = override.value()
    found = pattern.filter(sorted(names))
    if not found:
        raise UserError(f"{given} matches no option", names, f"'{group}=glob(*)'")
    override.value_type = ValueType.CHOICE_SWEEP
    override._value = ChoiceSweep(list=list(found))


def _check_deletion(override: Override) -> None:
    if not override.is_delete():
        return
    name, given = override.key_or_group, str(override.input_line)
    if name.startswith("pipeline."):
        raise UserError(f"{given}: a stage is left out by null", f"{name}=null", f"{name}=null")
    if "." not in name:
        raise UserError(f"{given}: a setting cannot be removed", "another value", f"{name}=<value>")
