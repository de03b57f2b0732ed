"""Metrics of predictions: scikit-learn's numbers."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.preprocessing import label_binarize

from stages.evaluation.intervals import intervals_of
from stages.evaluation.metrics import bins_of, metrics_of
from stages.evaluation.predictions import Predicted, read_columns
from tests.stages.evaluation import made

BINS = 15


def read(folder: Path, labels: np.ndarray, values: np.ndarray) -> Predicted:
    return Predicted.of(read_columns(made.write(folder, labels, values)))


def random_predictions(folder: Path, classes: int, examples: int = 211, parts: int | None = None) -> Predicted:
    labels = np.random.default_rng(1).integers(classes, size=examples)
    return read(folder, labels, made.probabilities(labels, classes, parts))


def by_scikit_learn(path: Path) -> dict[str, float]:
    """Returns what a reader of the file computes of it by scikit-learn alone."""
    table = pd.read_parquet(path)
    labels, classes = table["label"], table["predicted"]
    values = np.stack(table["probabilities"])
    every = range(values.shape[1])
    scores = values[:, 1] if len(every) == 2 else values
    wide = label_binarize(labels, classes=every) if len(every) > 2 else labels
    expected = {
        "accuracy": sk.accuracy_score(labels, classes),
        "log_loss": sk.log_loss(labels, values, labels=every),
        "macro_precision": sk.precision_score(labels, classes, average="macro", zero_division=0),
        "macro_recall": sk.recall_score(labels, classes, average="macro", zero_division=0),
        "macro_f1": sk.f1_score(labels, classes, average="macro", zero_division=0),
        "roc_auc": sk.roc_auc_score(labels, scores, multi_class="ovr", labels=every if len(every) > 2 else None),
        "average_precision": sk.average_precision_score(wide, scores, average="macro"),
    }
    if len(every) > 5:
        expected["top5_accuracy"] = sk.top_k_accuracy_score(labels, values, k=5, labels=every)
    return expected


@pytest.mark.parametrize(("classes", "parts"), [(2, None), (2, 4), (3, 4), (7, 9), (10, None)])
def test_metrics_equal_scikit_learn_on_the_file_to_the_last_digit(
    classes: int, parts: int | None, tmp_path: Path
) -> None:
    """Also with many probabilities that are equal."""
    whole = metrics_of(random_predictions(tmp_path, classes, parts=parts), BINS).values
    expected = by_scikit_learn(tmp_path / "predictions.parquet")
    assert {**expected, "ece": whole["ece"]} == whole


@pytest.mark.filterwarnings("error")
def test_absent_classes_are_left_out(tmp_path: Path) -> None:
    """Classes 1 and 3 of five have no example; no metric is nan, and scikit-learn says nothing."""
    labels = np.array([0, 2, 4] * 20)
    whole = read(tmp_path, labels, made.probabilities(labels, 5))
    found = metrics_of(whole, BINS)
    assert all(np.isfinite(value) for value in found.values.values())
    assert list(np.isnan(found.by_class["roc_auc"])) == [False, True, False, True, False]
    assert found.values["roc_auc"] == np.nanmean(found.by_class["roc_auc"])
    assert found.support.tolist() == [20, 0, 20, 0, 20]
    intervals = intervals_of(whole, 0.95)
    assert {"roc_auc", "average_precision"} <= intervals.keys()
    assert all(np.isfinite(ends).all() for ends in intervals.values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("classes", [2, 3])
def test_a_single_class_has_no_ranking(classes: int, tmp_path: Path) -> None:
    labels = np.ones(20, int)
    whole = read(tmp_path, labels, made.probabilities(labels, classes))
    found = metrics_of(whole, BINS).values
    for values in (found, intervals_of(whole, 0.95)):
        assert {"roc_auc", "average_precision"}.isdisjoint(values)
        assert all(np.isfinite(value).all() for value in values.values())


def test_probabilities_that_are_no_numbers_leave_the_classes(tmp_path: Path) -> None:
    labels = np.arange(30) % 3
    values = made.probabilities(labels, 3)
    values[7, 1] = np.nan
    whole = read(tmp_path, labels, values)
    names = {"accuracy", "macro_precision", "macro_recall", "macro_f1"}
    found = metrics_of(whole, BINS).values
    assert found.keys() == intervals_of(whole, 0.95).keys() == names


def test_bins_and_their_gaps_are_those_of_scikit_learn(tmp_path: Path) -> None:
    whole = random_predictions(tmp_path, 4, 400)
    counts = np.bincount(bins_of(whole, BINS), minlength=BINS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        accuracy, confidence = calibration_curve(whole.correct, whole.of_predicted, n_bins=BINS)
    expected = (counts[counts > 0] * np.abs(accuracy - confidence)).sum() / 400
    assert metrics_of(whole, BINS).values["ece"] == pytest.approx(expected, abs=1e-7)
    assert metrics_of(whole, 1).values["ece"] == pytest.approx(abs(whole.correct.mean() - whole.of_predicted.mean()))
