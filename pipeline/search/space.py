"""Search space: from Hydra's override syntax to Optuna's distributions."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, IntegerNode, OmegaConf

from pipeline.command_line.compose import Composed
from stages.errors import UserError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


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

    @cached_property
    def distribution(self) -> "BaseDistribution":
        """The distribution from which Optuna draws this setting.

        Raises:
            ValueError: where nothing can be drawn from it.
        """
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), log=self.is_log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.is_log, step=self.step)

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """Every value, as Optuna has it; None where they cannot be counted."""
        step = self.step or self.is_whole
        if self.choices or not step:
            return self.choices or None
        values = (self.low + index * step for index in range(math.floor((self.high - self.low) / step + 1e-9) + 1))
        return tuple(int(value) if self.is_whole else value for value in values)

    @property
    def lines(self) -> list[str]:
        """Overrides that set every choice, or the ends: where all of these are allowed, the rest is."""
        return list(dict.fromkeys(map(self.line, self.choices or (self.low, self.high))))

    @property
    def text(self) -> str:
        """The values as a person reads them, and as what tells this axis from another of the same setting."""
        if self.choices:
            return ", ".join(self.choices)
        step = f", in steps of {self.step!r}" if self.step else ""
        whole = "whole numbers " if self.is_whole else ""
        return f"{whole}{self.low!r} to {self.high!r}{step}{', by the logarithm' if self.is_log else ''}"

    def line(self, value: Any) -> str:
        """Return the override that sets a value which Optuna has drawn."""
        if not self.choices:
            value = int(value) if self.is_whole else repr(float(value))
        return f"{self.key}={value}"


def read_axes(overrides: Sequence[Override], compose: Callable[[Sequence[str]], Composed]) -> list[Axis]:
    """Return the axes among overrides that have passed `command_line.overrides.checked`.

    Args:
        compose: returns the configuration with the overrides of a trial: its schema says which settings are whole
            numbers.

    Raises:
        UserError: for values from which nothing can be drawn.
    """
    varying = [override for override in overrides if override.is_sweep_override()]
    lists = [override for override in varying if not (override.is_interval_sweep() or override.is_range_sweep())]
    first = compose([f"{one.get_key_element()}={next(one.sweep_string_iterator())}" for one in lists])
    return [_axis(override, first.document) for override in varying]


def _axis(override: Override, document: DictConfig) -> Axis:
    value: Any = override.value()
    key = override.get_key_element()
    tags: set[str] = set(getattr(value, "tags", ()))
    is_log = "log" in tags
    try:
        if tags - {"log"}:
            raise ValueError(f"tag({', '.join(sorted(tags - {'log'}))}, …) has no meaning")
        if override.is_interval_sweep():
            whole = isinstance(value.start, int) and isinstance(value.end, int)
            low, high = value.start, value.end
            if not whole and _is_whole(key, document):
                whole, low, high = True, math.ceil(low), math.floor(high)
            axis = Axis(key, low=low, high=high, is_whole=whole, is_log=is_log)
        elif override.is_range_sweep():  # its end is exclusive, which that of an axis is not
            count = max(1, math.ceil((value.stop - value.start) / value.step - 1e-9))
            low, high = sorted((value.start, value.start + (count - 1) * value.step))
            whole = all(isinstance(number, int) for number in (value.start, value.stop, value.step))
            axis = Axis(key, low=low, high=high, step=abs(value.step), is_whole=whole, is_log=is_log)
        elif is_log:
            raise ValueError("a list cannot be drawn by its logarithm")
        else:
            axis = Axis(key, tuple(dict.fromkeys(override.sweep_string_iterator())))
        if axis.distribution.single() and not axis.choices:
            raise ValueError("there is one value only")
    except ValueError as error:  # Optuna's, too
        expected = "interval(<low>, <high>), the lower number first, above 0 for tag(log, …)"
        raise UserError(f"{override.input_line}: {error}", expected, f"'{key}=interval(0.1,1)'") from error
    return axis


def _is_whole(key: str, document: DictConfig) -> bool:
    """Return whether the schema of a setting has a whole number for it: Hydra makes both ends of intervals floats."""
    group, _, setting = key.lstrip("+").rpartition(".")
    parent = OmegaConf.select(document, group) if group else document
    return isinstance(parent, DictConfig) and isinstance(parent._get_node(setting, validate_access=False), IntegerNode)


def probes(axes: Sequence[Axis]) -> Iterator[list[str]]:
    """Yield sets of overrides that together try every end of every axis, the others at their first."""
    first = [axis.lines[0] for axis in axes]
    yield first
    for place, axis in enumerate(axes):
        for line in axis.lines[1:]:
            yield [*first[:place], line, *first[place + 1 :]]


def size(axes: Sequence[Axis]) -> int | None:
    """Return how many points the space has; None where they cannot be counted."""
    grids = [axis.grid for axis in axes]
    return None if any(grid is None for grid in grids) else math.prod(len(grid or ()) for grid in grids)
