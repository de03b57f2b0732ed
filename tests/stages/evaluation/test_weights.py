"""Examples that count by their weights: scikit-learn's metrics, and influences that are derivatives by the weight."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.preprocessing import label_binarize

from stages.evaluation.estimates import ESTIMATES, by_example, parts_of
from stages.evaluation.intervals import estimates_of, intervals_of
from stages.evaluation.metrics import metrics_of
from stages.evaluation.predictions import Predicted, read_columns
from tests.stages.evaluation import made

COUNT, CLASSES, STEP = 150, 4, 1e-5
RANDOM = np.random.default_rng(4)
WEIGHTS = RANDOM.exponential(size=COUNT)
LABELS = RANDOM.integers(CLASSES, size=COUNT)
NUMBERS = {
    "target": RANDOM.normal(size=(COUNT, 2)).astype(np.float32),
    "prediction": RANDOM.normal(size=(COUNT, 2)).astype(np.float32),
}


@pytest.fixture
def predicted(tmp_path: Path) -> Predicted:
    path = made.write(tmp_path, LABELS, made.probabilities(LABELS, CLASSES))
    return replace(Predicted.of(read_columns(path)), weights=WEIGHTS)


def test_metrics_of_classes_are_those_of_scikit_learn(predicted: Predicted) -> None:
    labels, classes, probabilities = predicted.labels, predicted.predicted, predicted.probabilities.T
    weights = {"sample_weight": WEIGHTS}
    wide = label_binarize(labels, classes=range(CLASSES))
    expected = {
        "accuracy": sk.accuracy_score(labels, classes, **weights),
        "log_loss": sk.log_loss(labels, probabilities, **weights),
        "macro_precision": sk.precision_score(labels, classes, average="macro", **weights),
        "macro_recall": sk.recall_score(labels, classes, average="macro", **weights),
        "macro_f1": sk.f1_score(labels, classes, average="macro", **weights),
        "roc_auc": sk.roc_auc_score(wide, probabilities, average="macro", **weights),
        "average_precision": sk.average_precision_score(wide, probabilities, average="macro", **weights),
    }
    found = metrics_of(predicted, 15)
    assert found.values == pytest.approx({**expected, "ece": found.values["ece"]}, rel=1e-9)
    np.testing.assert_array_equal(found.support, np.bincount(labels))
    for name, (low, high) in intervals_of(predicted, 0.95).items():
        assert low < found.values[name] < high, name


def test_influences_on_metrics_of_classes_are_derivatives(predicted: Predicted) -> None:
    for name, (value, influences) in estimates_of(predicted).items():
        assert value == pytest.approx(metrics_of(predicted, 15).values[name], rel=1e-7)
        centered = influences - influences.mean()
        for example in range(0, COUNT, 37):
            change = STEP * (np.arange(COUNT) == example)
            above, below = (
                metrics_of(replace(predicted, weights=WEIGHTS * (1 + sign * change)), 15).values[name]
                for sign in (1, -1)
            )
            assert centered[example] == pytest.approx(COUNT * (above - below) / (2 * STEP), abs=2e-5), name


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_influences_on_metrics_of_numbers_are_derivatives(metric: str) -> None:
    """Of weighted examples those of `w·e²` itself would not be centered, and the interval too wide."""
    value, influences = ESTIMATES[metric](NUMBERS, parts_of(COUNT, WEIGHTS))
    score = {"rmse": sk.root_mean_squared_error, "mae": sk.mean_absolute_error, "r2": sk.r2_score}[metric]
    given = {name: column.astype(np.float64) for name, column in NUMBERS.items()}
    assert value == pytest.approx(score(given["target"], given["prediction"], sample_weight=WEIGHTS), rel=1e-9)
    assert influences.mean() == pytest.approx(0, abs=1e-9)
    for example in range(0, COUNT, 17):
        change = STEP * (np.arange(COUNT) == example)
        above, below = (
            score(given["target"], given["prediction"], sample_weight=WEIGHTS * (1 + sign * change)) for sign in (1, -1)
        )
        assert influences[example] == pytest.approx(COUNT * (above - below) / (2 * STEP), abs=2e-5)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_values_by_example_have_the_metric_as_their_mean(weights: np.ndarray | None) -> None:
    given = NUMBERS if weights is None else {**NUMBERS, "weight": weights}
    rmse = sk.root_mean_squared_error(NUMBERS["target"], NUMBERS["prediction"], sample_weight=weights)
    assert by_example("rmse", given).mean() == pytest.approx(rmse, rel=1e-6)
    labels = {"label": LABELS, "predicted": (LABELS + (np.arange(COUNT) % 3 == 0)) % CLASSES}
    correct = by_example("accuracy", labels if weights is None else {**labels, "weight": weights})
    assert correct.mean() == pytest.approx(
        sk.accuracy_score(labels["label"], labels["predicted"], sample_weight=weights)
    )
    assert (correct.dtype == bool) == (weights is None)
