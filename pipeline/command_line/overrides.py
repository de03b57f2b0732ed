"""Overrides: parse them with Hydra, check them before composition, and expand them into the jobs of a sweep."""

import itertools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hydra.errors import HydraException

from pipeline.command_line.arguments import VERBS
from pipeline.config.errors import unknown_option
from pipeline.config.names import Options, is_setting, suggestion_for_other_name, suggestion_for_path
from pipeline.config.schemas import SweepSettings
from pipeline.internals import hydra
from pipeline.internals.hydra import Override, RangeSweep, ValueType
from stages.errors import UserError
from stages.settings.ranges import assignment, quoted

_VALUES = "a,b,c, range(<start>,<stop>,<step>) or glob(<pattern>); an interval requires a search (sweep=tpe)"


def parsed(words: Sequence[str]) -> tuple[Override, ...]:
    """Return `words` as parsed by Hydra. If a key is repeated, only its last value counts, unless mappings are merged.

    Raises:
        UserError: For the first word that cannot be parsed.
    """
    overrides: list[Override] = []
    for place, word in enumerate(words):
        try:
            overrides.append(_parse(word))
        except _UNREADABLE as error:
            expected = "key=value without spaces, and nested quotes around a value with brackets, commas, colons or ="
            if re.search(r"[^\x00-\x7f][^=]*[:=]", word):
                expected += "; names with letters such as ö are only supported in YAML files"
            raise UserError(f"'{word}' is not an override", expected, _meant(words, place)) from error
    last = {(override.key_or_group, override.package): override for override in overrides}
    return tuple(
        override
        for override in overrides
        if override is last[override.key_or_group, override.package]
        or override.is_delete()
        or isinstance(override.value(), dict)
    )


_UNREADABLE = (HydraException, RecursionError, ValueError)
"""Exceptions for words that are not overrides; ValueError is for a number with thousands of digits."""


def _parse(word: str) -> Override:
    override = hydra.parse(_with_patterns(_with_letters(word)))
    if not override.key_or_group:  # `=3`
        raise ValueError(word)
    return override


def _with_letters(word: str) -> str:
    """Return `word` with plain values, also in a list, in quotes if Hydra requires quotes for their characters."""
    name, _, value = word.partition("=")
    if not name.isascii() or not _LETTERS.search(value) or set(value) & set("(){}:='\"$"):
        return word
    in_quotes = re.sub(
        r"[^\[\],]+", lambda part: quoted(part[0].strip()) if _LETTERS.search(part[0]) else part[0], value
    )
    return f"{name}={in_quotes}"


_LETTERS = re.compile(r"[^\x00-\x7f]|[~#&;<>^`!]")
"""Characters of plain values, such as ~/photos, for which Hydra's grammar requires quotes."""


def _meant(words: Sequence[str], place: int) -> str:
    """Return what to type instead of the word at `place`, which is not an override."""
    word = words[place]
    around = " ".join(words[max(place - 1, 0) : place + 3])
    spaced = re.search(r"(?:^|\s)([A-Za-z_][\w./@-]*)(?:\s*=\s+|\s+=\s*|:\s+)([^\s=]+)(?=\s|$)", around)
    name, sign, value = word.partition("=")
    value = value.rstrip(",") or value  # `0.1,`
    if not sign and spaced and word in spaced[0].split():  # `train.epochs = 3`, `train.epochs= 3`
        return assignment(spaced[1], spaced[2])
    if not sign and (path := suggestion_for_path(word)):
        return path
    if word in VERBS:  # a verb must be the first word
        return f"python -m pipeline {word}"
    if plain := re.match(r"([A-Za-z_][\w./:]*?)\s*[=:]\s*([\w.-]+)\s*$", word):  # `train.epochs:3`
        return assignment(plain[1].replace(":", "."), plain[2])
    if re.fullmatch(r"\(.*\)", value):  # a tuple
        value, fixes = value[1:-1], (f"'{name}=[{value[1:-1]}]'",)
    else:
        fixes = (f"'{name}=[<value>,<value>]'",) if value.startswith("[") else (assignment(name, value),)
    name = re.split(r"[=:\s]", word.strip("-=: "))[0]
    for fix in fixes if sign and value and not set(value) & set("{(") else ():
        with suppress(*_UNREADABLE):
            _parse(shlex.split(fix)[0].replace("<value>", "1"))
            return fix
    return f"{name}=<value>" if is_setting(name) else "--help"


def checked(overrides: Sequence[Override], options: Options, sweep: bool) -> tuple[Override, ...]:
    """Return the overrides in the form that Hydra accepts.

    Choices of options lose their plus signs, and null for a group whose default is null is left out.

    Args:
        overrides: The parsed overrides.
        options: The available options.
        sweep: Whether the command is a sweep, so overrides may have several values.

    Raises:
        UserError: For the first override that Hydra would ignore or that has no effect here.
    """
    effective = []
    for given in overrides:
        key = given.key_or_group
        if re.match(r"hydra($|[./])", key):
            problem = f"{given.input_line}: Hydra's own settings have no effect here"
            fix = suggestion_for_other_name(key, "") or ("outputs=<folder>" if key.endswith("dir") else "--help")
            raise UserError(problem, "a setting of this project, such as outputs=, sweep= or --config-dir", fix)
        override = _enumerated(given, options, sweep) if given.is_sweep_override() else given
        value = override.value()
        _refuse_outside(override, options)
        if key not in options.defaults or isinstance(value, dict):
            effective.append(override)
        elif not isinstance(value, (str, list)) and not override.is_sweep_override():
            if value is not None or options.defaults[key] is not None:
                raise unknown_option(key, "null" if value is None else str(value).lower(), options.groups[key])
        elif override.is_add() or override.is_force_add():
            effective.append(hydra.parse(str(override.input_line).lstrip("+")))
        else:
            effective.append(override)
    return tuple(effective)


def _refuse_outside(override: Override, options: Options) -> None:
    """Refuse an option whose path leads out of the folders of options, because Hydra would read any file.

    An unknown option in a list is refused as well, because Hydra would only report that it cannot be loaded.
    """
    group, value = override.key_or_group.split("/")[0], override.value()
    is_swept = override.is_sweep_override() and not override.is_interval_sweep()
    values: Any = override.sweep_string_iterator() if is_swept else value if isinstance(value, list) else [value]
    for option in map(str, values if group in options.groups else ()):
        if ".." in option.split("/") or (isinstance(value, list) and option not in options.groups[group]):
            raise unknown_option(group, option, options.groups[group])


def is_of_sweep(override: Override) -> bool:
    """Return whether `override` belongs to the group `sweep`, which is not part of a job."""
    return override.key_or_group == "sweep" or override.key_or_group.startswith("sweep.")


def chooses_sweep(overrides: Sequence[Override]) -> bool:
    """Return whether one of `overrides` chooses a sweep from a file, or defines one with `sweep.over`."""
    return any(
        override.key_or_group.startswith("sweep.over")
        or (override.key_or_group == "sweep" and override.value() not in (None, "none"))
        for override in overrides
    )


def sweep_lines(override: Override) -> Iterator[str]:
    """Yield a checked override with each of its values, as typed."""
    if not override.is_sweep_override():
        yield str(override.input_line)
        return
    for value in override.sweep_string_iterator():
        yield f"{override.get_key_element()}={value}"


def override_of(name: str, values: Any) -> str:
    """Return an entry of `sweep.over` as a user would type it: text unchanged, a list as values with commas."""
    if isinstance(values, (list, tuple)):
        return f"{name}={','.join(map(as_typed, values))}"
    return f"{name}={values if isinstance(values, str) else as_typed(values)}"


def as_typed(value: Any) -> str:
    """Return a value in Hydra's grammar for overrides."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{as_typed(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(as_typed, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)) or re.fullmatch(r"[\w./-]+", value):
        return str(value)
    return quoted(str(value))


class Combinations:
    """The jobs of a sweep as lists of overrides; the last setting with several values changes fastest."""

    def __init__(self, overrides: Sequence[Override], settings: SweepSettings) -> None:
        """Read the values of all settings that vary.

        Args:
            overrides: The overrides of all jobs, in order.
            settings: The settings of the sweep.

        Raises:
            UserError: If `zip` or `exclude` name a setting that does not vary, or `zip` settings with different
                numbers of values.
        """
        self._overrides = overrides
        for override in overrides:
            if override.is_interval_sweep():
                problem = f"{override.input_line}: a sweep requires a list of values, not an interval"
                raise UserError(problem, _VALUES, f"{override.key_or_group}=<a>,<b>")
        values = {one.key_or_group: list(sweep_lines(one)) for one in overrides if one.is_sweep_override()}
        zips = {name: tuple(names) for names in settings.zipped() for name in names}
        self._exclude = [
            {str(name): value if isinstance(value, list) else [value] for name, value in entry.items()}
            for entry in settings.exclude
        ]
        for name in (*zips, *itertools.chain(*self._exclude)):
            if name not in values:
                expected = [*values] or "a setting with several values"
                raise UserError(f"sweep.zip or sweep.exclude names {name}, which has only one value", expected)
        self._axes: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for key in values:
            names = zips.get(key, (key,))
            if len({len(values[name]) for name in names}) > 1:
                counts = ", ".join(f"{name} has {len(values[name])}" for name in names)
                problem = f"sweep.zip: the settings have different numbers of values ({counts})"
                raise UserError(problem, "the same number of values for each setting", "sweep.zip=[]")
            self._axes[names] = list(zip(*(values[name] for name in names), strict=True))

    def __len__(self) -> int:
        """Return the number of jobs, including those that `exclude` leaves out."""
        return math.prod(map(len, self._axes.values()))

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the overrides of each job, as a user would type them.

        Raises:
            UserError: At the end, if `sweep.exclude` has left out all jobs.
        """
        count = 0
        for values in itertools.product(*self._axes.values()):
            lines = dict(zip(itertools.chain(*self._axes), itertools.chain(*values), strict=True))
            job = [lines.get(one.key_or_group, str(one.input_line)) for one in self._overrides]
            if not self._is_excluded(job):
                count += 1
                yield job
        if not count:
            raise UserError("sweep.exclude excludes every job", "at least one remaining job", "sweep.exclude=[]")

    def _is_excluded(self, job: Sequence[str]) -> bool:
        if not self._exclude:
            return False
        values = {one.key_or_group: one.value() for one in map(hydra.parse, job)}
        return any(
            all(str(values[name]) in map(str, excluded) for name, excluded in entry.items()) for entry in self._exclude
        )


def _with_patterns(word: str) -> str:
    """Return `precision.layers.conv2d*=float32` as `precision.layers={conv2d*: float32}`.

    Hydra's names cannot contain an asterisk, and a name that is not in the configuration would need a plus sign.
    """
    match = re.fullmatch(r"((?:precision|strategy)\.layers)\.([^=]+)=(.+)", word)
    if match is None:
        return word
    return f"{match[1]}=" + ",".join(f"{{{match[2]}: {value}}}" for value in match[3].split(","))


def _enumerated(override: Override, options: Options, sweep: bool) -> Override:
    """Return an override with several values, with `glob(…)` replaced by the options that it matches.

    Raises:
        UserError: If this is a single run, or if a sweep cannot enumerate the values.
    """
    key, typed, value = override.get_key_element(), str(override.input_line), override.value()
    if not sweep or is_of_sweep(override):
        what = "a single run" if not sweep else "a setting of the sweep itself"
        expected = "one value, a list in brackets, or a setting of the jobs together with -m"
        fix = f"python -m pipeline -m {shlex.quote(typed) if not is_of_sweep(override) else f'{key}=<value> …'}"
        raise UserError(f"{typed} has several values, but {what} takes only one", expected, fix)
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        names = options.groups.get(override.key_or_group, ())
        matches = value.filter(sorted(names))  # type: ignore[union-attr]
        if matches:
            return hydra.parse(f"{key}=choice({','.join(matches)})")
    bounds = (value.start, value.stop, value.step) if isinstance(value, RangeSweep) else ()
    if 0 in bounds[2:] or not all(math.isfinite(bound or 0) for bound in bounds):
        raise UserError(f"{typed} never ends", _VALUES, f"{key}=range(1,4)")
    is_counted = override.is_interval_sweep() or (
        override.value_type != ValueType.GLOB_CHOICE_SWEEP and any(override.sweep_string_iterator())
    )
    if getattr(value, "shuffle", False) or not is_counted:  # a sweep with a new order each time could not be resumed
        raise UserError(f"{typed} is empty or shuffled", _VALUES, f"{key}=<a>,<b>")
    return override
