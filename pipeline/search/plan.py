"""The plan of a search: its goals and its space, checked before the first trial."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeline.checks.no_effect import refuse_unused
from pipeline.command_line.compose import Composed
from pipeline.comparison.rows import is_lower_better
from pipeline.config.experiment import Experiment, read
from pipeline.config.sweep import SearchSettings
from pipeline.run_folder.summary import best_metric
from pipeline.search.space import Axis, size
from stages.errors import UserError

Compose = Callable[[Sequence[str]], Composed]
"""Returns the configuration of the command line with the overrides of one trial."""

BEST = "val/best_"
"""Prefix of a validation metric of the best epoch, by which the weights are chosen."""

_HIGHER_IS_BETTER = re.compile(r"accuracy|auc|precision|recall|f1|per_second|score|iou|dice|r2")

OF_VALIDATION = (
    "data", "data.dir", "data.name", "data.split_seed", "data.val_fraction", "data.test_fraction", "data.train_split",
    "data.val_split", "data.image_key", "data.label_key", "data.examples", "data.num_classes", "data.min_side",
)  # fmt: skip
"""Settings that decide which examples the metric of a trial is of."""

LARGEST_STARTUP = 10
STARTUP_SHARE = 4


@dataclass(frozen=True)
class Goal:
    """A metric that a search optimizes."""

    metric: str  # by its full name
    direction: str  # `maximize` or `minimize`

    @property
    def of_epoch(self) -> str:
        """The metric of each epoch from which this one comes: `val/loss` of `val/best_loss`."""
        return self.metric.replace(BEST, "val/", 1)


@dataclass(frozen=True)
class Plan:
    """The trials that a study draws."""

    settings: SearchSettings  # with the numbers of trials, at random and in all, that they mean for this space
    goals: tuple[Goal, ...]
    axes: tuple[Axis, ...]

    @property
    def prunes(self) -> bool:
        """Whether trials are ended early: a trial that is worse in one of several goals may be better in another."""
        return self.settings.pruner != "none" and len(self.goals) == 1

    def describe(self) -> str:
        """Return what a search must have in common with the one that it resumes, as JSON.

        The number of trials may grow, and how many run at a time is the machine's matter.
        """
        names = ("sampler", "pruner", "min_epochs", "population", "seed")
        goals = [[goal.metric, goal.direction] for goal in self.goals]
        space = sorted((axis.key, axis.text) for axis in self.axes)
        return json.dumps([space, goals, *(getattr(self.settings, name) for name in names)])


def make_plan(settings: SearchSettings, axes: Sequence[Axis], experiment: Experiment) -> Plan:
    """Return the plan of what `settings` ask for.

    Args:
        experiment: that of a first trial.

    Raises:
        UserError: where it cannot be done.
    """
    goals = _goals(settings, experiment)
    countless = [axis.key for axis in axes if axis.grid is None]
    problem, fix = "", "tpe"
    if settings.sampler == "grid" and countless:
        problem = f"sweep.sampler=grid tries every value, and {countless[0]} is an interval"
    elif settings.sampler == "cmaes" and all(axis.choices for axis in axes):
        problem = "sweep.sampler=cmaes without a number to search"
    elif settings.sampler == "cmaes" and len(goals) > 1:
        problem, fix = "sweep.sampler=cmaes has one goal", "nsga2"
    if problem:
        raise UserError(problem, "tpe, nsga2 or random", f"sweep.sampler={fix}")
    trials = min(settings.trials, size(axes) or settings.trials)
    startup = settings.startup_trials or min(LARGEST_STARTUP, math.ceil(settings.trials / STARTUP_SHARE))
    return Plan(replace(settings, trials=trials, startup_trials=startup), goals, tuple(axes))


def _goals(settings: SearchSettings, experiment: Experiment) -> tuple[Goal, ...]:
    """Return the goals: those that are named, or the metric by which training chooses its best epoch."""
    monitor = str(getattr(experiment.settings.get("train"), "monitor", "val_loss"))
    metrics = _listed(settings.metric) or [best_metric(monitor) or f"train/{monitor}"]
    directions = _listed(settings.direction) or [_direction(metric) for metric in metrics]
    if len(directions) != len(metrics) or set(directions) - {"maximize", "minimize"}:
        fix = f"sweep.direction=[{','.join(['maximize'] * len(metrics))}]"
        raise UserError(f"sweep.direction={settings.direction}", "maximize or minimize, one a metric", fix)
    for metric in metrics:
        if metric.startswith("test/"):
            raise UserError(
                f"sweep.metric={metric} would choose by the test split, which then tests nothing",
                "a metric of validation or training",
                f"sweep.metric={BEST}{'loss' if 'loss' in metric else 'accuracy'}",
            )
    return tuple(map(Goal, metrics, directions))


def _listed(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _direction(metric: str) -> str:
    if is_lower_better(metric):
        return "minimize"
    if _HIGHER_IS_BETTER.search(metric.rpartition("/")[2]):
        return "maximize"
    problem = f"sweep.metric={metric}: whether more is better is unknown"
    raise UserError(problem, "maximize, minimize", "sweep.direction=maximize")


def read_trial(compose: Compose, lines: Sequence[str]) -> tuple[Composed, Experiment]:
    """Return the trial with the overrides `lines`, composed and read.

    Raises:
        UserError: where one of them has no effect, or a value that is not allowed.
    """
    composed = compose(lines)
    try:
        experiment = read(composed.document, composed.choices, composed.config_dirs)
        refuse_unused(experiment, composed.typed)
    except UserError as error:
        raise error.within(f"trial {' '.join(lines)}") from error
    return composed, experiment


def check_axes(settings: SearchSettings, axes: Sequence[Axis]) -> None:
    """Refuse a search without axes, and axes by which no trial would be the best."""
    if not axes:
        raise UserError(
            f"sweep={settings.sampler} searches, and no setting has several values",
            "an interval, a range or a list for at least one setting",
            "'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'",
        )
    for axis in axes:
        if axis.key in OF_VALIDATION:
            raise UserError(
                f"a search over {axis.key}: its trials would be validated on different examples, so none is the best",
                "axes that leave the validation examples as they are, or a sweep, which chooses none",
                f"python -m pipeline -m {axis.key}=<value>,<value>",
            )


def refuse_debug(experiment: Experiment, axes: Sequence[Axis]) -> None:
    """Refuse a debug run as a trial."""
    if experiment.debug is not None:
        raise UserError(
            f"debug={experiment.debug.kind} with a search, which chooses trials by results that here count nowhere",
            "a sweep over values of the space",
            f"python -m pipeline -m debug={experiment.debug.kind} {axes[0].key}=<value>,<value>",
        )
