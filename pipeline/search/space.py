"""Search space: from Hydra's override syntax to Optuna's distributions."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, IntegerNode, OmegaConf

from pipeline.config.schemas import TopSettings, top_level_key
from stages.errors import UserError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEAST_OF_LOG = "above 0, as tag(log, …) draws the exponent evenly"


@dataclass(frozen=True)
class Axis:
    """The values that one setting may take.

    key: as it is typed, such as `optimizer.learning_rate`, or `+my.setting`.
    choices: the values as they are typed, where they are a list; then the numbers below have no meaning.
    low, high: the least and the greatest number, both inclusive; step: between two of them, None for any number.
    is_whole: whether the numbers are integers; is_log: whether their logarithm is drawn evenly.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    is_whole: bool = False
    is_log: bool = False

    @property
    def distribution(self) -> "BaseDistribution":
        """The distribution from which Optuna draws this setting."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), log=self.is_log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.is_log, step=self.step)

    @property
    def ends(self) -> tuple[str, ...]:
        """Every choice, or the least and the greatest number: where all of these are allowed, the rest is."""
        return self.choices or tuple(dict.fromkeys(self._text(value) for value in (self.low, self.high)))

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """Every value, as Optuna has it; None where they cannot be counted."""
        if self.choices:
            return self.choices
        if self.step is None and not self.is_whole:
            return None
        step = self.step or 1
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        values = (self.low + index * step for index in range(count))
        return tuple(int(value) if self.is_whole else value for value in values)

    @property
    def text(self) -> str:
        """The values as a person reads them."""
        if self.choices:
            return ", ".join(self.choices)
        step = f", in steps of {self.step:g}" if self.step and not (self.is_whole and self.step == 1) else ""
        whole = "whole numbers " if self.is_whole else ""
        return f"{whole}{self.low:g} to {self.high:g}{step}{', by the logarithm' if self.is_log else ''}"

    def line(self, value: Any) -> str:
        """Returns the override that sets a value which Optuna has drawn."""
        return f"{self.key}={value if self.choices else self._text(value)}"

    def line_of_end(self, number: int) -> str:
        """Returns the override that sets one of `ends`."""
        return f"{self.key}={self.ends[number]}"

    def describe(self) -> dict[str, Any]:
        """Returns what tells this axis from another of the same setting, as JSON can hold it."""
        if self.choices:
            return {"choices": list(self.choices)}
        return {"low": self.low, "high": self.high, "step": self.step, "whole": self.is_whole, "log": self.is_log}

    def _text(self, value: float) -> str:
        return str(int(value)) if self.is_whole else repr(float(value))


def read_axes(overrides: Sequence[Override]) -> list[Axis]:
    """Returns the axes among overrides that have passed `command_line.overrides.checked`.

    Raises:
        UserError: for values from which nothing can be drawn.
    """
    return [_axis(override) for override in overrides if override.is_sweep_override()]


def _axis(override: Override) -> Axis:
    value: Any = override.value()
    key = override.get_key_element()
    is_log = "log" in getattr(value, "tags", ())
    unknown: set[str] = getattr(value, "tags", set()) - {"log"}
    if unknown:
        raise _refused(override, f"tag({', '.join(sorted(unknown))}, …) has no meaning", "tag(log, interval(…))")
    if override.is_interval_sweep():
        if not value.start < value.end:
            raise _refused(override, "the interval is empty", "interval(<low>, <high>), the lower number first")
        whole = isinstance(value.start, int) and isinstance(value.end, int)
        axis = Axis(key, low=value.start, high=value.end, is_whole=whole, is_log=is_log)
    elif override.is_range_sweep():
        axis = _of_range(key, value, is_log)
        if is_log and not (axis.is_whole and axis.step == 1):
            raise _refused(override, "a range with steps cannot be drawn by its logarithm", "tag(log, interval(…))")
    else:
        if is_log:
            raise _refused(override, "a list cannot be drawn by its logarithm", "tag(log, interval(…))")
        return Axis(key, tuple(dict.fromkeys(override.sweep_string_iterator())))
    if is_log and axis.low <= 0:
        raise _refused(override, f"{axis.low:g} has no logarithm", LEAST_OF_LOG)
    return axis


def with_whole_numbers(axes: Sequence[Axis], document: DictConfig) -> tuple[Axis, ...]:
    """Returns `axes` in whole numbers where the settings of `document` are: Hydra makes both ends of intervals floats.

    Ends with a fraction stay as they are, and are refused where they are set.
    """
    return tuple(
        replace(axis, is_whole=True)
        if not axis.choices
        and axis.step is None
        and _is_whole(axis.key.lstrip("+"), document)
        and float(axis.low).is_integer()
        and float(axis.high).is_integer()
        else axis
        for axis in axes
    )


def _is_whole(name: str, document: DictConfig) -> bool:
    """Returns whether the schema of a setting has a whole number for it."""
    if "." not in name:
        types = {top_level_key(entry.name): entry.type for entry in dataclasses.fields(TopSettings)}
        return types.get(name) is int
    group, _, setting = name.rpartition(".")
    parent = OmegaConf.select(document, group)
    return isinstance(parent, DictConfig) and isinstance(parent._get_node(setting, validate_access=False), IntegerNode)


def _of_range(key: str, value: Any, is_log: bool) -> Axis:
    """Returns Hydra's `range`, whose end is exclusive, as an axis, whose end is not."""
    start, stop, step = value.start, value.stop, value.step
    count = max(1, math.ceil((stop - start) / step - 1e-9))
    low, high = sorted((start, start + (count - 1) * step))
    whole = all(isinstance(number, int) for number in (start, stop, step))
    return Axis(key, low=low, high=high, step=abs(step), is_whole=whole, is_log=is_log)


def _refused(override: Override, problem: str, expected: str) -> UserError:
    key = override.get_key_element()
    return UserError(f"{override.input_line}: {problem}", expected, f"'{key}=interval(0.1,1)'")


def probes(axes: Sequence[Axis]) -> Iterator[list[str]]:
    """Yields sets of overrides that together try every end of every axis, the others at their first."""
    first = [axis.line_of_end(0) for axis in axes]
    yield first
    for place, axis in enumerate(axes):
        for number in range(1, len(axis.ends)):
            yield [*first[:place], axis.line_of_end(number), *first[place + 1 :]]


def size(axes: Sequence[Axis]) -> int | None:
    """Returns how many points the space has; None where they cannot be counted."""
    grids = [axis.grid for axis in axes]
    return None if any(grid is None for grid in grids) else math.prod(len(grid or ()) for grid in grids)
