"""The plan of a search: its goals, sampler, pruner and space, checked before the first trial."""

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.checks.no_effect import refuse_unused
from pipeline.command_line.compose import Composed
from pipeline.comparison.rows import is_lower_better
from pipeline.config.experiment import Experiment, read
from pipeline.config.sweep_settings import SearchSettings
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.redaction import redact_overrides
from pipeline.search.space import Axis, probes, size, with_whole_numbers
from pipeline.sweep.jobs import check_job, monitored
from stages.errors import UserError
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from stages.settings.train import TrainSettings
from stages.targets import target_of

Compose = Callable[[Sequence[str]], Composed]
"""Returns the configuration of the command line with the overrides of one trial."""

BEST = "val/best_"
"""Prefix of a validation metric of the best epoch, by which the weights are chosen."""

KNOWN = (
    "val/best_loss", "val/best_accuracy", "val/loss", "val/accuracy", "train/loss", "train/accuracy",
    "train/images_per_second", "train/step_milliseconds", "train/seconds",
)  # fmt: skip
"""Metrics that a run without code of the user's own can be searched by."""

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
class SearchPlan:
    """A search, checked."""

    goals: tuple[Goal, ...]
    sampler: str
    trials: int
    startup_trials: int  # drawn at random before the sampler learns, and before a trial is pruned
    pruner: str | None
    min_epochs: int
    population: int  # of `nsga2`, in trials
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


@dataclass(frozen=True)
class Search:
    """A search that is known to work."""

    settings: SearchSettings
    plan: SearchPlan
    axes: tuple[Axis, ...]
    compose: Compose
    first: Experiment  # of a first trial; all share its `outputs` and `tracking`
    sources: Sources
    identity: str  # equal where the same command would search the same


def checked_search(settings: SearchSettings, axes: Sequence[Axis], compose: Compose) -> Search:
    """Return the search, once every end of its space is known to have an effect and a value in its range.

    Combinations that a rule refuses may show only as they come; at least one end must work.

    Raises:
        UserError: where the search is wrong.
    """
    axes = with_whole_numbers(axes, compose([axis.line_of_end(0) for axis in axes if axis.choices]).document)
    for axis in axes:
        _check_axis(axis)
    first: Experiment | None = None
    refused: UserError | None = None
    files: dict[str, str] = {}
    identities: list[str] = []
    for lines in probes(axes):
        _, experiment = read_trial(compose, lines)
        _refuse_debug(experiment, axes)
        identities.append(identity(experiment))
        files |= sources(experiment).files
        try:
            check_job(experiment, surroundings=first is None)
        except UserError as error:
            refused = refused or error.within(f"trial {' '.join(lines)}")
            if settings.refused == "fail":
                raise refused from error
        else:
            first = first or experiment
    if first is None:
        assert refused is not None
        raise refused
    plan = make_search_plan(settings, axes, first)
    digest = hashlib.sha256((describe(plan, axes) + identities[0]).encode()).hexdigest()[:32]
    return Search(settings, plan, tuple(axes), compose, first, Sources(files), digest)


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


def epochs_of(experiment: Experiment) -> int:
    """Return how many epochs a run trains, unless it stops early; 0 with a training of the user's own."""
    train = experiment.of("train", TrainSettings)
    return train.all_epochs if train else 0


def describe(plan: SearchPlan, axes: Sequence[Axis]) -> str:
    """Return what a search must have in common with the one that it resumes, as JSON.

    The number of trials may grow, and how many run at a time is the machine's matter.
    """
    fixed = {name: getattr(plan, name) for name in ("sampler", "pruner", "min_epochs", "population", "seed")}
    goals = [[goal.metric, goal.direction] for goal in plan.goals]
    space = {axis.key: axis.describe() for axis in axes}
    return json.dumps({"space": space, "goals": goals, **fixed}, sort_keys=True)


def _check_axis(axis: Axis) -> None:
    if axis.key in OF_VALIDATION:
        raise UserError(
            f"a search over {axis.key}: its trials would be validated on different examples, so none is the best",
            "axes that leave the validation examples as they are, or a sweep, which chooses none",
            f"python -m pipeline -m {axis.key}=<value>,<value>",
        )
    lines = [axis.line_of_end(number) for number in range(len(axis.ends))]
    if redact_overrides(lines) != lines:
        raise UserError(
            f"a search over {axis.key}, whose values are secrets that a study would record",
            "axes without secrets, and one value of this setting",
            f"{axis.key}=<value>",
        )


def _refuse_debug(experiment: Experiment, axes: Sequence[Axis]) -> None:
    if experiment.debug is not None:
        raise UserError(
            f"debug={experiment.debug.kind} with a search, which chooses trials by results that here count nowhere",
            "a sweep over values of the space",
            f"python -m pipeline -m debug={experiment.debug.kind} {axes[0].key}=<value>,<value>",
        )
