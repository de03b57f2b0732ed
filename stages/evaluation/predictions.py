"""`predictions.parquet`: what a model predicts for each test example, written, read, and compared with another's."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.data.split import Split
from stages.errors import UserError
from stages.evaluation.paired_tests import AccuracyDifference, accuracy_difference, points
from stages.evaluation.test_set import EXAMPLES, PIXELS, facts_of, is_same_test_set, numbers_of
from stages.safe_places import safe_place
from stages.settings.places import regular_file
from stages.storage.atomic import atomic_write
from stages.tasks.task import Task

if TYPE_CHECKING:  # readers import no TensorFlow
    from stages.evaluation.eval_step import Scores, Sink

    Score = Callable[[Sink], Scores]

NAME = "predictions.parquet"

TOP = 5

SETTING = "evaluate.against"

CLASSES = "class_names"


@dataclass(frozen=True)
class Predicted:
    """Predictions of n examples of a split: labels and predicted classes, int32 [n]; probabilities, float32 [classes,
    n], a row a class."""

    labels: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.probabilities)

    @cached_property
    def of_label(self) -> np.ndarray:
        """Probabilities of the labels, float32 [n]."""
        return self.probabilities[self.labels, np.arange(len(self))]

    @cached_property
    def of_predicted(self) -> np.ndarray:
        """Probabilities of the predicted classes, float32 [n]."""
        return self.probabilities[self.predicted, np.arange(len(self))]

    @cached_property
    def is_in_top(self) -> np.ndarray:
        """Whether fewer than five classes come before the label, bool [n]; of equal ones the later class does."""
        before = np.zeros(len(self), np.int64)
        for number, values in enumerate(self.probabilities):
            before += (values > self.of_label) | ((values == self.of_label) & (number > self.labels))
        return before < TOP

    @cached_property
    def is_finite(self) -> bool:
        """Whether all probabilities are numbers; where they are not, only the classes can be scored."""
        return all(np.isfinite(row).all() for row in self.probabilities)

    @property
    def correct(self) -> np.ndarray:
        return self.labels == self.predicted


def read_predictions(path: Path) -> Predicted:
    """Returns the predictions in the file at `path`."""
    table = pq.read_table(path, columns=["label", "predicted", "probabilities"], use_threads=False)
    values = table.column("probabilities").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    labels, predicted = (table.column(name).to_numpy() for name in ("label", "predicted"))
    return Predicted(labels, predicted, np.ascontiguousarray(values.T))


def write_predictions(path: Path, split: Split, task: Task, score: "Callable[[Sink], Scores]") -> "Scores":
    """Writes the predictions that `score` makes of `split`, whole or not at all; returns what it returns.

    One row an example, in the split's order: `example`, its number in the source (int64; its place in the split where
    the source has none); `file`, where the source has files; the target; and the columns of the task, such as
    `predicted` (int32) and `probabilities`, float32 [classes]. The names of the task and the facts of `facts_of` are in
    the metadata of the file's schema.

    Args:
        score: gets the function that takes predictions.
    """
    numbers = numbers_of(split)
    results: list[Scores] = []

    def table_of(values: np.ndarray, rows: slice) -> pa.Table:
        columns = {"example": numbers[rows]}
        if split.files is not None:
            columns["file"] = np.array(split.files[rows], object)
        columns |= {task.target: split.targets[rows], **task.columns(values)}
        return pa.table({name: _arrow(column) for name, column in columns.items()})

    empty = table_of(np.empty((0, task.width), np.float32), slice(0, 0))
    schema = empty.schema.with_metadata({CLASSES: json.dumps(list(task.names)), **facts_of(split)})

    def make(partial: Path) -> None:
        with pq.ParquetWriter(partial, schema) as writer:
            written = 0

            def add(values: np.ndarray) -> None:
                nonlocal written
                writer.write_table(table_of(values, slice(written, written + len(values))).cast(schema))
                written += len(values)

            results.append(score(add))

    atomic_write(path, make)
    return results[0]


def _arrow(column: np.ndarray) -> pa.Array:
    if column.ndim == 1:
        return pa.array(column, pa.string() if column.dtype == object else None)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(column).ravel()), column.shape[1])


@dataclass(frozen=True)
class Against:
    """A model compared with another one, in the folder `other`.

    agreement: fraction of the examples of which both predict the same class. largest_difference, mean_difference: of an
    example's probabilities, by the class whose differ most: the largest of all examples, and their mean.
    accuracy: this model's minus the other's.
    """

    other: str
    agreement: float
    largest_difference: float
    mean_difference: float
    accuracy: AccuracyDifference
    confidence: float

    @property
    def sentence(self) -> str:
        accuracy = self.accuracy
        doubt = "" if accuracy.excludes_zero else ", not distinguishable from zero by these examples"
        return (
            f"against {self.other}: accuracy {self.accuracy_in_points}{doubt}, "
            f"McNemar's p {accuracy.p:.2g}; {100 * self.agreement:.1f} % of {accuracy.examples:,} predictions agree; "
            f"an example's probabilities differ by {self.mean_difference:.2g} on average, "
            f"{self.largest_difference:.2g} at most"
        )

    @property
    def accuracy_in_points(self) -> str:
        """The difference in accuracy with its interval."""
        accuracy = self.accuracy
        difference, low, high = map(points, (accuracy.difference, accuracy.low, accuracy.high))
        return f"{difference} points ({100 * self.confidence:g} %: {low} to {high})"

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "against/agreement": self.agreement,
            "against/largest_difference": self.largest_difference,
            "against/mean_difference": self.mean_difference,
            "against/accuracy_difference": self.accuracy.difference,
            "against/accuracy_difference_low": self.accuracy.low,
            "against/accuracy_difference_high": self.accuracy.high,
            "against/mcnemar_p": self.accuracy.p,
        }


def compare_predictions(path: Path, folder: Path, confidence: float) -> Against:
    """Compares the predictions at `path` with those in `folder`, of the same examples in the same order."""
    ours, theirs = read_predictions(path), read_predictions(folder / NAME)
    largest = np.zeros(len(ours), np.float32)
    for row, other in zip(ours.probabilities, theirs.probabilities, strict=True):
        np.maximum(largest, np.abs(row - other), out=largest)
        safe_place()
    accuracy = accuracy_difference(theirs.correct[np.newaxis], ours.correct[np.newaxis], True, level=confidence)
    agreement = float(np.mean(ours.predicted == theirs.predicted))
    return Against(folder.name, agreement, float(largest.max()), float(largest.mean()), accuracy, confidence)


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
    metadata = pq.read_schema(regular_file(folder / NAME)).metadata or {}
    return {name: metadata[name.encode()].decode() for name in (CLASSES, EXAMPLES, PIXELS)}


def check_same_examples(other: dict[str, str], text: str, split: Split, class_names: Sequence[str]) -> None:
    """Raises UserError where predictions with this metadata are of other classes or examples than those of `split`."""
    names = json.loads(other[CLASSES])
    if names != list(class_names):
        ours, theirs = (f"{len(part)} ({', '.join(part[:3])}…)" for part in (list(class_names), names))
        raise UserError(f"{SETTING}={text} has other classes: {theirs}, not {ours}", "a run with the same classes")
    if not is_same_test_set({EXAMPLES: other[EXAMPLES], PIXELS: other[PIXELS]}, facts_of(split)):
        raise UserError(f"{SETTING}={text} was tested on other examples", "a run with the same test split")
