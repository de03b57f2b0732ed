"""Pruning: reports each epoch's metric from the process of a trial, and ends the trial if others do better."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.planning.job import PrunedError
from pipeline.search.study import NAME, open_storage

if TYPE_CHECKING:
    import optuna

REDUCTION = 3
"""Of `halving`: one in so many trials goes on beyond each rung."""


@dataclass(frozen=True)
class Pruner:
    """Reports each epoch's metric to the study, and ends the trial where Optuna's pruner says so."""

    file: Path  # of the study
    trial: int  # its id there
    metric: str  # of each epoch, such as `val/loss`
    epochs: int  # that there will be
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
        trial = _open(self)
        if epoch not in trial.study._storage.get_trial(self.trial).intermediate_values:  # a resumed run repeats one
            trial.report(value, epoch)
        if epoch < self.epochs and trial.should_prune():
            raise PrunedError(epoch)


@functools.cache
def _open(pruner: Pruner) -> "optuna.Trial":
    """Return the trial of this process: a study takes a tenth of a second to open."""
    import optuna

    if pruner.kind == "halving":
        ends: optuna.pruners.BasePruner = optuna.pruners.SuccessiveHalvingPruner(pruner.min_epochs, REDUCTION)
    else:
        ends = optuna.pruners.MedianPruner(pruner.startup_trials, pruner.min_epochs)
    return optuna.Trial(
        optuna.load_study(study_name=NAME, storage=open_storage(pruner.file), pruner=ends), pruner.trial
    )
