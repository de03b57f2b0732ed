"""`predictions.parquet`: what a model predicts for each test example, written, read, and compared with another's."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.data.split import Split
from stages.errors import UserError
from stages.evaluation.estimates import COLUMNS, ESTIMATES, by_example
from stages.evaluation.paired_tests import MetricDifference, changed, metric_difference, unit_of
from stages.evaluation.test_set import EXAMPLES, PIXELS, facts_of, is_same_test_set, numbers_of
from stages.storage.atomic import atomic_write
from stages.tasks.task import LOWER_IS_BETTER, Task

NAME = "predictions.parquet"

SETTING = "evaluate.against"

CLASSES = "class_names"

METRIC = "metric"
"""The metric by which the predictions are compared with others, in the metadata of their file."""


def read_columns(path: Path, without: Sequence[str] = ("example", "file")) -> dict[str, np.ndarray]:
    """Returns the columns of a file of predictions by name, [n] or [n, k].

    pyarrow's `to_numpy` would import pandas, and `read_table` look for a data set of many files first.
    """
    with pq.ParquetFile(path) as file:
        table = file.read([name for name in file.schema_arrow.names if name not in without], use_threads=False)
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.combine_chunks()
        is_list = pa.types.is_fixed_size_list(array.type)
        values = np.from_dlpack(array.flatten() if is_list else array)
        columns[name] = values.reshape(len(table), -1) if is_list else values
    return columns


def read_by_example(path: Path) -> tuple[str, np.ndarray]:
    """Returns the metric by which the predictions at `path` are compared, and its values of `by_example`.

    Raises:
        KeyError: where nothing is known of each example for that metric.
    """
    metric = _metric_of(path)
    return metric, by_example(metric, read_columns(path, ("example", "file", "probabilities")))


def _metric_of(path: Path) -> str:
    return (pq.read_schema(path).metadata or {}).get(METRIC.encode(), b"accuracy").decode()


def write_predictions(path: Path, split: Split, task: Task, values: np.ndarray) -> None:
    """Writes predictions of `split`, whole or not at all.

    One row an example, in the split's order: `example`, its number in the source (int64; its place in the split where
    the source has none); `file`, where the source has files; the target; `weight`, where examples have weights; and the
    columns of the task, such as `predicted` (int32) and `probabilities`, float32 [classes]. The names of the task, its
    first metric and the facts of `facts_of` are in the metadata of the file's schema.

    Args:
        values: what `Task.predict` returns for each example, float32 [n, width].
    """
    columns = {"example": numbers_of(split)}
    if split.files is not None:
        columns["file"] = np.array(split.files, object)
    if split.weights is not None:
        columns["weight"] = split.weights
    columns |= {task.target: split.targets, **task.columns(values)}
    facts = {CLASSES: json.dumps(list(task.names)), METRIC: task.primary, **facts_of(split)}
    table = pa.table({name: _arrow(column) for name, column in columns.items()}, metadata=facts)
    atomic_write(path, partial(pq.write_table, table))


def _arrow(column: np.ndarray) -> pa.Array:
    if column.ndim == 1:
        return pa.array(column, pa.string() if column.dtype == object else None)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(column).ravel()), column.shape[1])


@dataclass(frozen=True)
class Against:
    """A model compared with another one, in the folder `other`.

    metric: the first one of the task; difference: this model's minus the other's.
    agreement: fraction of the examples of which both predict the same class, or the same labels; None of numbers.
    largest_difference, mean_difference: of an example's answer, by the class or the target that differs most: the
    largest of all examples, and their mean.
    """

    other: str
    metric: str
    agreement: float | None
    largest_difference: float
    mean_difference: float
    difference: MetricDifference
    confidence: float

    @property
    def is_better(self) -> bool:
        """Whether this model is better, by however little."""
        change = self.difference.difference
        return change < 0 if self.metric.endswith(LOWER_IS_BETTER) else change > 0

    @property
    def sentence(self) -> str:
        found = self.difference
        doubt = "" if found.excludes_zero else ", not distinguishable from zero by these examples"
        p = f", McNemar's p {found.p:.2g}" if found.p is not None else ""
        agree, answers = "", "predictions"
        if self.agreement is not None:
            agree, answers = f"; {100 * self.agreement:.1f} % of {found.examples:,} predictions agree", "probabilities"
        return (
            f"against {self.other}: {self.metric} {self.change}{doubt}{p}{agree}; an example's {answers} differ by "
            f"{self.mean_difference:.2g} on average, {self.largest_difference:.2g} at most"
        )

    @property
    def change(self) -> str:
        """The difference in the metric, with its interval."""
        found = self.difference
        value, low, high = (changed(self.metric, part) for part in (found.difference, found.low, found.high))
        better = "; lower is better" if self.metric.endswith(LOWER_IS_BETTER) else ""
        ends = f"{100 * self.confidence:g} %: {low} to {high}" if not math.isnan(found.low) else "no interval"
        return f"{value}{unit_of(self.metric)} ({ends}{better})"

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics to record, by their full names."""
        values = {
            "agreement": self.agreement,
            "largest_difference": self.largest_difference,
            "mean_difference": self.mean_difference,
            **self.difference.metrics(self.metric),
            "mcnemar_p": self.difference.p,
        }
        told = {name: value for name, value in values.items() if value is not None and not math.isnan(value)}
        return {f"against/{name}": value for name, value in told.items()}


def compare_predictions(path: Path, folder: Path, confidence: float) -> Against:
    """Compares the predictions at `path` with those in `folder`, of the same examples in the same order.

    Raises:
        KeyError: where they are not compared by the same metric, or by one that says nothing of single examples.
    """
    metric, other = _metric_of(path), _metric_of(folder / NAME)
    if other != metric:
        raise KeyError(f"{metric} of one, {other} of the other")
    columns, others = read_columns(path), read_columns(folder / NAME)
    theirs, ours = (by_example(metric, each)[np.newaxis] for each in (others, columns))
    found = metric_difference(theirs, ours, True, level=confidence)
    answer = COLUMNS[metric][-1]
    largest = np.abs(columns[answer] - others[answer]).max(axis=1)
    found = replace(found, examples=len(largest))
    agreement = None
    if "predicted" in columns:
        is_same = columns["predicted"] == others["predicted"]
        agreement = float(np.mean(is_same if is_same.ndim == 1 else is_same.all(axis=1)))
    return Against(folder.name, metric, agreement, float(largest.max()), float(largest.mean()), found, confidence)


def check_other(folder: Path, text: str) -> dict[str, str]:
    """Returns the metadata of the predictions in `folder`.

    Args:
        text: how the user names the run.

    Raises:
        UserError: where it has no predictions, or their file is damaged.
    """
    try:
        return metadata_of(folder)
    except (OSError, KeyError, pa.ArrowException) as error:
        why = f"has no {NAME}" if isinstance(error, FileNotFoundError) else f"its {NAME} is damaged"
        fix = f"{SETTING}=<run>"
        raise UserError(f"{SETTING}={text}: {why}", "a run with evaluate.predictions=true", fix) from error


def metadata_of(folder: Path) -> dict[str, str]:
    """Returns the class names, as JSON, and the facts of the test set that the predictions in `folder` are of."""
    metadata = pq.read_schema(folder / NAME).metadata or {}
    return {name: metadata[name.encode()].decode() for name in (CLASSES, EXAMPLES, PIXELS)}


def check_comparable(text: str, split: Split, task: Task) -> Path:
    """Returns the folder `text`, whose predictions can be compared with those of a model of `task` on `split`.

    Raises:
        UserError: where they are compared by another metric, or are of other classes or examples.
    """
    folder, metric = Path(text), task.primary
    other = check_other(folder, text)
    theirs = _metric_of(folder / NAME)
    columns = {*pq.read_schema(folder / NAME).names} & {*task.column_names}
    if theirs != metric or metric not in COLUMNS or not columns.issuperset(COLUMNS[metric]):
        raise UserError(
            f"{SETTING}={text} is compared by {theirs}, and this model by {metric}",
            f"one of {', '.join(ESTIMATES)} for both, and predictions that it is computed from",
            f"{SETTING}=null",
        )
    names = json.loads(other[CLASSES])
    if names != [*task.names]:
        problem = f"{SETTING}={text} has other classes: {', '.join(names[:5])}, not {', '.join(task.names[:5])}"
        raise UserError(problem, "a run with the same classes")
    if not is_same_test_set(other, facts_of(split)):
        raise UserError(f"{SETTING}={text} was tested on other examples", "a run with the same test split")
    return folder
