"""The study of a search, on disk: draws trials, keeps their results, knows the best."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.paths import shorter
from pipeline.search.plan import SearchPlan
from pipeline.search.space import Axis, point, size
from stages.errors import UserError

if TYPE_CHECKING:
    import optuna

STUDY = "study.db"
"""SQLite file in a search's folder: any tool for Optuna's studies reads it."""

_NAME = "search"
_SCHEME = "sqlite:///"
_SAME_AS = "same_as"
_REASON = "reason"

BUSY_SECONDS = 60.0
"""Seconds that a commit waits for those of other trials."""

_ATTEMPTS = 50
"""Draws of a point that was tried before, after which the next untried one is taken in order."""


@dataclass(frozen=True)
class Trial:
    """One point of the search space.

    number: from 0, of Optuna; ordinal: from 1, of the trials that run.
    lines: the overrides that make it.
    state: `RUNNING`, `COMPLETE`, `PRUNED` or `FAIL`; values: one a goal, where it is COMPLETE.
    epochs: how many it has reported.
    """

    number: int
    ordinal: int
    lines: tuple[str, ...]
    state: str
    values: tuple[float, ...] = ()
    epochs: int = 0
    reason: str | None = None


class Study:
    """The study of a search, in its folder. study: Optuna's own object."""

    def __init__(self, folder: Path, plan: SearchPlan, axes: Sequence[Axis]) -> None:
        """Opens the study in `folder`, or begins one.

        Raises:
            UserError: where the file is damaged, or of another version of Optuna.
        """
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._plan = plan
        self._axes = tuple(axes)
        self.address = address(folder)
        self.name = _NAME
        try:
            self.study = optuna.create_study(
                storage=open_storage(self.address),
                study_name=_NAME,
                directions=[goal.direction for goal in plan.goals],
                load_if_exists=True,
            )
        except (SQLAlchemyError, sqlite3.Error, RuntimeError) as error:
            raise UserError(
                f"{shorter(folder / STUDY)} cannot be opened ({str(error).splitlines()[0]})",
                "a study of this version of Optuna",
                "resume=never",
            ) from error

    def trials(self) -> list[Trial]:
        """Returns the trials that were begun, in their order."""
        frozen = [trial for trial in self.study.get_trials(deepcopy=False) if _SAME_AS not in trial.user_attrs]
        return [self._read(trial, ordinal) for ordinal, trial in enumerate(frozen, 1)]

    def wants_more(self) -> bool:
        """Returns whether fewer trials were begun than are wanted, and there is a point left to try."""
        wanted = self._plan.trials
        return len(self.trials()) < min(wanted, size(self._axes) or wanted)

    def ask(self) -> Trial | None:
        """Begins a trial and returns it; None where as many as wanted were begun, or the space is exhausted."""
        if not self.wants_more():
            return None
        begun = self.trials()
        limit = size(self._axes)
        tried = {trial.lines: trial.number for trial in begun}
        while True:
            number = len(self.study.get_trials(deepcopy=False))
            missed = number - len(begun)
            if self._plan.sampler == "grid" or (limit is not None and missed >= _ATTEMPTS):
                self.study.enqueue_trial(self._untried(tried))
            self.study.sampler = self._sampler(number)
            drawn = self.study.ask({axis.key: axis.distribution for axis in self._axes})
            lines = self._lines(drawn.params)
            if lines not in tried:
                return Trial(drawn.number, len(begun) + 1, lines, "RUNNING")
            drawn.set_user_attr(_SAME_AS, tried[lines])
            self.tell(drawn.number, reason=f"the same as trial {tried[lines]}")

    def tell(
        self, number: int, values: Sequence[float] | None = None, pruned: bool = False, reason: str | None = None
    ) -> None:
        """Records the result of a trial.

        Args:
            values: one a goal; None for one that was pruned or has failed. reason: why it has failed.
        """
        import optuna

        state = optuna.trial.TrialState
        if reason is not None:
            storage = self.study._storage
            storage.set_trial_user_attr(self.id_of(number), _REASON, reason)
        how = state.COMPLETE if values is not None else state.PRUNED if pruned else state.FAIL
        self.study.sampler = self._sampler(number)
        self.study.tell(number, list(values) if values is not None else None, state=how)

    def id_of(self, number: int) -> int:
        """Returns the id under which the storage knows a trial."""
        return int(self.study._storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number))

    def best(self) -> list[Trial]:
        """Returns the best trial, or with several goals those that no other is better than in all of them."""
        trials = self.trials()
        if not any(trial.state == "COMPLETE" for trial in trials):
            return []
        numbers = {trial.number for trial in self.study.best_trials}
        best = [trial for trial in trials if trial.number in numbers]
        return best[:1] if len(self._plan.goals) == 1 else best

    def _read(self, trial: "optuna.trial.FrozenTrial", ordinal: int) -> Trial:
        return Trial(
            trial.number,
            ordinal,
            self._lines(trial.params),
            trial.state.name,
            tuple(trial.values or ()),
            trial.last_step or 0,
            trial.user_attrs.get(_REASON),
        )

    def _lines(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(axis.line(params[axis.key]) for axis in self._axes)

    def _untried(self, tried: Mapping[tuple[str, ...], int]) -> Mapping[str, Any]:
        """Returns the first point of the grid that was not tried."""
        number = 0
        while self._lines(point(self._axes, number)) in tried:
            number += 1
        return point(self._axes, number)

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        """Returns the sampler for trial `number`: what it draws depends on the seed and the trials before, not on
        whether the search was interrupted."""
        from optuna import samplers

        seed = int(np.random.SeedSequence([self._plan.seed, number]).generate_state(1)[0])
        startup = self._plan.startup_trials
        match self._plan.sampler:
            case "tpe":
                return samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=self._plan.n_jobs > 1)
            case "cmaes":
                return samplers.CmaEsSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
            case "nsga2":
                return samplers.NSGAIISampler(seed=seed, population_size=self._plan.population)
        return samplers.RandomSampler(seed=seed)


def address(folder: Path) -> str:
    """Returns the address of the study in `folder`, as SQLAlchemy has it."""
    return f"{_SCHEME}{folder.resolve() / STUDY}"


def open_storage(place: str) -> "optuna.storages.RDBStorage":
    """Returns the storage at an address that `address` has made.

    Its log is written ahead and no commit waits for the disk: of a process that is killed nothing is lost.
    """
    from optuna.storages import RDBStorage

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(place.removeprefix(_SCHEME), timeout=BUSY_SECONDS, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    return RDBStorage(place, engine_kwargs={"creator": connect})


def describe(plan: SearchPlan, axes: Sequence[Axis]) -> str:
    """Returns what a search must have in common with the one that it resumes, as JSON.

    The number of trials may grow, and how many run at a time is the machine's matter.
    """
    fixed = {name: getattr(plan, name) for name in ("sampler", "pruner", "min_epochs", "population", "seed")}
    goals = [[goal.metric, goal.direction] for goal in plan.goals]
    space = {axis.key: axis.describe() for axis in axes}
    return json.dumps({"space": space, "goals": goals, **fixed}, sort_keys=True)
