"""Examples that count by their weights: scikit-learn's metrics, and influences that are derivatives by the weight."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sk

from stages.metrics.estimates import parts_of
from stages.metrics.known import KNOWN
from stages.tasks.class_report import estimates_of, metrics_of
from tests.stages.evaluation import made

COUNT, STEP = 150, 1e-5
RANDOM = np.random.default_rng(4)
WEIGHTS = RANDOM.exponential(size=COUNT)
LABELS = RANDOM.integers(4, size=COUNT)
NUMBERS = {
    "target": RANDOM.normal(size=(COUNT, 2)).astype(np.float32),
    "prediction": RANDOM.normal(size=(COUNT, 2)).astype(np.float32),
}


@pytest.mark.parametrize(("classes", "parts", "is_weighted"), [(4, None, True), (4, 9, False), (2, 4, True)])
def test_influences_on_metrics_of_classes_are_derivatives(
    classes: int, parts: int | None, is_weighted: bool, tmp_path: Path
) -> None:
    """Also where many probabilities are equal. That the metrics are scikit-learn's: test_metrics.py."""
    labels = RANDOM.integers(classes, size=COUNT)
    predicted = made.read(tmp_path, labels, made.probabilities(labels, classes, parts))
    weights = WEIGHTS if is_weighted else np.ones(COUNT)
    predicted = replace(predicted, weights=weights if is_weighted else None)
    for name, (value, influences) in estimates_of(predicted).items():
        assert value == pytest.approx(metrics_of(predicted, 15)[0][name], rel=1e-6)
        centered = influences - influences.mean()
        for example in range(0, COUNT, 37):
            change = STEP * (np.arange(COUNT) == example)
            above, below = (
                metrics_of(replace(predicted, weights=weights * (1 + sign * change)), 15)[0][name] for sign in (1, -1)
            )
            assert centered[example] == pytest.approx(COUNT * (above - below) / (2 * STEP), abs=2e-5), name


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_influences_on_metrics_of_numbers_are_derivatives(metric: str) -> None:
    """Of weighted examples those of `w·e²` itself would not be centered, and the interval too wide."""
    value, influences = KNOWN[metric].estimate(NUMBERS, parts_of(COUNT, WEIGHTS))
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
    assert KNOWN["rmse"].by_example(given).mean() == pytest.approx(rmse, rel=1e-6)
    labels = {"label": LABELS, "predicted": (LABELS + (np.arange(COUNT) % 3 == 0)) % 4}
    correct = KNOWN["accuracy"].by_example(labels if weights is None else {**labels, "weight": weights})
    expected = sk.accuracy_score(labels["label"], labels["predicted"], sample_weight=weights)
    assert correct.mean() == pytest.approx(expected)
    assert (correct.dtype == bool) == (weights is None)
