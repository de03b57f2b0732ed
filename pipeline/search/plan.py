"""The plan of a search: its goals, sampler and pruner, checked against the experiment."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.comparison.rows import is_lower_better
from pipeline.config.experiment import Experiment
from pipeline.config.sweep_settings import SearchSettings
from pipeline.search.space import Axis, size
from pipeline.sweep.jobs import monitored
from stages.errors import UserError
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from stages.targets import target_of

BEST = "val/best_"
"""Prefix of a validation metric of the best epoch, by which the weights are chosen."""

KNOWN = (
    "val/best_loss", "val/best_accuracy", "val/loss", "val/accuracy", "train/loss", "train/accuracy",
    "train/images_per_second", "train/step_milliseconds", "train/seconds",
)  # fmt: skip
"""Metrics that a run without code of the user's own can be searched by."""

_HIGHER_IS_BETTER = re.compile(r"accuracy|auc|precision|recall|f1|per_second|score|iou|dice|r2")

LARGEST_STARTUP = 10
STARTUP_SHARE = 4


@dataclass(frozen=True)
class Goal:
    """metric: by its full name; direction: `maximize` or `minimize`."""

    metric: str
    direction: str

    @property
    def of_epoch(self) -> str:
        """The metric of each epoch from which this one comes: `val/loss` of `val/best_loss`."""
        return self.metric.replace(BEST, "val/", 1)


@dataclass(frozen=True)
class SearchPlan:
    """A search, checked.

    startup_trials: drawn at random before the sampler learns, and before a trial is pruned.
    population: of `nsga2`, in trials.
    """

    goals: tuple[Goal, ...]
    sampler: str
    trials: int
    startup_trials: int
    pruner: str | None
    min_epochs: int
    population: int
    seed: int
    n_jobs: int


def make_search_plan(settings: SearchSettings, axes: Sequence[Axis], experiment: Experiment) -> SearchPlan:
    """Returns the plan of the search that `settings` ask for.

    Args:
        experiment: that of a first trial.

    Raises:
        UserError: where it cannot be done.
    """
    if not axes:
        raise UserError(
            f"sweep={settings.sampler} searches, and no setting has several values",
            "an interval, a range or a list for at least one setting",
            "'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'",
        )
    goals = _goals(settings, experiment)
    countless = [axis.key for axis in axes if axis.grid is None]
    if settings.sampler == "grid" and countless:
        raise UserError(
            f"sweep.sampler=grid tries every value, and {countless[0]} is an interval",
            "a list or a range, or another sampler",
            "sweep.sampler=tpe",
        )
    if settings.sampler == "cmaes" and all(axis.choices for axis in axes):
        raise UserError("sweep.sampler=cmaes without a number to search", "an interval or a range", "sweep.sampler=tpe")
    if settings.sampler == "cmaes" and len(goals) > 1:
        raise UserError("sweep.sampler=cmaes has one goal", "nsga2, tpe or random for several", "sweep.sampler=nsga2")
    if settings.pruner != "none":
        _check_pruner(settings.pruner, goals, experiment)
    trials = min(settings.trials, size(axes) or settings.trials)
    startup = settings.startup_trials
    if startup is None:
        startup = min(LARGEST_STARTUP, math.ceil(settings.trials / STARTUP_SHARE))
    return SearchPlan(
        goals,
        settings.sampler,
        trials,
        startup,
        None if settings.pruner == "none" else settings.pruner,
        settings.min_epochs,
        settings.population,
        settings.seed,
        settings.n_jobs,
    )


def _goals(settings: SearchSettings, experiment: Experiment) -> tuple[Goal, ...]:
    metric = settings.metric or [monitored(experiment)]
    metrics = [metric] if isinstance(metric, str) else list(metric)
    directions = [settings.direction] if isinstance(settings.direction, str) else list(settings.direction or [])
    if directions and len(directions) != len(metrics):
        raise UserError(
            f"sweep.direction has {len(directions)} entries for {len(metrics)} metrics",
            "one a metric",
            f"sweep.direction=[{','.join(['maximize'] * len(metrics))}]",
        )
    for metric in metrics:
        _check_metric(metric, experiment)
    chosen = directions or [_direction(metric) for metric in metrics]
    for direction in chosen:
        if direction not in ("maximize", "minimize"):
            raise UserError(f"sweep.direction={direction}", "maximize, minimize", "sweep.direction=minimize")
    return tuple(Goal(metric, direction) for metric, direction in zip(metrics, chosen, strict=True))


def _check_metric(metric: str, experiment: Experiment) -> None:
    if metric.startswith("test/"):
        raise UserError(
            f"sweep.metric={metric} would choose by the test split, which then tests nothing",
            "a metric of validation or training",
            f"sweep.metric={BEST}{'loss' if 'loss' in metric else 'accuracy'}",
        )
    if metric not in KNOWN and not _has_own_code(experiment):
        near = difflib.get_close_matches(metric, KNOWN, 1, cutoff=0.3)
        raise UserError(f"sweep.metric={metric}: no run records it", KNOWN, f"sweep.metric={(near or KNOWN)[0]}")


def _has_own_code(experiment: Experiment) -> bool:
    """Returns whether stages or callbacks of the user's own may record metrics of any name."""
    for settings in experiment.settings.values():
        if not str(target_of(settings)).startswith("stages.") or getattr(settings, "callbacks", None):
            return True
    return False


def _direction(metric: str) -> str:
    if is_lower_better(metric):
        return "minimize"
    if _HIGHER_IS_BETTER.search(metric.rpartition("/")[2]):
        return "maximize"
    raise UserError(
        f"sweep.metric={metric}: whether more is better is unknown", "maximize, minimize", "sweep.direction=maximize"
    )


def _check_pruner(pruner: str, goals: Sequence[Goal], experiment: Experiment) -> None:
    problem = None
    if len(goals) > 1:
        problem = "with several goals: a trial that is worse in one may be better in another"
    elif not goals[0].of_epoch.startswith("val/") and goals[0].metric in KNOWN:
        problem = f"with sweep.metric={goals[0].metric}, which is not compared epoch by epoch"
    elif isinstance(experiment.settings.get("strategy"), (MultiWorkerSettings, ParameterServerSettings)):
        problem = f"with strategy={experiment.choices.get('strategy')}, whose processes end together"
    if problem is not None:
        raise UserError(
            f"sweep.pruner={pruner} {problem}", "none, which runs each trial to its end", "sweep.pruner=none"
        )
