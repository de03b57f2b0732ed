"""Metrics and their intervals: scikit-learn's numbers, on the predictions and on every resample of them."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.preprocessing import label_binarize

from stages.evaluation import intervals, predicted
from stages.evaluation.intervals import draw, resampled
from stages.evaluation.metrics import bins_of, metrics_of
from stages.evaluation.predicted import Predicted, read_predictions
from tests.stages.evaluation import made

BINS = 15


def read(folder: Path, labels: np.ndarray, values: np.ndarray) -> Predicted:
    with read_predictions(made.write(folder, labels, values)) as result:
        return result


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
    classes: int, parts: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with many probabilities that are equal, read in parts, and mapped from a file."""
    whole = metrics_of(random_predictions(tmp_path, classes, parts=parts), BINS).values
    expected = by_scikit_learn(tmp_path / "predictions.parquet")
    assert {**expected, "ece": whole["ece"]} == whole
    monkeypatch.setattr(predicted, "ROWS", 10)
    monkeypatch.setattr(predicted, "IN_MEMORY_BYTES", 0)
    with read_predictions(tmp_path / "predictions.parquet") as mapped:
        assert isinstance(mapped.probabilities, np.memmap)
        assert metrics_of(mapped, BINS).values == whole


def repeated(whole: Predicted, counts: np.ndarray) -> Predicted:
    """Returns the predictions of the examples, each as often as it was drawn."""
    rows = np.repeat(np.arange(len(whole)), counts.astype(int))
    parts = {name: getattr(whole, name)[rows] for name in ("labels", "predicted", "of_label", "of_predicted")}
    return replace(whole, probabilities=whole.probabilities[:, rows], is_in_top=whole.is_in_top[rows], **parts)


@pytest.mark.parametrize(
    ("classes", "examples", "parts"), [(2, 40, None), (2, 40, 4), (4, 12, 9), (7, 60, 4), (10, 80, None)]
)
def test_a_resample_has_scikit_learns_metrics(classes: int, examples: int, parts: int | None, tmp_path: Path) -> None:
    """Also where a class is missing from it, or probabilities are equal."""
    whole = random_predictions(tmp_path, classes, examples, parts)
    drawn = resampled(whole, BINS, 15)
    [counts] = draw(examples, 15)
    for number in range(15):
        expected = metrics_of(repeated(whole, counts[:, number]), BINS)
        for name, value in expected.values.items():
            assert drawn.values[name][number] == pytest.approx(value, abs=1e-6 if name == "log_loss" else 1e-12), name
        for name, values in expected.by_class.items():
            np.testing.assert_allclose(drawn.by_class[name][:, number], values, atol=1e-12, err_msg=name)


def test_intervals_do_not_depend_on_the_memory_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = random_predictions(tmp_path, 10)
    expected = resampled(whole, BINS, 50)
    monkeypatch.setattr(intervals, "BLOCK_BYTES", 8 * 211 * 7)
    parts = resampled(whole, BINS, 50)
    assert len(list(draw(211, 50))) == 8
    for name, values in expected.values.items():
        np.testing.assert_allclose(parts.values[name], values, rtol=1e-12)
    for name, (low, high) in expected.intervals(0.9).items():
        np.testing.assert_allclose([low, high], np.quantile(expected.values[name], [0.05, 0.95]))
        assert low < high


@pytest.mark.parametrize("is_drawn_first", [False, True])
def test_nor_do_those_of_a_class_that_whole_blocks_lack(
    is_drawn_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one positive is in about two of three resamples, and a block has a single one."""
    [counts] = draw(50, 20)
    labels = np.zeros(50, int)
    labels[np.flatnonzero((counts[:, 0] > 0) == is_drawn_first)[0]] = 1
    whole = read(tmp_path, labels, made.probabilities(labels, 2))
    expected = resampled(whole, BINS, 20)
    monkeypatch.setattr(intervals, "BLOCK_BYTES", 1)
    parts = resampled(whole, BINS, 20)
    assert {"roc_auc", "average_precision"} < parts.values.keys() == expected.values.keys()
    for name, values in expected.values.items():
        np.testing.assert_allclose(parts.values[name], values, rtol=1e-12, err_msg=name)


def test_an_interval_of_the_accuracy_is_as_wide_as_theory_has_it(tmp_path: Path) -> None:
    whole = random_predictions(tmp_path, 10, 2000)
    low, high = resampled(whole, BINS, 2000).intervals(0.95)["accuracy"]
    accuracy = whole.correct.mean()
    assert high - low == pytest.approx(2 * 1.96 * (accuracy * (1 - accuracy) / 2000) ** 0.5, rel=0.06)
    assert (low + high) / 2 == pytest.approx(accuracy, abs=0.002)


@pytest.mark.parametrize("shift", [0, 1])
def test_an_accuracy_of_one_or_zero_has_the_exact_interval(shift: int, tmp_path: Path) -> None:
    """Resamples of examples that are all correct, or all wrong, do not differ: they would state it with certainty."""
    labels = np.arange(30) % 7
    whole = read(tmp_path, labels, np.eye(7, dtype=np.float32)[(labels + shift) % 7] * 0.4 + np.float32(0.6 / 7))
    ends = resampled(whole, BINS, 20).intervals(0.95)["accuracy"]
    exact = stats.binomtest(int(whole.correct.sum()), 30).proportion_ci(0.95, "exact")
    assert ends == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert 0 < ends[1] - ends[0] < 0.12


def exact(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    ends = stats.binomtest(hits, count).proportion_ci(confidence, "exact")
    return ends.low, ends.high


def f1_of(ends: tuple[float, float]) -> list[float]:
    """Returns F1 at the ends of an interval of the fraction that is correct, of the examples that one of both has."""
    return [2 * end / (1 + end) for end in ends]


def test_metrics_of_a_class_that_are_one_or_zero_have_the_exact_interval(tmp_path: Path) -> None:
    """Class 0: all found, and more; 1: found where predicted; 2: never found; 3: predicted once; 4: not there."""
    labels = np.array([0] * 12 + [1] * 9 + [2] * 7)
    classes = np.array([0] * 12 + [1] * 7 + [0] * 8 + [3])
    whole = read(tmp_path, labels, np.eye(5, dtype=np.float32)[classes] * 0.5 + np.float32(0.1))
    drawn = resampled(whole, BINS, 400)
    ends = drawn.intervals_by_class(0.95)
    assert ends["recall"][0] == pytest.approx(exact(12, 12))
    assert ends["precision"][1] == pytest.approx(exact(7, 7))
    assert ends["recall"][2] == pytest.approx(exact(0, 7))
    assert ends["f1"][2] == pytest.approx(f1_of(exact(0, 7)))
    assert ends["precision"][3] == pytest.approx(exact(0, 1))
    assert ends["f1"][3] == pytest.approx(f1_of(exact(0, 1)))
    for name, row in {"precision": 0, "recall": 1, "f1": 1}.items():  # between 0 and 1: of the resamples
        assert ends[name][row] == pytest.approx(np.quantile(drawn.by_class[name][row], [0.025, 0.975]))
    undecided = {"precision": [2, 4], "recall": [3, 4], "f1": [4]}
    for name, rows in undecided.items():
        assert np.flatnonzero(np.isnan(ends[name]).all(axis=1)).tolist() == rows
        widths = np.diff(np.delete(ends[name], rows, axis=0))
        assert (widths > 0).all()


@pytest.mark.parametrize("shift", [0, 1])
def test_means_over_classes_of_which_each_is_one_or_zero_have_a_width(shift: int, tmp_path: Path) -> None:
    """That of the classes' exact intervals at a confidence by which all hold at once."""
    labels = np.repeat([0, 1, 2], [5, 10, 20])
    whole = read(tmp_path, labels, np.eye(4, dtype=np.float32)[(labels + shift) % 3] * 0.4 + np.float32(0.15))
    drawn = resampled(whole, BINS, 50)
    ends = drawn.intervals(0.94)
    by_class = [exact(0 if shift else count, count, 0.98) for count in (5, 10, 20)]
    assert ends["macro_recall"] == pytest.approx(np.mean(by_class, axis=0))
    assert ends["macro_precision"] == pytest.approx(ends["macro_recall"])
    counts = [25, 15, 30] if shift else [5, 10, 20]
    of_f1 = [f1_of(exact(0 if shift else count, count, 0.98)) for count in counts]
    assert ends["macro_f1"] == pytest.approx(np.mean(of_f1, axis=0))
    assert np.ptp(drawn.values["macro_recall"]) == 0


def test_exact_intervals_hold_the_metric_as_often_as_they_say(tmp_path: Path) -> None:
    """Of classes of 8 examples, each found with 0.97: whoever sees a recall of 1 is right to expect less."""
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 8)
    held = []
    for _ in range(60):
        classes = np.where(random.random(24) < 0.97, labels, 3)
        whole = read(tmp_path, labels, np.eye(4, dtype=np.float32)[classes] * 0.4 + np.float32(0.15))
        low, high = resampled(whole, BINS, 40).intervals_by_class(0.95)["recall"][0]
        held.append(low <= 0.97 <= high)
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("examples", [1, 2, 40])
def test_no_interval_is_without_width(examples: int, tmp_path: Path) -> None:
    """Of predictions that are all correct and sure, and of a single one."""
    labels = np.arange(examples) % 2
    whole = read(tmp_path, labels, np.eye(2, dtype=np.float32)[labels] * 0.4 + np.float32(0.3))
    drawn = resampled(whole, BINS, 30)
    ends = drawn.intervals(0.95)
    assert ends.keys() == {"accuracy", "macro_precision", "macro_recall", "macro_f1"} < drawn.values.keys()
    assert all(low < high for low, high in ends.values())
    for name, rows in drawn.intervals_by_class(0.95).items():
        is_written = ~np.isnan(rows[:, 0])
        assert (rows[is_written, 0] < rows[is_written, 1]).all()
        assert is_written.any() == (name in ("precision", "recall", "f1"))


@pytest.mark.filterwarnings("error")
def test_absent_classes_are_left_out(tmp_path: Path) -> None:
    """Classes 1 and 3 of five have no example; no metric is nan, and scikit-learn says nothing."""
    labels = np.array([0, 2, 4] * 20)
    whole = read(tmp_path, labels, made.probabilities(labels, 5))
    found, drawn = metrics_of(whole, BINS), resampled(whole, BINS, 30)
    assert all(np.isfinite(value) for value in found.values.values())
    assert list(np.isnan(found.by_class["roc_auc"])) == [False, True, False, True, False]
    assert found.values["roc_auc"] == np.nanmean(found.by_class["roc_auc"])
    assert found.support.tolist() == [20, 0, 20, 0, 20]
    assert all(np.isfinite(ends).all() for ends in drawn.intervals(0.95).values())
    assert np.isnan(drawn.intervals_by_class(0.95)["roc_auc"][1]).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("classes", [2, 3])
def test_a_single_class_has_no_ranking(classes: int, tmp_path: Path) -> None:
    labels = np.ones(20, int)
    whole = read(tmp_path, labels, made.probabilities(labels, classes))
    for values in (metrics_of(whole, BINS).values, resampled(whole, BINS, 30).intervals(0.95)):
        assert {"roc_auc", "average_precision"}.isdisjoint(values)
        assert all(np.isfinite(value).all() for value in values.values())


def test_probabilities_that_are_no_numbers_leave_the_classes(tmp_path: Path) -> None:
    labels = np.arange(30) % 3
    values = made.probabilities(labels, 3)
    values[7, 1] = np.nan
    whole = read(tmp_path, labels, values)
    names = {"accuracy", "macro_precision", "macro_recall", "macro_f1"}
    assert metrics_of(whole, BINS).values.keys() == resampled(whole, BINS, 30).values.keys() == names


def test_bins_and_their_gaps_are_those_of_scikit_learn(tmp_path: Path) -> None:
    whole = random_predictions(tmp_path, 4, 400)
    counts = np.bincount(bins_of(whole, BINS), minlength=BINS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        accuracy, confidence = calibration_curve(whole.correct, whole.of_predicted, n_bins=BINS)
    expected = (counts[counts > 0] * np.abs(accuracy - confidence)).sum() / 400
    assert metrics_of(whole, BINS).values["ece"] == pytest.approx(expected, abs=1e-7)
    assert metrics_of(whole, 1).values["ece"] == pytest.approx(abs(whole.correct.mean() - whole.of_predicted.mean()))
