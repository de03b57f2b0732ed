"""`predictions.parquet`: what a model predicts for each test example, written, read, and compared with another's."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.data.split import Split
from stages.errors import UserError
from stages.evaluation.paired_tests import MetricDifference, metric_difference
from stages.evaluation.test_set import EXAMPLES, PIXELS, facts_of, numbers_of
from stages.features.kinds import IMAGES
from stages.metrics.estimates import Sample
from stages.metrics.known import INFLUENCE, known_metric, recorded
from stages.metrics.metric import Metric
from stages.settings.places import regular_file
from stages.storage.atomic import atomic_write
from stages.tasks.task import Task

NAME = "predictions.parquet"

CLASSES = "class_names"

METRIC = "metric"
"""The metric by which the predictions are compared with others, in the metadata of their file."""

LOWER = b"lower_is_better"
"""Whether less of a custom metric is better, `true`, in the metadata."""

SETTING = "evaluate.against"


def read_columns(path: Path, without: Sequence[str] = ("example", "file")) -> dict[str, np.ndarray]:
    """Return the columns of a file of predictions by name, [n] or [n, k].

    pyarrow's `to_numpy` would import pandas, and `read_table` look for a data set of many files first.
    """
    with pq.ParquetFile(regular_file(path)) as file:
        table = file.read([name for name in file.schema_arrow.names if name not in without], use_threads=False)
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.combine_chunks()
        is_list = pa.types.is_fixed_size_list(array.type)
        values = np.from_dlpack(array.flatten() if is_list else array)
        columns[name] = values.reshape(len(table), -1) if is_list else values
    return columns


def read_by_example(path: Path) -> tuple[Metric, np.ndarray]:
    """Return the metric by which the predictions at `path` are compared, and its value for each example.

    Raises:
        KeyError: If nothing is known of each example for that metric, or a value is not finite.
    """
    metadata = pq.read_schema(regular_file(path)).metadata or {}
    name = metadata.get(METRIC.encode(), b"accuracy").decode()
    metric = known_metric(name, metadata.get(LOWER, b"false") == b"false")
    values = metric.by_example(read_columns(path, ("example", "file", "probabilities")))
    if not np.isfinite(values).all():
        raise KeyError(f"{name} is not finite")
    return metric, values


def columns_of(split: Split, task: Task, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of predictions of `split`, as `read_columns` does of their file.

    Args:
        values: what `Head.rows` returns for each example, float32 [n, width].
    """
    beside = {"weight": split.weights, "group": split.groups}
    given = {name: column for name, column in beside.items() if column is not None}
    return {**given, **task.view.target_columns(split), **task.head.columns(values)}


def check_finite(values: np.ndarray, split: Split, task: Task, where: str, policy: str) -> None:
    """Refuse predictions of `split` that are not finite: no metric of them would mean anything.

    Args:
        values: what `Head.rows` returns for each example, float32 [n, width].
        where: the data set, as the message begins.
        policy: the network's dtype policy.

    Raises:
        UserError: names the first such example, what is predicted, and the largest number that the example has.
    """
    wrong = np.argwhere(~np.isfinite(values))
    if not len(wrong):
        return
    row, place = map(int, wrong[0])
    count = len(np.unique(wrong[:, 0]))
    others = f" (and {count - 1:,} more)" if count > 1 else ""
    what = f"{task.targets.singular} {[*task.names, place][min(place, len(task.names))]}"
    largest, size = _largest(split, row)
    cause = f"; the largest input of this example is {size:.4g}, in the column {largest}" if largest else ""
    problem = f"{where}: {_name_of(split, row)}{others}: the network predicts {values[row, place]} for {what}{cause}"
    helps = policy in HALF and size < np.finfo(np.float32).max
    raise UserError(problem, "finite predictions", "precision=float32" if helps else "")


def check_inputs(split: Split, where: str, policy: str) -> None:
    """Refuse encoded numbers that the network's dtype cannot hold: it may answer them, as a ReLU makes 0 of a nan.

    Args:
        where: the data set, as the message begins. policy: the network's dtype policy.

    Raises:
        UserError: names the first such example, and its largest number.
    """
    limit = float(np.finfo(np.float16 if policy in HALF else np.float32).max)
    for column in (split.encoded.value if split.encoded is not None else {}).values():
        if len(column.shape) == 4:  # images, whose range is checked when they are read
            continue
        for start in range(0, len(split) if np.dtype(column.dtype).kind == "f" else 0, BLOCK):
            block = np.asarray(column[start : start + BLOCK])
            wrong = ~(np.abs(block) <= limit).reshape(len(block), -1).all(axis=1)
            if wrong.any():
                row = start + int(wrong.argmax())
                largest, size = _largest(split, row)
                number = f"{size:.4g} in the column {largest}" if largest else "a value"
                problem = f"{where}: {_name_of(split, row)}: {number} is too large for {policy}"
                helps = policy in HALF and size < np.finfo(np.float32).max
                expected = "numbers in the range of the training split"
                raise UserError(problem, expected, "precision=float32" if helps else "")


HALF = ("float16", "mixed_float16")
"""Policies that compute in float16, whose largest number is 65,504."""

BLOCK = 2**16
"""Rows that are looked at at once."""


def _largest(split: Split, row: int) -> tuple[str, float]:
    """Return the column of the number of an example that is largest in size, and that size; of none, no name and 0."""
    plain = {name: column for name, column in split.features.items() if len(column.shape) < 4}
    columns = {name: np.asarray(column[row : row + 1]) for name, column in plain.items()}
    sizes = {name: float(np.abs(part).max()) for name, part in columns.items() if part.dtype.kind in "iuf"}
    largest = max((name for name in sizes if sizes[name] >= 0), key=sizes.__getitem__, default="")
    return largest, sizes.get(largest, 0.0)


def _name_of(split: Split, row: int) -> str:
    """Return how errors name an example: its file; the row in its table, from 1; or its number in the source."""
    if split.files is not None and not split.is_table:
        return str(split.files[row])
    number = int(numbers_of(split)[row])
    return f"row {number + 1:,}" if split.is_table or IMAGES not in split.features else f"example {number:,}"


def write_predictions(path: Path, split: Split, task: Task, values: np.ndarray) -> None:
    """Write predictions of `split`, whole or not at all.

    One row an example, in the split's order: `example`, its number in the source (int64; its place in the split where
    the source has none); `file`, where the source has files; the target; `weight`, where examples have weights;
    `group`, int64, where they belong to groups; and the columns of the task, such as `predicted` (int32) and
    `probabilities`, float32 [classes]; and `influence`, float64, if the first metric is a custom one. The names of the
    task, its first metric and the facts of `facts_of` are in the metadata of the file's schema.

    Args:
        values: see `columns_of`.
    """
    columns = {"example": numbers_of(split)}
    if split.files is not None:
        columns["file"] = np.array(split.files, object)
    columns |= (known := columns_of(split, task, values))
    if task.metrics[0].has_estimate:
        columns |= recorded(task.metrics[0], known, Sample.of(known).parts)
    facts = {CLASSES: json.dumps(list(task.names)), METRIC: task.primary, **facts_of(split)}
    if INFLUENCE in columns and not task.metrics[0].higher_is_better:
        facts[LOWER.decode()] = "true"
    table = pa.table({name: _arrow(column) for name, column in columns.items()}, metadata=facts)
    atomic_write(path, partial(pq.write_table, table))


def _arrow(column: np.ndarray) -> pa.Array:
    if column.ndim == 1:
        return pa.array(column, pa.string() if column.dtype == object else None)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(column).ravel()), column.shape[1])


def compare_predictions(path: Path, other: Path, confidence: float) -> MetricDifference:
    """Compare the predictions at `path` with those at `other`, of the same examples in the same order.

    Raises:
        KeyError: where they are not compared by the same metric, or by one that says nothing of single examples.
    """
    (metric, ours), (of_other, theirs) = read_by_example(path), read_by_example(other)
    if of_other.name != metric.name:
        raise KeyError(f"different metrics: {metric.name} and {of_other.name}")
    if len(ours) != len(theirs):
        raise KeyError("only one of them has groups")
    return metric_difference(theirs[np.newaxis], ours[np.newaxis], True, level=confidence, metric=metric)


def check_other(folder: Path, text: str) -> dict[str, str]:
    """Return the metadata of the predictions in `folder`, of the run that the user names by `text`.

    Raises:
        UserError: where it has no predictions, their file is damaged, or one of them is not finite.
    """
    try:
        metadata, columns = metadata_of(folder), read_columns(folder / NAME)
    except (OSError, KeyError, pa.ArrowException) as error:
        why = f"this run has no {NAME}" if isinstance(error, FileNotFoundError) else f"its {NAME} is damaged"
        fix = f"{SETTING}=<run>"
        raise UserError(f"{SETTING}={text}: {why}", "a run with evaluate.predictions=true", fix) from error
    for name, column in columns.items():
        if column.dtype.kind == "f" and len(wrong := np.argwhere(~np.isfinite(column))):
            row, value = int(wrong[0][0]), column[tuple(wrong[0])]
            problem = f"{SETTING}={text}: its {NAME} has {value} in row {row + 1:,}, column {name}"
            raise UserError(problem, "a run whose predictions are finite", f"{SETTING}=<run>")
    return metadata


def metadata_of(folder: Path) -> dict[str, str]:
    """Return the class names, as JSON, the metric and the facts of the test set of the predictions in `folder`."""
    metadata = pq.read_schema(regular_file(folder / NAME)).metadata or {}
    return {name: metadata[name.encode()].decode() for name in (CLASSES, METRIC, EXAMPLES, PIXELS)}
