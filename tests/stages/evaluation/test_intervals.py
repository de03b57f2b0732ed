"""Intervals: the influences are scikit-learn's derivatives, and the intervals hold the truth as often as they say."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from benchmarks.coverage import coverage
from stages.evaluation.intervals import LEAST_OF_CLASS, estimates_of, fraction_interval, intervals_of
from stages.evaluation.predictions import Predicted, read_columns
from tests.stages.evaluation import made


def read(folder: Path, labels: np.ndarray, values: np.ndarray) -> Predicted:
    return Predicted.of(read_columns(made.write(folder, labels, values)))


def weighted(predicted: Predicted, weights: np.ndarray) -> dict[str, float]:
    """Return the metrics of weighted examples, by scikit-learn."""
    labels, classes = predicted.labels, predicted.predicted
    of_classes = sk.precision_recall_fscore_support(
        labels, classes, average="macro", zero_division=0, sample_weight=weights
    )
    found = dict(zip(("macro_precision", "macro_recall", "macro_f1"), map(float, of_classes[:3]), strict=True))
    every = [1] if predicted.num_classes == 2 else range(predicted.num_classes)
    for name, score in (("roc_auc", sk.roc_auc_score), ("average_precision", sk.average_precision_score)):
        by_class = [score(labels == one, predicted.probabilities[one], sample_weight=weights) for one in every]
        found[name] = float(np.mean(by_class))
    return found


@pytest.mark.parametrize(("classes", "parts"), [(2, None), (2, 4), (4, 9), (7, None)])
def test_influences_are_derivatives_by_an_examples_weight(classes: int, parts: int | None, tmp_path: Path) -> None:
    """Also where many probabilities are equal."""
    labels = np.random.default_rng(1).integers(classes, size=120)
    predicted = read(tmp_path, labels, made.probabilities(labels, classes, parts))
    estimates = estimates_of(predicted)
    by_example = estimates.pop("log_loss")[1]
    expected = -np.log(np.maximum(predicted.of_label, np.finfo(np.float32).eps))
    np.testing.assert_allclose(by_example, expected - expected.mean(), atol=1e-6)
    for name, value in weighted(predicted, np.ones(120)).items():
        assert estimates[name][0] == pytest.approx(value, rel=1e-9), name
    step = 1e-5
    for example in range(0, 120, 7):
        change = step * (np.arange(120) == example)
        above, below = (weighted(predicted, 1 + sign * change) for sign in (1, -1))
        for name, (_, influences) in estimates.items():
            derivative = 120 * (above[name] - below[name]) / (2 * step)
            assert influences[example] == pytest.approx(derivative, abs=1e-5), name


@pytest.mark.parametrize("name", ["2 classes, 79 : 21", "10, few mistakes"])
def test_intervals_hold_the_truth_as_often_as_they_say(name: str) -> None:
    """In 95 of 100 samples, but for the noise of 100; `python -m benchmarks.coverage` has more."""
    found = coverage(name, 100, 100)
    assert found.keys() >= {"accuracy", "log_loss", "roc_auc", "average_precision", "macro_recall", "macro_f1"}
    assert "ece" not in found
    for metric, (held, _) in found.items():
        assert held >= 0.88, metric


@pytest.mark.parametrize(("hits", "examples"), [(0, 30), (30, 30), (29, 30), (500, 2000)])
def test_a_fraction_has_the_exact_interval(hits: int, examples: int) -> None:
    low, high = fraction_interval(hits, examples, 0.9)
    assert low == pytest.approx(stats.beta.ppf(0.05, hits, examples - hits + 1) if hits else 0.0)
    assert high == pytest.approx(stats.beta.ppf(0.95, hits + 1, examples - hits) if hits < examples else 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("examples", [1, 2, 40, 400])
def test_no_interval_is_without_width(examples: int, tmp_path: Path) -> None:
    """Of predictions that are all correct and equally sure, and of a single one."""
    labels = np.arange(examples) % 2
    predicted = read(tmp_path, labels, np.eye(2, dtype=np.float32)[labels] * 0.4 + np.float32(0.3))
    [(name, (low, high))] = intervals_of(predicted, 0.95).items()
    assert name == "accuracy"
    assert low < high == 1


def test_means_over_classes_need_some_examples_of_each(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], [60, 60, LEAST_OF_CLASS])
    for kept in (slice(None), slice(0, -1)):
        predicted = read(tmp_path, labels[kept], made.probabilities(labels, 3)[kept])
        found = intervals_of(predicted, 0.95)
        means = {"macro_precision", "macro_recall", "macro_f1", "roc_auc", "average_precision"}
        assert found.keys() & means == (means if kept == slice(None) else set())
        assert {"accuracy", "log_loss"} <= found.keys()
