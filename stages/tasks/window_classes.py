"""Classes of time series: the class at, or some steps after, the end of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stages.features.kinds import HISTORY
from stages.metrics.classes import LogLoss
from stages.metrics.estimates import Columns
from stages.tasks.classification import ClassTargets, ClassView, classification
from stages.tasks.parts import Trivial
from stages.tasks.task import Task

if TYPE_CHECKING:
    from stages.data.split import Split

LAST = "last"
"""Name of the column of the last known classes in `predictions.parquet`."""


@dataclass(frozen=True)
class WindowClassTargets(ClassTargets):
    """Classes of windows, int32 [b]."""

    has_past: bool = False
    """Whether the past of the classes is known: the first channels of the windows, one for each class."""

    def task(self) -> Task:
        """See `Targets`."""
        task = classification(self.names)
        head = replace(task.head, targets=self)
        view = WindowClassView(past=len(self.names) if self.has_past else 0)
        return replace(task, targets=self, head=head, loss=task.loss.with_head(head), view=view)

    def strata(self, targets: np.ndarray) -> None:  # type: ignore[override]
        """See `Targets`: none, as splits are cut by time."""


@dataclass(frozen=True)
class LastClass(Trivial):
    """The class that most often follows the last known one."""

    following: Sequence[Sequence[float]] = ()
    """For each class, the shares of the classes that follow it in the training split."""

    def rows(self, columns: Columns) -> np.ndarray:
        """See `Trivial`."""
        shares = np.array(self.following)[columns[LAST]]
        return np.column_stack([shares, shares.argmax(axis=1)]).astype(np.float32)


@dataclass(frozen=True)
class WindowClassView(ClassView):
    """Predicted classes of windows as people see them."""

    past: int = 0
    """The number of classes whose past is known; 0 if it is not."""

    def target_columns(self, split: Split) -> dict[str, np.ndarray]:
        """See `View`; with the last known classes, if there are any."""
        return super().target_columns(split) | ({LAST: self._last(split)} if self.past else {})

    def _last(self, split: Split) -> np.ndarray:
        history = split.features[HISTORY]
        return np.asarray(history[:])[:, -1, : self.past].argmax(axis=1).astype(np.int32)

    def trivial(self, task: Task, train: Split) -> Trivial:
        """Return the class that most often follows the last known one; the majority class if none is known."""
        majority = super().trivial(task, train)
        if not self.past:
            return majority
        counts = np.zeros((self.past, self.past))
        np.add.at(counts, (self._last(train), train.target_values), 1)
        totals = counts.sum(axis=1, keepdims=True)
        following = np.where(totals > 0, counts / np.maximum(totals, 1), majority.row[:-1])
        model = "the class that most often follows the last known one (counted in"
        return LastClass(model, majority.row, (task.comparable[0], LogLoss()), majority.further, following.tolist())
