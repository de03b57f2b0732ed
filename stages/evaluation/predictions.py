"""`predictions.parquet`: what a model predicts for each test example, written and read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.evaluation.test_set import facts_of, numbers_of
from stages.results import Split
from stages.storage.atomic import atomic_write

if TYPE_CHECKING:  # readers import no TensorFlow
    from stages.evaluation.eval_step import Scores, Sink

    Score = Callable[[Sink], Scores]

NAME = "predictions.parquet"

TOP = 5


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


def write_predictions(
    path: Path, split: Split, class_names: Sequence[str], score: "Callable[[Sink], Scores]"
) -> "Scores":
    """Writes the predictions that `score` makes of `split`, whole or not at all; returns what it returns.

    One row an example, in the split's order: `example`, its number in the source (int64; its place in the split where
    the source has none); `file`, where the source has files; `label` and `predicted` (int32); `probabilities`, float32
    [classes]. The class names and the facts of `facts_of` are in the metadata of the file's schema.

    Args:
        score: gets the function that takes predictions.
    """
    schema = pa.schema(
        [
            ("example", pa.int64()),
            *([("file", pa.string())] if split.files is not None else []),
            ("label", pa.int32()),
            ("predicted", pa.int32()),
            ("probabilities", pa.list_(pa.float32(), len(class_names))),
        ],
        metadata={"class_names": json.dumps(list(class_names)), **facts_of(split)},
    )
    numbers = numbers_of(split)
    results: list[Scores] = []

    def make(partial: Path) -> None:
        with pq.ParquetWriter(partial, schema) as writer:
            written = 0

            def add(probabilities: np.ndarray, predicted: np.ndarray) -> None:
                nonlocal written
                rows = slice(written, written + len(predicted))
                columns = {
                    "example": pa.array(numbers[rows]),
                    "file": pa.array(list(split.files[rows])) if split.files is not None else None,
                    "label": pa.array(split.labels[rows], pa.int32()),
                    "predicted": pa.array(predicted, pa.int32()),
                    "probabilities": pa.FixedSizeListArray.from_arrays(
                        pa.array(np.ascontiguousarray(probabilities).ravel()), len(class_names)
                    ),
                }
                writer.write_table(pa.table([columns[name] for name in schema.names], schema=schema))
                written += len(predicted)

            results.append(score(add))

    atomic_write(path, make)
    return results[0]
