"""Settings of a search that were typed and have no effect beside its others: refused, as those of an experiment are."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.config.experiment import Experiment
from pipeline.config.search_settings import SearchSettings
from stages.errors import UserError
from stages.settings.train import TrainSettings


@dataclass(frozen=True)
class _Unread:
    """name: of the setting. when: receives the search's settings and the epochs of a trial.

    reason, fix: with values of the search in braces.
    """

    name: str
    when: Callable[[SearchSettings, float], bool]
    reason: str
    fix: str


def _learns(settings: SearchSettings) -> bool:
    """Returns whether the sampler draws by the results of other trials, after some at random."""
    return settings.sampler in ("tpe", "cmaes")


_UNREAD = (
    _Unread(
        "population",
        lambda search, _: search.sampler != "nsga2",
        "sweep.sampler={sampler} has no generations",
        "sweep.sampler=nsga2 sweep.pruner=none",
    ),
    _Unread(
        "population",
        lambda search, _: search.population >= search.trials,
        "sweep.trials={trials} are one generation, drawn at random",
        "sweep.trials={more_trials}",
    ),
    _Unread(
        "startup_trials",
        lambda search, _: not _learns(search) and search.pruner != "median",
        "neither sweep.sampler={sampler} nor sweep.pruner={pruner} reads it",
        "sweep.sampler=tpe",
    ),
    _Unread(
        "startup_trials",
        lambda search, _: (search.startup_trials or 0) >= search.trials,
        "sweep.trials={trials} are all drawn at random",
        "sweep.trials={more_trials}",
    ),
    _Unread("min_epochs", lambda search, _: search.pruner == "none", "no trial is pruned", "sweep.pruner=median"),
    _Unread(
        "min_epochs",
        lambda search, epochs: search.min_epochs >= epochs,
        "train.epochs={epochs:g}, and no trial is pruned after its last",
        "train.epochs={more_epochs}",
    ),
    _Unread("seed", lambda search, _: search.sampler == "grid", "a grid has an order", "sweep.sampler=tpe"),
)


def refuse_unread(settings: SearchSettings, names: Iterable[str], experiment: Experiment) -> None:
    """Raises UserError for the first of `names`, such as `sweep.population`, that nothing in the search reads.

    Args:
        names: as they were typed. experiment: that of a first trial.
    """
    training = experiment.settings.get("train")
    epochs = math.inf
    if isinstance(training, TrainSettings):
        epochs = training.epochs + training.fine_tune_epochs
    values = {
        **vars(settings),
        "epochs": epochs,
        "more_trials": 2 * max(settings.population, settings.startup_trials or 0),
        "more_epochs": settings.min_epochs + 1,
    }
    for name in names:
        for row in _UNREAD:
            if name == f"sweep.{row.name}" and row.when(settings, epochs):
                reason, fix = (text.format_map(values) for text in (row.reason, row.fix))
                raise UserError(f"{name} has no effect: {reason}", "", fix)
