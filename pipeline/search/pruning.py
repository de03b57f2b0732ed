"""Pruning: reports each epoch's metric from the process of a trial, and ends the trial if others do better."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.planning.job import PrunedError
from pipeline.search.study import open_storage

if TYPE_CHECKING:
    import optuna

REDUCTION = 3
"""Of `halving`: one in so many trials goes on beyond each rung."""


@dataclass(frozen=True)
class Pruner:
    """Reports each epoch's metric to the study, and ends the trial where its pruner says so.

    address: of the study's storage, study: its name there, trial: the id of this one.
    metric: of each epoch, such as `val/loss`; epochs: how many there will be.
    kind: `median` (worse than the median of the other trials at the same epoch) or `halving` (asynchronous successive
        halving: Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020, arXiv:1810.05934).
    startup_trials: how many have to be complete before any is pruned, and min_epochs: of each trial; `halving`
        takes the latter as its least resource.
    """

    address: str
    study: str
    trial: int
    metric: str
    epochs: int
    kind: str
    startup_trials: int
    min_epochs: int

    def __call__(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Reports the metrics of `epoch`, counted from 1.

        Raises:
            PrunedError: where the trial is to end; never after its last epoch, which would save nothing.
        """
        value = metrics.get(self.metric)
        if value is None or not math.isfinite(value):
            return
        trial = _open(self)
        if (
            epoch not in trial.study._storage.get_trial(self.trial).intermediate_values
        ):  # a run that resumes repeats one
            trial.report(value, epoch)
        if epoch < self.epochs and trial.should_prune():
            raise PrunedError(epoch)

    def pruner(self) -> "optuna.pruners.BasePruner":
        """Returns Optuna's own."""
        from optuna import pruners

        if self.kind == "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=self.min_epochs, reduction_factor=REDUCTION)
        return pruners.MedianPruner(n_startup_trials=self.startup_trials, n_warmup_steps=self.min_epochs)


@functools.cache
def _open(pruner: Pruner) -> "optuna.Trial":
    """Returns the trial of this process: a study takes a tenth of a second to open."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(
        study_name=pruner.study,
        storage=open_storage(pruner.address),
        sampler=optuna.samplers.RandomSampler(),  # draws nothing here: the trial has its values
        pruner=pruner.pruner(),
    )
    return optuna.Trial(study, pruner.trial)
