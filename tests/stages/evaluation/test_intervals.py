"""Intervals hold the truth as often as they say. That influences are derivatives: test_weights.py."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import coverage
from stages.metrics.estimates import LEAST_OF_CLASS
from stages.metrics.intervals import exact_interval
from stages.tasks.class_report import intervals_of
from tests.stages.evaluation import made


@pytest.mark.parametrize("name", ["2 classes, 79% and 21%", "10 classes, few errors"])
def test_intervals_hold_the_truth_as_often_as_they_say(name: str) -> None:
    """In 95 of 100 samples, but for the noise of 100; `python -m benchmarks.coverage` has more."""
    found = coverage(name, 100, 100)
    assert found.keys() >= {"accuracy", "roc_auc", "average_precision", "macro_recall", "macro_f1"}
    assert "ece" not in found
    for metric, (held, _) in found.items():
        assert held >= 0.88, metric


@pytest.mark.parametrize(("hits", "examples"), [(0, 30), (30, 30), (29, 30), (500, 2000)])
def test_a_fraction_has_the_exact_interval(hits: int, examples: int) -> None:
    low, high = exact_interval(hits / examples, examples, 0.9)
    assert low == pytest.approx(stats.beta.ppf(0.05, hits, examples - hits + 1) if hits else 0.0)
    assert high == pytest.approx(stats.beta.ppf(0.95, hits + 1, examples - hits) if hits < examples else 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("examples", [1, 2, 40, 400])
def test_no_interval_is_without_width(examples: int, tmp_path: Path) -> None:
    """Of predictions that are all correct and equally sure, and of a single one."""
    labels = np.arange(examples) % 2
    predicted = made.read(tmp_path, labels, np.eye(2, dtype=np.float32)[labels] * 0.4 + np.float32(0.3))
    found = intervals_of(predicted, 0.95)
    assert "accuracy" in found
    assert all(low < high == 1 for low, high in found.values())


def test_means_over_classes_need_some_examples_of_each(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], [60, 60, LEAST_OF_CLASS])
    for kept in (slice(None), slice(0, -1)):
        predicted = made.read(tmp_path, labels[kept], made.probabilities(labels, 3)[kept])
        found = intervals_of(predicted, 0.95)
        means = {"macro_precision", "macro_recall", "macro_f1", "roc_auc", "average_precision"}
        assert found.keys() & means == (means if kept == slice(None) else set())
        assert "accuracy" in found
    weightless = replace(made.read(tmp_path, labels, made.probabilities(labels, 3)), weights=np.arange(125.0)[::-1])
    assert intervals_of(weightless, 0.95).keys() & means == set()  # its last example weighs nothing
