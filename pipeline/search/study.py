"""The study of a search in a file: draw trials, keep their results, prune losing trials, and report the best."""

import functools
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from pipeline.comparison.words import joined, metric_label, plural, value_text
from pipeline.decide.job import PrunedError
from pipeline.redaction import redact, redact_overrides
from pipeline.search.plan import Plan

STUDY = "study.log"
"""Optuna's journal in the search's folder, which any tool for Optuna studies reads."""

NAME = "search"

REASON = "reason"
"""Attribute of a failed trial with the reason."""

REDUCTION = 3
"""`halving` continues one in this many trials beyond each rung."""

FEWEST = 4
"""Minimum number of complete trials for importances."""


class Study:
    """The study of a search.

    Attributes:
        optuna: Optuna's study object.
        file: The file of the study.
        plan: The plan of the search.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Open the study in `folder`, or create it. No other process may have it open."""
        self.plan = plan
        self.file = folder / STUDY
        _mend(self.file)
        self._storage = open_storage(self.file)
        self.optuna = optuna.create_study(
            storage=self._storage,
            study_name=NAME,
            directions=[goal.direction for goal in plan.goals],
            load_if_exists=True,
        )

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in their order: all of them, or those in `states`."""
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    def ask(self) -> FrozenTrial | None:
        """Begin a trial and return it; None if all trials of the plan have begun."""
        count = len(self.trials())
        if count >= self.plan.settings.trials:
            return None
        self.optuna.sampler = self._sampler(count)
        number = self.optuna.ask({axis.key: axis.drawn_from for axis in self.plan.axes}).number
        return self.trials()[number]

    def tell(
        self, trial: FrozenTrial, values: Sequence[float] | None = None, pruned: bool = False, reason: str | None = None
    ) -> None:
        """Record the result of a trial.

        Args:
            trial: The trial.
            values: One value per goal; None for a trial that was pruned or failed.
            pruned: Whether it was pruned.
            reason: Why it failed.
        """
        if reason is not None:
            self._storage.set_trial_user_attr(id_of(trial.number, self._storage), REASON, redact(reason))
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED if pruned else TrialState.FAIL
        self.optuna.tell(trial.number, values, state=state)

    def best(self) -> list[FrozenTrial]:
        """Return the best trial; for several goals, the Pareto-optimal trials."""
        if not self.trials(TrialState.COMPLETE):
            return []
        best = sorted(self.optuna.best_trials, key=lambda trial: trial.number)
        return best[:1] if len(self.plan.goals) == 1 else best

    def _sampler(self, number: int) -> BaseSampler:
        """Return the sampler for trial `number`.

        Its draws depend on the seed and the earlier trials, not on whether the search was interrupted.
        """
        settings = self.plan.settings
        seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
        startup = settings.startup_trials or 1
        if self.plan.tries_each_point_once:
            return PartialFixedSampler(self._untried(seed), RandomSampler())
        match settings.sampler:
            case "tpe":
                alone = settings.n_jobs == 1
                return TPESampler(seed=seed, n_startup_trials=startup, constant_liar=not alone)
            case "cmaes":
                return CmaEsSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
            case "nsga2":
                return NSGAIISampler(seed=seed, population_size=settings.population)
        return RandomSampler(seed=seed)

    def _untried(self, seed: int) -> dict[str, Any]:
        """Return a random point that no trial has had."""
        keys = [axis.key for axis in self.plan.axes]
        tried = {tuple(map(trial.params.get, keys)) for trial in self.trials()}
        points = itertools.product(*(axis.grid or () for axis in self.plan.axes))
        untried = [point for point in points if point not in tried]
        return dict(zip(keys, untried[np.random.default_rng(seed).integers(len(untried))], strict=True))


def open_storage(file: Path) -> JournalStorage:
    """Return the storage in `file`. Several processes may write to it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return JournalStorage(JournalFileBackend(str(file), JournalFileOpenLock(str(file))))


def id_of(number: int, storage: JournalStorage) -> int:
    """Return the id of a trial in the file of its study."""
    return storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(NAME), number)


def _mend(file: Path) -> None:
    """Remove what a killed process or a full disk left behind: its lock and an incomplete line."""
    file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
    if file.is_file() and not (text := file.read_bytes()).endswith(b"\n"):
        with file.open("r+b") as journal:
            journal.truncate(text.rfind(b"\n") + 1)


@dataclass(frozen=True)
class Pruner:
    """Report each epoch's metric from the process of a trial, and end the trial if Optuna's pruner decides so."""

    file: Path
    """The file of the study."""
    trial: int
    """The number of the trial."""
    metric: str
    """A metric of each epoch, such as `val/loss`."""
    before: int
    """The number of epochs of the run that the trial forks. The trial's own epochs are counted after them."""
    epochs: int
    """The number of the last epoch, counted from the first epoch of the forked run."""
    kind: str
    """`median` of the other trials at the same epoch, or `halving` (Li et al., 2020, arXiv:1810.05934)."""
    startup_trials: int
    """The number of trials that must be complete before any is pruned."""
    min_epochs: int
    """The number of epochs before a trial may be pruned; the smallest resource of `halving`."""

    def __call__(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Report the metrics of `epoch`, counted from 1.

        Raises:
            PrunedError: If the trial should end. Never raised after its last epoch, when it would save no time.
        """
        value = metrics.get(self.metric)
        if value is None or not math.isfinite(value):
            return
        trial, step = _open(self), epoch - self.before
        reported = trial.study.get_trials(deepcopy=False)[self.trial].intermediate_values
        if step not in reported:  # a resumed run repeats one
            trial.report(value, step)
        if epoch < self.epochs and trial.should_prune():
            raise PrunedError(epoch)


@functools.cache
def _open(pruner: Pruner) -> optuna.Trial:
    """Return the trial of this process, cached because opening a study takes a tenth of a second."""
    ends: optuna.pruners.BasePruner = optuna.pruners.MedianPruner(pruner.startup_trials, pruner.min_epochs)
    if pruner.kind == "halving":
        ends = optuna.pruners.SuccessiveHalvingPruner(pruner.min_epochs, REDUCTION)
    storage = open_storage(pruner.file)
    study = optuna.load_study(study_name=NAME, storage=storage, pruner=ends)
    return optuna.Trial(study, id_of(pruner.trial, storage))


def answer(study: Study) -> str:
    """Return a sentence that names the best of the complete trials by the goals of the search."""
    goals, best = study.plan.goals, study.best()
    if not best:
        return "No trial is complete, so there is no best trial."
    failed = len(study.trials(TrialState.FAIL))
    lost = f" {plural(failed, 'trial')} failed." if failed else ""
    complete = plural(len(study.trials(TrialState.COMPLETE)), "complete trial")
    if len(goals) == 1:
        least = "lowest" if goals[0].direction == "minimize" else "highest"
        value = value_text(goals[0].metric, best[0].values[0])
        name = metric_label(goals[0].metric)
        settings = settings_text(study, best[0])
        return f"Trial {best[0].number + 1} has the {least} {name} of {complete}, {value}: {settings}.{lost}"
    trials = "; ".join(f"trial {trial.number + 1} ({_values_text(study, trial)})" for trial in best)
    names = joined([metric_label(goal.metric) for goal in goals])
    verb = "is" if len(best) == 1 else "are"
    return f"{len(best)} of {complete} {verb} Pareto-optimal for {names}: {trials}.{lost}"


def settings_text(study: Study, trial: FrozenTrial) -> str:
    """Return the settings of a trial for people: numbers with at most four digits, no secrets."""
    lines = []
    for axis in study.plan.axes:
        value = trial.params[axis.key]
        lines.append(axis.line(f"{value:.4g}" if isinstance(value, float) else value))
    return " ".join(redact_overrides(lines))


def _values_text(study: Study, trial: FrozenTrial) -> str:
    pairs = zip(study.plan.goals, trial.values, strict=True)
    return ", ".join(f"{metric_label(goal.metric)} {value_text(goal.metric, value)}" for goal, value in pairs)


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw `history.png` (with several goals, the Pareto front), and `importance.png` if there are enough trials.

    The importance of a setting is its share in the variance of a goal, by functional ANOVA (Hutter et al., "An
    Efficient Approach for Assessing Hyperparameter Importance", ICML 2014).
    """
    names = [goal.metric for goal in study.plan.goals]
    values = [trial.values for trial in study.trials(TrialState.COMPLETE)]
    if not values or len(names) > 3:
        return []
    from pipeline.search import pictures  # it imports Matplotlib, which takes some tenths of a second

    if len(names) == 1:
        is_maximized = study.plan.goals[0].direction == "maximize"
        figures = {"history.png": pictures.history(study.trials(), names[0], is_maximized)}
    else:
        figures = {"history.png": _front(study, names)}
    if len(values) >= FEWEST and all(len(set(column)) > 1 for column in zip(*values, strict=True)):
        shares = optuna.importance.get_param_importances(
            study.optuna,
            evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
            target=lambda trial: trial.values[0],
        )
        figures["importance.png"] = pictures.importance_of(shares, names[0])
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=120, bbox_inches="tight")
    return [folder / name for name in figures]


def _front(study: Study, names: Sequence[str]) -> Any:
    """Return Optuna's chart of the Pareto front of several goals."""
    import matplotlib as mpl

    mpl.use("agg")
    from optuna.visualization import matplotlib as plots

    return plots.plot_pareto_front(study.optuna, target_names=names).figure
