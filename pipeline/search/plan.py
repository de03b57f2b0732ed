"""The plan of a search: its space, from Hydra's override syntax to Optuna's distributions, and its goals."""

import json
import math
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from pipeline.checks.combinations import read_composed
from pipeline.command_line.compose import Composed
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SearchSettings, TopSettings
from pipeline.internals.hydra import Override
from pipeline.runs.summary import best_metric, is_lower_better
from stages.errors import UserError

Compose = Callable[[Sequence[str]], Composed]
"""Returns the configuration of the command line with the overrides of one trial."""


@dataclass(frozen=True)
class Axis:
    """The values that one setting may take."""

    key: str
    """The setting as it is typed, such as `optimizer.learning_rate`, or `+my.setting`."""
    drawn_from: BaseDistribution
    """Optuna's distribution of the values. The values of a list are strings, as the user typed them."""

    @property
    def grid(self) -> Sequence[Any] | None:
        """All values, as Optuna draws them; None if they cannot be counted."""
        values = self.drawn_from
        if isinstance(values, CategoricalDistribution):
            return values.choices
        if values.step is None:
            return None
        if isinstance(values, IntDistribution):
            return range(values.low, values.high + 1, values.step)
        count = round((values.high - values.low) / values.step) + 1
        return [min(values.low + number * values.step, values.high) for number in range(count)]

    @property
    def lines(self) -> list[str]:
        """Overrides that set each value of a list, or both ends of a range. If these are valid, so are all others."""
        values = self.drawn_from
        ends = values.choices if isinstance(values, CategoricalDistribution) else (values.low, values.high)
        return list(dict.fromkeys(map(self.line, ends)))

    @property
    def text(self) -> str:
        """The values as text, different for every axis of the same setting."""
        values = self.drawn_from
        if isinstance(values, CategoricalDistribution):
            return ", ".join(values.choices)
        whole = "whole numbers " if isinstance(values, IntDistribution) else ""
        step = f", in steps of {values.step!r}" if values.step not in (None, 1) else ""
        return f"{whole}{values.low!r} to {values.high!r}{step}{', on a log scale' if values.log else ''}"

    def line(self, value: Any) -> str:
        """Return the override that sets a value from the study.

        Raises:
            UserError: If the value is not in the search space, as the file of the study may be from somebody else.
        """
        is_listed = isinstance(self.drawn_from, CategoricalDistribution)
        is_drawn = value in (self.grid or ()) if is_listed else re.fullmatch(r"[-+.\de]+", str(value))
        if not is_drawn:
            raise UserError(
                f"the study holds {self.key}={value!r}, which is not in the search space",
                f"one of {self.text}",
                "resume=never",
            )
        return f"{self.key}={value}"


def read_axes(overrides: Sequence[Override], compose: Compose) -> list[Axis]:
    """Return an axis for each override with several values.

    Args:
        overrides: The overrides of the search, checked by `command_line.overrides.checked`.
        compose: Returns the configuration of a trial, whose schema shows which settings are whole numbers.

    Raises:
        UserError: If no value can be drawn for one of them.
    """
    varying = [override for override in overrides if override.is_sweep_override()]
    lists = [override for override in varying if not (override.is_interval_sweep() or override.is_range_sweep())]
    first = compose([f"{one.get_key_element()}={next(one.sweep_string_iterator())}" for one in lists])
    axes = []
    for override in varying:
        key = override.get_key_element()
        try:
            axes.append(Axis(key, _distribution(override, _is_whole(key, first.document))))
        except ValueError as error:  # from here or from Optuna
            expected = "interval(<low>, <high>), with the lower number first, and above 0 for tag(log, …)"
            raise UserError(f"{override.input_line}: {error}", expected, f"'{key}=interval(0.1,1)'") from error
    return axes


def _distribution(override: Override, is_whole: bool) -> BaseDistribution:
    """Return the distribution of the values of an override.

    Args:
        override: An override with several values.
        is_whole: Whether the setting only accepts whole numbers. Hydra makes both ends of intervals floats.

    Raises:
        ValueError: If no value can be drawn.
    """
    value: Any = override.value()
    tags: set[str] = set(getattr(value, "tags", ()))
    if tags - {"log"}:
        raise ValueError(f"tag({', '.join(sorted(tags - {'log'}))}, …) is not supported")
    step = None
    if override.is_interval_sweep():
        low, high = (math.ceil(value.start), math.floor(value.end)) if is_whole else (value.start, value.end)
    elif override.is_range_sweep():  # its end is exclusive, the end of an axis is inclusive
        count = max(1, math.ceil((value.stop - value.start) / value.step - 1e-9))
        low, high = sorted((value.start, value.start + (count - 1) * value.step))
        step = abs(value.step)
    elif tags:
        raise ValueError("a list cannot be drawn on a log scale")
    else:
        return CategoricalDistribution(tuple(dict.fromkeys(override.sweep_string_iterator())))
    if all(isinstance(part, int) for part in (low, high, step or 1)):
        return IntDistribution(low, high, "log" in tags, step or 1)
    return FloatDistribution(low, high, "log" in tags, step)


def _is_whole(key: str, document: DictConfig) -> bool:
    """Return whether a setting is a whole number in its schema."""
    group, _, setting = key.lstrip("+").rpartition(".")
    schema = OmegaConf.get_type(OmegaConf.select(document, group)) if group else TopSettings
    return is_dataclass(schema) and typing.get_type_hints(schema).get(setting) in (int, int | None)


def probes(axes: Sequence[Axis]) -> Iterator[list[str]]:
    """Yield sets of overrides that together try both ends of every axis, with the first value of the other axes."""
    first = [axis.lines[0] for axis in axes]
    yield first
    for place, axis in enumerate(axes):
        for line in axis.lines[1:]:
            yield [*first[:place], line, *first[place + 1 :]]


BEST = "val/best_"
"""Prefix of the validation metrics of the best epoch, whose weights are evaluated and exported."""

_HIGHER_IS_BETTER = re.compile(r"accuracy|auc|precision|recall|f1|per_second|iou|dice|r2")

OF_TEST = ("test/", "trivial/", "baseline/", "against/")
"""Prefixes of metrics of the test split."""


@dataclass(frozen=True)
class Goal:
    """A metric that a search optimizes."""

    metric: str
    """The full name of the metric."""
    direction: str
    """`maximize` or `minimize`."""


@dataclass(frozen=True)
class Plan:
    """The plan of the trials that a study draws."""

    settings: SearchSettings
    """The settings, with the number of trials and of random trials that they mean for this space."""
    goals: tuple[Goal, ...]
    axes: tuple[Axis, ...]

    def lines(self, trial: FrozenTrial) -> tuple[str, ...]:
        """Return the overrides of a trial."""
        return tuple(axis.line(trial.params.get(axis.key)) for axis in self.axes)

    @property
    def points(self) -> int | None:
        """The number of points of the space; None if they cannot be counted."""
        grids = [axis.grid for axis in self.axes]
        return None if any(grid is None for grid in grids) else math.prod(len(grid or ()) for grid in grids)

    @property
    def tries_each_point_once(self) -> bool:
        """Whether no point is drawn twice, as in a grid, or if there are enough trials for every point."""
        return self.settings.sampler == "grid" or self.points == self.settings.trials

    @property
    def prunes(self) -> bool:
        """Whether trials are ended early. Not with several goals, as a trial may be the best in any of them."""
        return self.settings.pruner != "none" and len(self.goals) == 1

    def describe(self) -> str:
        """Return the facts that must be equal for a search to be resumed, as JSON.

        The number of trials may grow, and the number of trials at a time may change.
        """
        names = ("sampler", "pruner", "min_epochs", "population", "seed")
        goals = [[goal.metric, goal.direction] for goal in self.goals]
        space = sorted((axis.key, axis.text) for axis in self.axes)
        return json.dumps([space, goals, *(getattr(self.settings, name) for name in names)])


def plan_search(settings: SearchSettings, axes: Sequence[Axis], experiment: Experiment) -> Plan:
    """Return the plan of a search.

    Args:
        settings: The settings of the search.
        axes: Its space.
        experiment: The configuration of one of its trials.

    Raises:
        UserError: If the settings do not fit the space.
    """
    goals = _goals(settings, experiment)
    of_task = next((axis.key for axis in axes if axis.key.partition(".")[0] == "task"), None)
    of_loss = next((goal.metric for goal in goals if goal.metric.endswith("loss")), None)
    if of_task and of_loss:
        raise UserError(
            f"{of_task} cannot be searched by {of_loss}, because different losses have different scales",
            f"a metric that does not depend on the loss, such as {BEST}accuracy, or {BEST}rmse for regression",
            f"sweep.metric={BEST}<metric>",
        )
    countless = [axis.key for axis in axes if axis.grid is None]
    if settings.sampler == "grid" and countless:
        problem = f"sweep.sampler=grid tries every value, but {countless[0]} is an interval"
        raise UserError(problem, "tpe, nsga2 or random", "sweep.sampler=tpe")
    if settings.sampler == "cmaes" and len(goals) > 1:
        raise UserError("sweep.sampler=cmaes supports only one goal", "tpe, nsga2 or random", "sweep.sampler=nsga2")
    points = Plan(settings, goals, tuple(axes)).points
    trials = min(settings.trials, points or settings.trials)
    startup = settings.startup_trials or min(10, math.ceil(trials / 4))
    return Plan(replace(settings, trials=trials, startup_trials=startup), goals, tuple(axes))


def _goals(settings: SearchSettings, experiment: Experiment) -> tuple[Goal, ...]:
    """Return the goals: the given metrics, or else the metric by which training chooses its best epoch."""
    monitor = str(getattr(experiment.settings.get("train"), "monitor", "val_loss"))
    metrics = _listed(settings.metric) or [best_metric(monitor) or f"train/{monitor}"]
    directions = _listed(settings.direction) or [_direction(metric) for metric in metrics]
    if len(directions) != len(metrics) or set(directions) - {"maximize", "minimize"}:
        fix = f"sweep.direction=[{','.join(['maximize'] * len(metrics))}]"
        problem = f"sweep.direction={settings.direction} does not fit the metrics"
        raise UserError(problem, "maximize or minimize, one per metric", fix)
    for metric in metrics:
        if metric.startswith(OF_TEST):
            raise UserError(
                f"sweep.metric={metric} would choose on the test split, which would bias its results",
                "a metric of validation or training",
                f"sweep.metric={BEST}{'loss' if 'loss' in metric else 'accuracy'}",
            )
    return tuple(map(Goal, metrics, directions))


def _listed(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value]) if one is not None]


def _direction(metric: str) -> str:
    if is_lower_better(metric):
        return "minimize"
    if _HIGHER_IS_BETTER.search(metric.rpartition("/")[2]):
        return "maximize"
    problem = f"sweep.metric={metric}: it is unknown whether higher is better"
    raise UserError(problem, "maximize, minimize", "sweep.direction=maximize")


def read_trial(compose: Compose, lines: Sequence[str]) -> Experiment:
    """Return the configuration of the trial with the overrides `lines`.

    Raises:
        UserError: If one of them has no effect, or a value that is not allowed.
    """
    composed = compose(lines)
    try:
        return read_composed(composed)
    except UserError as error:
        raise error.within(f"trial {' '.join(lines)}") from error


def check_axes(settings: SearchSettings, axes: Sequence[Axis]) -> None:
    """Refuse a search without axes."""
    if not axes:
        raise UserError(
            f"sweep={settings.sampler} has nothing to search: no setting has several values",
            "an interval, a range or a list for at least one setting",
            "'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'",
        )


def refuse_debug(experiment: Experiment, axes: Sequence[Axis]) -> None:
    """Refuse a debug run as a trial."""
    if experiment.debug is not None:
        raise UserError(
            f"debug={experiment.debug.kind} cannot be used in a search, because results of debug runs do not count",
            "a sweep over some of the values",
            f"python -m pipeline -m debug={experiment.debug.kind} {axes[0].key}=<value>,<value>",
        )
