"""The grid of a sweep: every combination of the values that vary, but those that are zipped or excluded."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from pipeline.command_line.overrides import sweep_length, sweep_lines
from pipeline.config.sweep import SweepSettings
from stages.errors import UserError


def override_of(name: str, values: Any) -> str:
    """Returns an entry of `sweep.over` as a user types it: text as it is, a list as values with commas."""
    if isinstance(values, (list, tuple)):
        return f"{name}={','.join(map(as_typed, values))}"
    return f"{name}={values if isinstance(values, str) else as_typed(values)}"


def as_typed(value: Any) -> str:
    """Returns a value as Hydra's grammar for overrides has it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{as_typed(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(as_typed, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)) or re.fullmatch(r"[\w./-]+", value):
        return str(value)
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


class Grid:
    """The jobs of a sweep as lists of overrides, the last of the values that vary changing fastest."""

    def __init__(self, overrides: Sequence[Override], settings: SweepSettings) -> None:
        """Takes the overrides of all jobs, in their order.

        Raises:
            UserError: where `settings` zip or exclude what does not vary, or zip unequal numbers of values.
        """
        self._overrides = overrides
        self._varying = {override.key_or_group: override for override in overrides if override.is_sweep_override()}
        self._zips = [names for names in settings.zipped() if names]
        self._exclude = settings.exclude
        self._check_zips()
        for entry in self._exclude:
            for name in entry:
                self._check_varies(str(name), "sweep.exclude")

    def __len__(self) -> int:
        """Returns how many jobs there are, those left out included, without making them."""
        zipped = {name for names in self._zips for name in names[1:]}
        return math.prod(sweep_length(override) for name, override in self._varying.items() if name not in zipped)

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the overrides of each job, as a user types them.

        Raises:
            UserError: at the end, where `sweep.exclude` has left out none, or all.
        """
        first_of = {name: names for names in self._zips for name in names}
        places = {override.key_or_group: place for place, override in enumerate(self._overrides)}
        columns: list[list[tuple[str, ...]]] = []
        orders: list[list[int]] = []
        for place, override in enumerate(self._overrides):
            names = (
                first_of.get(override.key_or_group, [override.key_or_group]) if override.is_sweep_override() else None
            )
            if names is None:
                columns.append([tuple(sweep_lines(override))])
                orders.append([place])
            elif places[override.key_or_group] == min(places[name] for name in names):
                columns.append(list(zip(*(sweep_lines(self._varying[name]) for name in names), strict=True)))
                orders.append([places[name] for name in names])
        order = [place for group in orders for place in group]
        used: set[int] = set()
        count = 0
        for combination in itertools.product(*columns):
            lines = [line for group in combination for line in group]
            job = [line for _, line in sorted(zip(order, lines, strict=True))]
            if not self._is_excluded(job, used):
                count += 1
                yield job
        unused = [entry for number, entry in enumerate(self._exclude) if number not in used]
        if unused:
            raise UserError(
                f"sweep.exclude: no job has {_text(unused[0])}", "combinations of the values given", "sweep.exclude=[]"
            )
        if not count:
            raise UserError("sweep.exclude leaves no job", "fewer exclusions", "sweep.exclude=[]")

    def first(self) -> list[str]:
        """Returns the overrides of the first combination."""
        return [next(sweep_lines(override)) for override in self._overrides]

    def _is_excluded(self, job: Sequence[str], used: set[int]) -> bool:
        if not self._exclude:
            return False
        parser = OverridesParser.create()
        values = {override.key_or_group: override.value() for override in parser.parse_overrides(list(job))}
        matching = {number for number, entry in enumerate(self._exclude) if _matches(entry, values)}
        used |= matching
        return bool(matching)

    def _check_zips(self) -> None:
        taken: set[str] = set()
        for names in self._zips:
            for name in names:
                self._check_varies(name, "sweep.zip")
                if name in taken:
                    raise UserError(f"sweep.zip names {name} twice", "each name once", "sweep.zip=[]")
                taken.add(name)
            lengths = [sweep_length(self._varying[name]) for name in names]
            if len(set(lengths)) > 1:
                counts = ", ".join(f"{name} {length}" for name, length in zip(names, lengths, strict=True))
                raise UserError(
                    f"sweep.zip: the numbers of values differ ({counts})", "as many values of each", "sweep.zip=[]"
                )

    def _check_varies(self, name: str, setting: str) -> None:
        if name not in self._varying:
            expected = [*self._varying] or "a setting with several values"
            raise UserError(f"{setting} names {name}, which does not vary", expected, f"{name}=<value>,<value>")


def _matches(entry: Mapping[Any, Any], values: Mapping[str, Any]) -> bool:
    for name, excluded in entry.items():
        allowed = excluded if isinstance(excluded, list) else [excluded]
        value = values[str(name)]
        if not any(value == item or str(value) == str(item) for item in allowed):
            return False
    return True


def _text(entry: Mapping[Any, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in entry.items())
