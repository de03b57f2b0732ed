"""The study of a search, in a file: draws trials, keeps their results, ends those that others beat, tells the best."""

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

from pipeline.planning.job import PrunedError
from pipeline.redaction import redact, redact_overrides
from pipeline.search.plan import Plan

STUDY = "study.log"
"""Optuna's journal in a search's folder: any tool for its studies reads it."""

NAME = "search"

REASON = "reason"
"""Of a trial that has failed, among its attributes."""

REDUCTION = 3
"""Of `halving`: one in so many trials goes on beyond each rung."""

FEWEST = 4
"""Complete trials that importances need."""


class Study:
    """The study of a search.

    Attributes:
        optuna: Optuna's own object. file: where it is. plan: of the search.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Open the study in `folder`, which no other process has open, or begin one."""
        self.plan = plan
        self.file = folder / STUDY
        _mend(self.file)
        self.optuna = optuna.create_study(
            storage=open_storage(self.file),
            study_name=NAME,
            directions=[goal.direction for goal in plan.goals],
            load_if_exists=True,
        )

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials that were begun, in their order: all of them, or those in `states`."""
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    def ask(self) -> FrozenTrial | None:
        """Begin a trial and return it; None where as many as wanted were begun."""
        begun = len(self.trials())
        if begun >= self.plan.settings.trials:
            return None
        self.optuna.sampler = self._sampler(begun)
        number = self.optuna.ask({axis.key: axis.drawn_from for axis in self.plan.axes}).number
        return self.trials()[number]

    def tell(
        self, trial: FrozenTrial, values: Sequence[float] | None = None, pruned: bool = False, reason: str | None = None
    ) -> None:
        """Record the result of a trial.

        Args:
            values: one a goal; None for one that was pruned or has failed. reason: why it has failed.
        """
        if reason is not None:
            self.optuna._storage.set_trial_user_attr(trial._trial_id, REASON, redact(reason))
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED if pruned else TrialState.FAIL
        self.optuna.tell(trial.number, values, state=state)

    def best(self) -> list[FrozenTrial]:
        """Return the best trial, or with several goals those that no other is better than in all of them."""
        if not self.trials(TrialState.COMPLETE):
            return []
        best = sorted(self.optuna.best_trials, key=lambda trial: trial.number)
        return best[:1] if len(self.plan.goals) == 1 else best

    def _sampler(self, number: int) -> BaseSampler:
        """Return the sampler for trial `number`.

        What it draws depends on the seed and the trials before, not on whether the search was interrupted.
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
        """Return a point at random of those that no trial has had."""
        keys = [axis.key for axis in self.plan.axes]
        tried = {tuple(map(trial.params.get, keys)) for trial in self.trials()}
        points = itertools.product(*(axis.grid or () for axis in self.plan.axes))
        left = [point for point in points if point not in tried]
        return dict(zip(keys, left[np.random.default_rng(seed).integers(len(left))], strict=True))


def open_storage(file: Path) -> JournalStorage:
    """Return the storage in `file`, to which several processes may write."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return JournalStorage(JournalFileBackend(str(file), JournalFileOpenLock(str(file))))


def _mend(file: Path) -> None:
    """Remove what a killed process or a full disk left behind: its lock, and a line that was not written whole."""
    file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
    if file.is_file() and not (text := file.read_bytes()).endswith(b"\n"):
        with file.open("r+b") as journal:
            journal.truncate(text.rfind(b"\n") + 1)


@dataclass(frozen=True)
class Pruner:
    """Reports each epoch's metric from the process of a trial, and ends the trial where Optuna's pruner says so."""

    file: Path  # of the study
    trial: int  # its id there
    metric: str  # of each epoch, such as `val/loss`
    before: int  # epochs of the run that the trial forks, which count neither as its first nor for others
    epochs: int  # that there will be, those included
    kind: str  # `median` of the other trials at the same epoch, or `halving` (Li et al., 2020, arXiv:1810.05934)
    startup_trials: int  # complete before any is pruned
    min_epochs: int  # of each trial before it may be pruned; the least resource of `halving`

    def __call__(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Report the metrics of `epoch`, counted from 1.

        Raises:
            PrunedError: where the trial is to end; never after its last epoch, which would save nothing.
        """
        value = metrics.get(self.metric)
        if value is None or not math.isfinite(value):
            return
        trial, step = _open(self), epoch - self.before
        if step not in trial.study._storage.get_trial(self.trial).intermediate_values:  # a resumed run repeats one
            trial.report(value, step)
        if epoch < self.epochs and trial.should_prune():
            raise PrunedError(epoch)


@functools.cache
def _open(pruner: Pruner) -> optuna.Trial:
    """Return the trial of this process: a study takes a tenth of a second to open."""
    ends: optuna.pruners.BasePruner = optuna.pruners.MedianPruner(pruner.startup_trials, pruner.min_epochs)
    if pruner.kind == "halving":
        ends = optuna.pruners.SuccessiveHalvingPruner(pruner.min_epochs, REDUCTION)
    study = optuna.load_study(study_name=NAME, storage=open_storage(pruner.file), pruner=ends)
    return optuna.Trial(study, pruner.trial)


def answer(study: Study) -> str:
    """Return the best of the complete trials, by the goals of the search and nothing else."""
    goals, best = study.plan.goals, study.best()
    if not best:
        return "no trial is complete, so that none is best"
    complete, failed = len(study.trials(TrialState.COMPLETE)), len(study.trials(TrialState.FAIL))
    of = f"best of {complete} complete trial{'s' * (complete != 1)}{f' ({failed} failed)' if failed else ''}"
    if len(goals) == 1:
        better = "lower" if goals[0].direction == "minimize" else "higher"
        value = f"{goals[0].metric} ({best[0].values[0]:.4g}; {better} is better)"
        return f"{of}: trial {best[0].number + 1}, {settings_text(study, best[0])}, chosen on {value}, never on test"
    found = "; ".join(f"trial {trial.number + 1} ({_values_text(study, trial)})" for trial in best)
    return f"{of}, as none beats them in {' and in '.join(goal.metric for goal in goals)}: {found}"


def settings_text(study: Study, trial: FrozenTrial) -> str:
    """Return the settings of a trial as a person reads them: numbers of at most four digits, no secrets."""
    lines = []
    for axis in study.plan.axes:
        value = trial.params[axis.key]
        lines.append(axis.line(f"{value:.4g}" if isinstance(value, float) else value))
    return " ".join(redact_overrides(lines))


def _values_text(study: Study, trial: FrozenTrial) -> str:
    return ", ".join(f"{goal.metric} {value:.4g}" for goal, value in zip(study.plan.goals, trial.values, strict=True))


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw `history.png`, of several goals the Pareto front, and `importance.png` where there are trials enough.

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
