"""`evaluate.against`: a model compared with that of another run, on the same test examples."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from stages.data.split import Split
from stages.errors import UserError
from stages.evaluation.paired_tests import MetricDifference, metric_difference
from stages.evaluation.predictions import CLASSES, METRIC, NAME, SETTING, check_other, read_columns
from stages.evaluation.test_set import facts_of, is_same_test_set
from stages.metrics.estimates import Columns
from stages.metrics.known import KNOWN
from stages.tasks.task import Task


@dataclass(frozen=True)
class Against:
    """A model compared with the one in the folder `other`; `found` is its first metric minus the other's.

    agreement: fraction of the examples of which both predict the same class, or the same labels; None of numbers.
    largest_difference, mean_difference: of an example's answer, by the class or the target that differs most: the
    largest of all examples, and their mean.
    """

    other: str
    agreement: float | None
    largest_difference: float
    mean_difference: float
    found: MetricDifference

    @property
    def sentence(self) -> str:
        found = self.found
        verdict = f"no significant difference between this network and the run {self.other}"
        if found.excludes_zero:
            verdict = f"this network {'beats' if found.is_better else 'is worse than'} the run {self.other}"
        p = f", McNemar's p {found.p:.2g}" if found.p is not None else ""
        agree, answers, apart = "", "predictions for", ""
        if self.agreement is not None:
            agree, answers = f"; {100 * self.agreement:.1f}% of the predictions agree", "probabilities of"
        if math.isfinite(self.largest_difference):
            apart = (
                f"; the {answers} an example differ by {self.mean_difference:.2g} on average and by at most "
                f"{self.largest_difference:.2g}"
            )
        return f"{verdict}: {found.metric} {found.change} on {found.examples:,} test examples{p}{agree}{apart}"

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics to record, by their full names."""
        names = ("agreement", "largest_difference", "mean_difference")
        values = {name: getattr(self, name) for name in names}
        values |= {**self.found.metrics(self.found.metric), "mcnemar_p": self.found.p}
        return {
            f"against/{name}": value for name, value in values.items() if value is not None and math.isfinite(value)
        }

    @property
    def summary(self) -> dict[str, Any]:
        facts = asdict(self)
        return {**facts, self.found.metric: facts.pop("found")}


def compare_with(columns: Columns, task: Task, folder: Path, confidence: float) -> Against:
    """Compare predictions with those in `folder`, which have passed `check_comparable`."""
    others = {name: column for name, column in read_columns(folder / NAME).items() if name != "group"}
    others |= {"group": columns["group"]} if "group" in columns else {}  # an older file has none
    metric = task.metrics[0]
    theirs, ours = (metric.by_example(each)[np.newaxis] for each in (others, columns))
    found = metric_difference(theirs, ours, True, level=confidence, metric=metric)
    answer = next((name for name in ("probabilities", "prediction") if name in columns), None)  # masks are counted
    largest = np.array([np.nan]) if answer is None else np.abs(columns[answer] - others[answer]).max(axis=1)
    agreement = None
    if "predicted" in columns:
        is_same = columns["predicted"] == others["predicted"]
        agreement = float(np.mean(is_same if is_same.ndim == 1 else is_same.all(axis=1)))
    return Against(folder.name, agreement, float(largest.max()), float(largest.mean()), found)


def check_comparable(text: str, split: Split, task: Task) -> Path:
    """Return the folder `text`, whose predictions can be compared with those of a model of `task` on `split`.

    Raises:
        UserError: where they are compared by another metric, or are of other classes or examples.
    """
    folder = Path(text)
    other = check_other(folder, text)
    has_columns = {*task.column_names} <= {*pq.read_schema(folder / NAME).names}
    if other[METRIC] != task.primary or not task.metrics[0].has_estimate or not has_columns:
        raise UserError(
            f"{SETTING}={text} cannot be compared: its metric is {other[METRIC]}, that of this run is {task.primary}",
            f"the same metric for both runs, one of {', '.join(KNOWN)}, and predictions from which it is computed",
            f"{SETTING}=null",
        )
    names = json.loads(other[CLASSES])
    if names != [*task.names]:
        own = ", ".join(task.names[:5])
        problem = f"{SETTING}={text}: that run has other classes: {', '.join(names[:5])}, not {own}"
        raise UserError(problem, "a run with the same classes")
    if not is_same_test_set(other, facts_of(split)):
        raise UserError(f"{SETTING}={text}: that run was tested on other examples", "a run with the same test split")
    return folder
