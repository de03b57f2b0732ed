"""Checks of a search before it starts: every end of its space, its plan, and settings that would have no effect."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pipeline.checks.unused import refuse_unused
from pipeline.command_line.compose import Composed
from pipeline.config.errors import explain
from pipeline.config.experiment import Experiment, read
from pipeline.config.keys import dotted
from pipeline.config.sweep_settings import SearchSettings
from pipeline.provenance.identity import identity
from pipeline.provenance.source_digest import Sources, sources
from pipeline.redaction import redact_overrides
from pipeline.search.plan import SearchPlan, make_search_plan
from pipeline.search.space import Axis, probes, with_whole_numbers
from pipeline.search.study import describe
from pipeline.sweep.jobs import check_job
from stages.errors import UserError
from stages.settings.train import TrainSettings

Compose = Callable[[Sequence[str]], Composed]
"""Returns the configuration of the command line with the overrides of one trial."""


OF_VALIDATION = (
    "data", "data.dir", "data.name", "data.split_seed", "data.val_fraction", "data.test_fraction", "data.train_split",
    "data.val_split", "data.image_key", "data.label_key", "data.examples", "data.num_classes", "data.min_side",
)  # fmt: skip
"""Settings that decide which examples the metric of a trial is of."""


@dataclass
class Search:
    """A search that is known to work.

    first: the experiment of a first trial, of which all share `outputs` and `tracking`.
    identity: equal where the same command would search the same.
    """

    settings: SearchSettings
    plan: SearchPlan
    axes: tuple[Axis, ...]
    compose: Compose
    first: Experiment
    sources: Sources
    identity: str


def checked_search(
    settings: SearchSettings, axes: Sequence[Axis], compose: Compose, typed: Sequence[str] = ()
) -> Search:
    """Returns the search, once every end of its space is known to have an effect and a value in its range.

    Combinations that a rule refuses may show only as they come; at least one end must work.

    Args:
        typed: the names of the settings of the search that the user typed, such as `sweep.trials`.

    Raises:
        UserError: where the search is wrong.
    """
    axes = with_whole_numbers(axes, compose([axis.line_of_end(0) for axis in axes if axis.choices]).document)
    for axis in axes:
        if axis.key in OF_VALIDATION:
            raise UserError(
                f"a search over {axis.key}: its trials would be validated on different examples, so none is the best",
                "axes that leave the validation examples as they are, or a sweep, which chooses none",
                f"python -m pipeline -m {axis.key}=<value>,<value>",
            )
        lines = [axis.line_of_end(number) for number in range(len(axis.ends))]
        if redact_overrides(lines) != lines:
            raise UserError(
                f"a search over {axis.key}: its values are secrets, which a study would record",
                "axes without secrets, and one value of this setting",
                f"{axis.key}=<value>",
            )
    first: Experiment | None = None
    refused: UserError | None = None
    files: dict[str, str] = {}
    identities: list[str] = []
    for lines in probes(axes):
        _, experiment = read_trial(compose, lines)
        if experiment.debug is not None:
            raise UserError(
                f"debug={experiment.debug.kind} with a search, which chooses trials by results that here count nowhere",
                "a sweep over values of the space",
                f"python -m pipeline -m debug={experiment.debug.kind} {axes[0].key}=<value>,<value>",
            )
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
    refuse_unread(settings, typed, first)
    plan = make_search_plan(settings, axes, first)
    digest = hashlib.sha256((describe(plan, axes) + identities[0]).encode()).hexdigest()[:32]
    return Search(settings, plan, tuple(axes), compose, first, Sources(files), digest)


def read_trial(compose: Compose, lines: Sequence[str]) -> tuple[Composed, Experiment]:
    """Returns the trial with the overrides `lines`, composed and checked.

    Raises:
        UserError: where one of them has no effect, or a value that is not allowed.
    """
    composed = compose(lines)
    try:
        experiment = read(composed.document, composed.choices, composed.config_dirs)
        refuse_unused(experiment, composed.typed)
    except (HydraException, OmegaConfBaseException, UserError) as error:
        reason = error if isinstance(error, UserError) else explain(error, list(dotted(composed.document)))
        raise reason.within(f"trial {' '.join(lines)}") from error
    return composed, experiment


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
    epochs = epochs_of(experiment) or math.inf
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


def epochs_of(experiment: Experiment) -> int:
    """Returns how many epochs a run trains, unless it stops early; 0 with a training of the user's own."""
    train = experiment.of("train", TrainSettings)
    return train.all_epochs if train else 0
