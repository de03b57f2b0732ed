"""Intervals hold the truth, and slices that are alike are called so: small simulations of `benchmarks.coverage`.

Of 100 test splits an interval of 95% misses 11 or more once in 90; most are wider than they must be.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks.coverage import SLICES, coverage, slice_errors
from stages.evaluation.baseline import baseline_of
from stages.evaluation.paired_tests import metric_difference
from stages.evaluation.predictions import NAME, columns_of, compare_predictions, write_predictions
from stages.evaluation.slice_tests import slice_tests
from stages.load.table import table
from stages.metrics.intervals import reach
from stages.metrics.known import KNOWN
from stages.settings.table import TableSettings
from stages.tasks.regression import report_numbers

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("population", "examples", "metrics"),
    [
        ("regression, skewed errors", 500, {"rmse": 0.91, "mae": 0.91}),
        ("regression, heavy-tailed errors", 500, {"rmse": 0.89, "r2": 0.91}),
        ("regression, 1% outliers", 1000, {"rmse": 0.91, "r2": 0.91}),
        ("regression, prices", 1000, {"rmse": 0.88, "r2": 0.89}),
        ("regression, worse than the mean", 500, {"r2": 0.91}),
        ("2 classes, 95% and 5%", 100, {"macro_recall": 0.91, "macro_precision": 0.91}),
        ("3 classes, few errors, overconfident", 500, {"log_loss": 0.91, "macro_recall": 0.91}),
        ("3 classes, weights", 60, {"accuracy": 0.91, "macro_f1": 0.89}),
        ("2 classes, groups", 500, {"accuracy": 0.91, "macro_f1": 0.89, "roc_auc": 0.89, "log_loss": 0.89}),
        ("regression, groups", 500, {"rmse": 0.89, "mae": 0.91, "r2": 0.91}),
        ("two similar models", 200, {"difference of accuracy": 0.95}),
        ("two models, prices", 400, {"difference of rmse": 0.88}),
        ("two models, groups", 300, {"difference of rmse": 0.89}),
    ],
)
def test_intervals_hold_the_truth(population: str, examples: int, metrics: dict[str, float]) -> None:
    found = coverage(population, examples, 100)
    for metric, least in metrics.items():
        held, printed = found[metric]
        assert held >= least, metric
        assert printed >= 0.5, metric


@pytest.mark.parametrize("model", ["accuracy 0.5", "accuracy 0.9", "accuracy 0.9, weights", "RMSE, skewed errors"])
def test_slices_that_are_alike_are_not_called_different(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 test splits with 20 slices, more than 7 are so once in 500."""
    monkeypatch.setattr("stages.evaluation.slice_tests.DRAWS", 199)
    assert slice_errors(SLICES["10 of 30"], model, 50) <= 7 / 50


def test_a_slice_that_is_worse_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.evaluation.slice_tests.DRAWS", 199)
    for model in ("accuracy 0.9", "RMSE, normal errors"):
        assert slice_errors([300] * 4, model, 10, worse=True) >= 0.6


def numbers(count: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    targets = RANDOM.normal(size=(count, 1))
    return {"target": targets, "prediction": targets + RANDOM.normal(size=(count, 1)), **more}


def test_a_slice_of_which_nothing_is_known_cannot_tell() -> None:
    """Empty, of one row, of weights that are all 0, of examples that are all correct, and all rows in one."""
    codes = np.repeat([0, 1, 3, 4], [1, 100, 100, 99])
    labels = np.arange(300) % 2
    correct: dict[str, np.ndarray] = {"label": labels, "predicted": labels, "weight": np.where(codes == 3, 0.0, 1.0)}
    for columns, metric in ((correct, "accuracy"), (numbers(300, weight=correct["weight"]), "rmse")):
        for groups in ({}, {"group": np.arange(300) // 3}):
            [found] = slice_tests(KNOWN[metric], {**columns, **groups}, [codes], 30, 0.95)
            assert found.tolist() == [0] * 5
            [found] = slice_tests(KNOWN[metric], {**columns, **groups}, [np.zeros(300, int)], 30, 0.95)
            assert found.tolist() == [0]


def test_slices_of_groups_vary_as_groups_do() -> None:
    """A hospital's patients are alike: two hundred rows of four groups do not tell a slice from the rest."""
    group = np.arange(400) // 50
    errors = np.repeat(1 + 2.0 * (np.arange(8) == 1), 50) * RANDOM.normal(size=400)
    columns = {"target": np.zeros((400, 1)), "prediction": errors[:, np.newaxis]}
    codes = [(group < 4).astype(int)]
    assert slice_tests(KNOWN["rmse"], columns, codes, 100, 0.95)[0].tolist() == [-1, 1]
    assert slice_tests(KNOWN["rmse"], {**columns, "group": group}, codes, 100, 0.95)[0].tolist() == [0, 0]


def test_rare_events_have_the_exact_interval() -> None:
    """Of k events among many examples: that of Poisson's distribution (Garwood, Biometrika 28, 1936)."""
    from scipy.stats import chi2

    for events in (1, 3, 20):
        values = np.where(np.arange(100_000) < events, 1.0, 0.0)
        down, up = reach(values - values.mean(), 0.95, 0.0, 1.0)
        low, high = chi2.ppf(0.025, 2 * events) / 2, chi2.ppf(0.975, 2 * events + 2) / 2
        assert (events - 1e5 * down, events + 1e5 * up) == pytest.approx((low, high), rel=1e-3)


def test_few_examples_and_groups_have_no_interval_and_a_reason() -> None:
    report = report_numbers(numbers(499), ("y",), 0.95)
    assert not report.intervals
    [reason] = report.notes
    assert reason == (
        "no confidence interval for rmse, mae, r2: at least 500 test examples are needed (smaller test sets may lack "
        "rare large errors)"
    )
    few = numbers(900, group=np.arange(900) // 100)
    assert KNOWN["rmse"].interval(few, 0.95) == "at least 10 groups of equal weight are needed"
    weighted = numbers(900, weight=np.where(np.arange(900) < 5, 1e6, 1.0))
    assert "of equal weight" in KNOWN["rmse"].interval(weighted, 0.95)
    assert isinstance(KNOWN["rmse"].interval(numbers(500), 0.95), tuple)


def test_models_that_agree_on_every_example_have_a_bound_or_no_interval() -> None:
    """That of an accuracy is the exact one of 0 of n, also over several seeds; nothing bounds an error."""
    correct = RANDOM.random((1, 400)) < 0.9
    for seeds in (1, 3):
        found = metric_difference(np.repeat(correct, seeds, axis=0), np.repeat(correct, seeds, axis=0), True)
        assert (found.low, found.high) == pytest.approx((-0.00918, 0.00918), rel=0.02)
    errors = KNOWN["rmse"].by_example(numbers(400))[np.newaxis]
    found = metric_difference(errors, errors, True, metric=KNOWN["rmse"])
    assert np.isnan(found.low)
    assert "no interval: equal on all 400 examples" in found.change


def test_groups_reach_predictions_and_what_is_made_of_them(tmp_path: Path) -> None:
    """Repeating each row as a group changes no interval by influences: repeated rows tell nothing new."""
    frame = pd.DataFrame({"patient": np.repeat([f"p{number}" for number in range(300)], 4)})
    frame["size"] = RANDOM.normal(size=1200)
    frame["price"] = RANDOM.normal(size=1200)
    frame.to_csv(tmp_path / "table.csv", index=False)
    data = table(TableSettings(files=[tmp_path / "table.csv"], target="price", group="patient"))
    assert data.test.groups is not None
    names = np.array([tuple(row) for row in zip(data.test.groups, strict=True)])
    assert len(np.unique(names)) == len(data.test) / 4
    answers = np.zeros((len(data.test), 1), np.float32)
    for name, shift in (("a", 0.0), ("b", 0.1)):
        (tmp_path / name).mkdir()
        write_predictions(tmp_path / name / NAME, data.test, data.task, answers + shift)
    assert "group" in pq.read_schema(tmp_path / "a" / NAME).names
    assert compare_predictions(tmp_path / "a" / NAME, tmp_path / "b" / NAME, 0.95).examples == len(data.test) / 4
    columns = columns_of(data.test, data.task, answers)
    assert len(KNOWN["rmse"].by_example(columns)) == len(data.test) / 4
    baseline = baseline_of(columns, data, 0.95, 15)
    assert baseline is not None
    assert baseline.difference.examples == len(data.test)


@pytest.mark.parametrize("metric", ["rmse", "accuracy", "macro_f1"])
def test_a_row_repeated_in_its_group_tells_nothing_new(metric: str) -> None:
    count = 600
    labels = (RANDOM.random((count, 2)) < 0.4).astype(np.int32)
    predicted = np.where(RANDOM.random((count, 2)) < 0.8, labels, 1 - labels)
    columns = {
        "rmse": numbers(count),
        "accuracy": {"label": labels[:, 0], "predicted": predicted[:, 0]},
        "macro_f1": {"target": labels, "predicted": predicted},
    }[metric]
    repeated = {name: np.repeat(column, 5, axis=0) for name, column in columns.items()}
    once, ignored = KNOWN[metric].interval(columns, 0.95), KNOWN[metric].interval(repeated, 0.95)
    grouped = KNOWN[metric].interval({**repeated, "group": np.repeat(np.arange(count), 5)}, 0.95)
    assert not isinstance(once, str)
    assert not isinstance(ignored, str)
    assert grouped == pytest.approx(once, rel=0.01)
    assert ignored[1] - ignored[0] < 0.6 * (once[1] - once[0])
    assert KNOWN[metric].estimate(columns, np.ones(count))[0] == pytest.approx(
        KNOWN[metric].estimate(repeated, np.ones(5 * count))[0]
    )
