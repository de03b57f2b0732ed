"""Predictions of a split, read from `predictions.parquet` a chunk at a time: memory does not grow with the classes."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

NAME = "predictions.parquet"

TOP = 5

IN_MEMORY_BYTES = 2**28
"""Largest table of probabilities that is held in memory; a larger one is mapped from a scratch file."""

ROWS = 4096
"""Rows that are read from the file at once."""


@dataclass(frozen=True)
class Predicted:
    """Predictions of n examples of a split with so many classes.

    labels, predicted: int32 [n]. probabilities: float32 [classes, n], a row a class, in memory or mapped from a file.
    of_label, of_predicted: float32 [n], the probabilities of those two classes.
    is_in_top: whether the label is among the five most probable classes, bool [n], ties as scikit-learn resolves them.
    is_finite: whether all probabilities are numbers; where they are not, only the classes can be scored.
    """

    labels: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray
    of_label: np.ndarray
    of_predicted: np.ndarray
    is_in_top: np.ndarray
    is_finite: bool

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.probabilities)

    @property
    def correct(self) -> np.ndarray:
        return self.labels == self.predicted


@contextmanager
def read_predictions(path: Path) -> Iterator[Predicted]:
    """Yields the predictions in the file at `path`; removes their scratch file afterwards."""
    with pq.ParquetFile(path) as file, tempfile.TemporaryFile() as scratch:
        count = file.metadata.num_rows
        shape = (len(class_names_of(file)), count)
        is_small = 4 * shape[0] * shape[1] <= IN_MEMORY_BYTES
        table = np.empty(shape, np.float32) if is_small else np.memmap(scratch, np.float32, "w+", shape=shape)
        all_labels, all_classes = np.empty((2, count), np.int32)
        of_label, of_predicted = np.empty((2, count), np.float32)
        is_in_top = np.empty(count, bool)
        is_finite = True
        start = 0
        for batch in file.iter_batches(ROWS, columns=["label", "predicted", "probabilities"], use_threads=False):
            rows = slice(start, start + batch.num_rows)
            start += batch.num_rows
            labels, classes = (batch.column(name).to_numpy() for name in ("label", "predicted"))
            values = batch.column("probabilities").flatten().to_numpy().reshape(batch.num_rows, -1)
            numbers = np.arange(len(labels))
            all_labels[rows], all_classes[rows] = labels, classes
            of_label[rows], of_predicted[rows] = values[numbers, labels], values[numbers, classes]
            table[:, rows] = values.T
            is_in_top[rows] = top_hits(values, labels)
            is_finite = is_finite and bool(np.isfinite(values).all())
        yield Predicted(all_labels, all_classes, table, of_label, of_predicted, is_in_top, is_finite)


def class_names_of(file: pq.ParquetFile) -> tuple[str, ...]:
    """Returns the class names that a file of predictions holds."""
    return tuple(json.loads(file.schema_arrow.metadata[b"class_names"]))


def top_hits(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns whether fewer than five classes come before the label; of equal probabilities the later class does."""
    own = probabilities[np.arange(len(labels)), labels][:, np.newaxis]
    is_later = np.arange(probabilities.shape[1]) > labels[:, np.newaxis]
    return np.asarray(((probabilities > own) | ((probabilities == own) & is_later)).sum(axis=1) < TOP)
