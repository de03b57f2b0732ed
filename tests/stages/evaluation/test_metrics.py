"""Metrics of predictions: scikit-learn's numbers."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.preprocessing import label_binarize

from stages.tasks.class_report import bins_of, intervals_of, metrics_of
from tests.stages.evaluation import made

BINS = 15


def by_scikit_learn(path: Path, weights: np.ndarray | None) -> dict[str, float]:
    """Return what a reader of the file computes of it by scikit-learn alone."""
    table = pd.read_parquet(path)
    labels, classes = table["label"], table["predicted"]
    values = np.stack(table["probabilities"])
    every = range(values.shape[1])
    scores = values[:, 1] if len(every) == 2 else values
    wide = label_binarize(labels, classes=every) if len(every) > 2 else labels
    given: dict[str, Any] = {"sample_weight": weights}
    means = given | {"average": "macro", "zero_division": 0}
    expected = {
        "accuracy": sk.accuracy_score(labels, classes, **given),
        "log_loss": sk.log_loss(labels, values, labels=every, **given),
        "macro_precision": sk.precision_score(labels, classes, **means),
        "macro_recall": sk.recall_score(labels, classes, **means),
        "macro_f1": sk.f1_score(labels, classes, **means),
        "roc_auc": sk.roc_auc_score(wide, scores, average="macro", **given),
        "average_precision": sk.average_precision_score(wide, scores, average="macro", **given),
    }
    if len(every) > 5:
        expected["top5_accuracy"] = sk.top_k_accuracy_score(labels, values, k=5, labels=every, **given)
    return expected


@pytest.mark.parametrize(("classes", "parts"), [(2, 4), (7, 9), (10, None)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_metrics_are_those_of_scikit_learn_on_the_file(
    classes: int, parts: int | None, is_weighted: bool, tmp_path: Path
) -> None:
    """To the last digit without weights; also with many probabilities that are equal."""
    random = np.random.default_rng(1)
    labels = random.integers(classes, size=211)
    weights = random.exponential(size=211) if is_weighted else None
    predicted = replace(made.read(tmp_path, labels, made.probabilities(labels, classes, parts)), weights=weights)
    values = metrics_of(predicted, BINS)[0]
    expected = {**by_scikit_learn(tmp_path / "predictions.parquet", weights), "ece": values["ece"]}
    assert values == (pytest.approx(expected, rel=1e-9) if is_weighted else expected)
    np.testing.assert_array_equal(predicted.support, np.bincount(labels))
    confusion = sk.confusion_matrix(labels, predicted.predicted, sample_weight=weights)
    np.testing.assert_allclose(predicted.confusion, confusion)
    intervals = intervals_of(predicted, 0.95)
    assert intervals.keys() == values.keys() - {"ece", "log_loss"}  # of fewer than 500 examples
    for name, (low, high) in intervals.items():
        assert low < values[name] < high, name


@pytest.mark.filterwarnings("error")
def test_absent_classes_are_left_out(tmp_path: Path) -> None:
    """Classes 1 and 3 of five have no example; no metric is nan, and scikit-learn says nothing."""
    labels = np.array([0, 2, 4] * 20)
    whole = made.read(tmp_path, labels, made.probabilities(labels, 5))
    values, by_class = metrics_of(whole, BINS)
    assert all(np.isfinite(value) for value in values.values())
    assert list(np.isnan(by_class["roc_auc"])) == [False, True, False, True, False]
    assert values["roc_auc"] == np.nanmean(by_class["roc_auc"])
    assert whole.support.tolist() == [20, 0, 20, 0, 20]
    intervals = intervals_of(whole, 0.95)
    assert intervals.keys() == {"accuracy"}  # a mean over classes of which some are absent is one of something else
    assert all(np.isfinite(ends).all() for ends in intervals.values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("classes", [2, 3])
def test_a_single_class_has_no_ranking(classes: int, tmp_path: Path) -> None:
    labels = np.ones(20, int)
    whole = made.read(tmp_path, labels, made.probabilities(labels, classes))
    found = metrics_of(whole, BINS)[0]
    for values in (found, intervals_of(whole, 0.95)):
        assert {"roc_auc", "average_precision"}.isdisjoint(values)
        assert all(np.isfinite(value).all() for value in values.values())


def test_bins_and_their_gaps_are_those_of_scikit_learn(tmp_path: Path) -> None:
    labels = np.random.default_rng(1).integers(4, size=400)
    whole = made.read(tmp_path, labels, made.probabilities(labels, 4))
    counts = np.bincount(bins_of(whole, BINS), minlength=BINS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        accuracy, confidence = calibration_curve(whole.correct, whole.of_predicted, n_bins=BINS)
    expected = (counts[counts > 0] * np.abs(accuracy - confidence)).sum() / 400
    assert metrics_of(whole, BINS)[0]["ece"] == pytest.approx(expected, abs=1e-7)
    assert metrics_of(whole, 1)[0]["ece"] == pytest.approx(abs(whole.correct.mean() - whole.of_predicted.mean()))
