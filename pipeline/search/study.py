"""The study of a search, in a file: draws trials, keeps their results, knows the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.paths import shorter
from pipeline.search.plan import SearchPlan
from pipeline.search.space import Axis
from stages.errors import UserError

if TYPE_CHECKING:
    import optuna

STUDY = "study.log"
"""Optuna's journal in a search's folder: any tool for its studies reads it."""

NAME = "search"
_REASON = "reason"


@dataclass(frozen=True)
class Trial:
    """One point of the search space."""

    number: int  # from 0, as Optuna counts
    lines: tuple[str, ...]  # the overrides that make it
    state: str  # RUNNING, COMPLETE, PRUNED or FAIL
    values: tuple[float, ...] = ()  # one a goal, where it is COMPLETE
    epochs: int = 0  # reported so far
    reason: str | None = None  # of a FAIL

    @property
    def ordinal(self) -> int:
        """The number that users see, from 1."""
        return self.number + 1


class Study:
    """The study of a search.

    Attributes:
        optuna: Optuna's own object. file: where it is. goals: of the search.
    """

    def __init__(self, folder: Path, plan: SearchPlan, axes: Sequence[Axis]) -> None:
        """Open the study in `folder`, which no other process has open, or begin one.

        Raises:
            UserError: where the file is damaged.
        """
        import optuna

        self._plan = plan
        self.goals = plan.goals
        self._axes = tuple(axes)
        self.file = folder / STUDY
        _mend(self.file)
        try:
            self.optuna = optuna.create_study(
                storage=open_storage(self.file),
                study_name=NAME,
                directions=[goal.direction for goal in plan.goals],
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{shorter(self.file)} cannot be read ({error})", "", "resume=never") from error

    def trials(self) -> list[Trial]:
        """Return the trials that were begun, in their order."""
        return [
            Trial(
                trial.number,
                tuple(axis.line(trial.params[axis.key]) for axis in self._axes),
                trial.state.name,
                tuple(trial.values or ()),
                trial.last_step or 0,
                trial.user_attrs.get(_REASON),
            )
            for trial in self.optuna.get_trials(deepcopy=False)
        ]

    def ask(self) -> Trial | None:
        """Begin a trial and return it; None where as many as wanted were begun."""
        if len(self.trials()) >= self._plan.trials:
            return None
        self.optuna.sampler = self._sampler(len(self.trials()))
        number = self.optuna.ask({axis.key: axis.distribution for axis in self._axes}).number
        return self.trials()[number]

    def tell(
        self, number: int, values: Sequence[float] | None = None, pruned: bool = False, reason: str | None = None
    ) -> None:
        """Record the result of a trial.

        Args:
            values: one a goal; None for one that was pruned or has failed. reason: why it has failed.
        """
        from optuna.samplers import RandomSampler
        from optuna.trial import TrialState

        if reason is not None:
            self.optuna._storage.set_trial_user_attr(self.id_of(number), _REASON, reason)
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED if pruned else TrialState.FAIL
        self.optuna.sampler = RandomSampler()  # samplers learn from the file; that of a grid would stop Optuna's loop
        self.optuna.tell(number, list(values) if values is not None else None, state=state)

    def id_of(self, number: int) -> int:
        """Return the id under which the storage knows a trial."""
        return self.optuna.get_trials(deepcopy=False)[number]._trial_id

    def best(self) -> list[Trial]:
        """Return the best trial, or with several goals those that no other is better than in all of them."""
        trials = self.trials()
        if not any(trial.state == "COMPLETE" for trial in trials):
            return []
        best = [trials[number] for number in sorted(trial.number for trial in self.optuna.best_trials)]
        return best[:1] if len(self._plan.goals) == 1 else best

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        """Return the sampler for trial `number`.

        What it draws depends on the seed and the trials before, not on whether the search was interrupted.
        """
        from optuna import samplers

        plan = self._plan
        seed = int(np.random.SeedSequence([plan.seed, number]).generate_state(1)[0])
        match plan.sampler:
            case "grid":  # one seed, as it fixes the order
                return samplers.GridSampler({axis.key: axis.grid or () for axis in self._axes}, seed=plan.seed)
            case "tpe":
                alone = plan.n_jobs == 1
                return samplers.TPESampler(seed=seed, n_startup_trials=plan.startup_trials, constant_liar=not alone)
            case "cmaes":
                return samplers.CmaEsSampler(
                    seed=seed, n_startup_trials=plan.startup_trials, warn_independent_sampling=False
                )
            case "nsga2":
                return samplers.NSGAIISampler(seed=seed, population_size=plan.population)
        return samplers.RandomSampler(seed=seed)


def open_storage(file: Path) -> "optuna.storages.JournalStorage":
    """Return the storage in `file`, to which several processes may write."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.storages.JournalStorage(JournalFileBackend(str(file), JournalFileOpenLock(str(file))))


def _mend(file: Path) -> None:
    """Remove what a killed process or a full disk left behind: its lock, and a line that was not written whole."""
    file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
    if file.is_file() and not (text := file.read_bytes()).endswith(b"\n"):
        with file.open("r+b") as journal:
            journal.truncate(text.rfind(b"\n") + 1)
