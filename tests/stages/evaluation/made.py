"""Predictions made without a model."""

from pathlib import Path

import numpy as np

from stages.data.split import Split
from stages.evaluation.predictions import NAME, read_columns, write_predictions
from stages.tasks.class_report import Predicted
from stages.tasks.classification import classification
from stages.tasks.regression import regression


def probabilities(labels: np.ndarray, classes: int, parts: int | None = None, seed: int = 0) -> np.ndarray:
    """Return probabilities, float32 [n, classes], that favor the label.

    Args:
        parts: they are multiples of one by this, so that many are equal, or 0; None: none are.
    """
    random = np.random.default_rng(seed)
    logits = random.normal(size=(len(labels), classes))
    logits[np.arange(len(labels)), labels] += 1.5
    values = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return (random.multinomial(parts, values) / parts if parts else values).astype(np.float32)


def write(folder: Path, labels: np.ndarray, values: np.ndarray) -> Path:
    """Write predictions of `labels` with `values` as their probabilities; return the file's path."""
    labels = labels.astype(np.int32)
    split = Split.of_images(np.zeros((len(labels), 1, 1, 1), np.uint8), labels)
    predicted = values.argmax(axis=1).astype(np.int32)
    rows = np.column_stack([values, predicted]).astype(np.float32)
    names = tuple(f"class {number}" for number in range(values.shape[1]))
    write_predictions(folder / NAME, split, classification(names), rows)
    return folder / NAME


def write_numbers(folder: Path, targets: np.ndarray, values: np.ndarray) -> Path:
    """Write predictions of numbers, [n] each; return the file's path."""
    split = Split.of_images(np.zeros((len(targets), 1, 1, 1), np.uint8), targets.astype(np.float32)[:, np.newaxis])
    rows = values.astype(np.float32)[:, np.newaxis]
    write_predictions(folder / NAME, split, regression(("price",), (0.0,), (1.0,)), rows)
    return folder / NAME


def read(folder: Path, labels: np.ndarray, values: np.ndarray) -> Predicted:
    """Return predictions of `labels` as they are read from a file in `folder`."""
    return Predicted.of(read_columns(write(folder, labels, values)))
