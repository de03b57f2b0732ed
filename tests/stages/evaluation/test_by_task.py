"""Metrics of several labels, and of numbers: scikit-learn's, with intervals that hold the truth."""

from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sk

from stages.evaluation.paired_tests import metric_difference
from stages.evaluation.report import write_report
from stages.metrics.estimates import parts_of
from stages.metrics.known import KNOWN
from stages.tasks.multi_label import report_labels
from stages.tasks.regression import report_numbers

RANDOM = np.random.default_rng(2)
NAMES = ("beach", "sunset", "never")


def made(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    targets = (RANDOM.random((count, 3)) < [0.5, 0.2, 0.0]).astype(np.int32)
    probabilities = (1 / (1 + np.exp(-RANDOM.normal(size=(count, 3)) - 1.5 * targets + 1))).astype(np.float32)
    return targets, (probabilities > 0.5).astype(np.int32), probabilities


@pytest.mark.parametrize("is_weighted", [False, True])
def test_metrics_are_those_of_scikit_learn(tmp_path: Path, is_weighted: bool) -> None:
    targets, predicted, probabilities = made(300)
    weights = RANDOM.random(300) if is_weighted else None
    columns = {"target": targets, "predicted": predicted, "probabilities": probabilities}
    report = report_labels(columns | ({"weight": weights} if weights is not None else {}), NAMES, 0.95)
    given = {"sample_weight": weights}
    ranked = targets[:, :2], probabilities[:, :2]  # the third label has no positive
    expected = {
        "macro_f1": sk.f1_score(targets, predicted, average="macro", zero_division=0, **given),
        "micro_f1": sk.f1_score(targets, predicted, average="micro", **given),
        "exact_match": sk.accuracy_score(targets, predicted, **given),
        "macro_roc_auc": sk.roc_auc_score(*ranked, **given),
        "micro_roc_auc": sk.roc_auc_score(*ranked, average="micro", **given),
        "macro_average_precision": sk.average_precision_score(*ranked, **given),
        "micro_average_precision": sk.average_precision_score(*ranked, average="micro", **given),
    }
    assert dict(report.values) == pytest.approx(expected, rel=1e-12)
    low, high = report.intervals["exact_match"]
    assert low < report.values["exact_match"] < high
    assert "the same value of never, so ROC-AUC" in report.notes[0]
    write_report(report, tmp_path)
    lines = (tmp_path / "test_by_label.csv").read_text().splitlines()
    assert lines[0] == "label,f1,roc_auc,average_precision,examples,predicted"
    assert lines[3].startswith("never,0.0,,,0,")


@pytest.mark.parametrize(("positives", "weight", "is_told"), [(4, 1, False), (5, 0, False), (5, 2, True)])
def test_a_rare_label_allows_neither_interval_nor_verdict(positives: int, weight: float, is_told: bool) -> None:
    targets: np.ndarray = (np.arange(400)[:, None] < [200, positives]).astype(np.int32)
    weights = np.where(np.arange(400) == 0, weight, 1.0)
    columns = {"target": targets, "probabilities": targets.astype(np.float32), "weight": weights}
    first, second = ({**columns, "predicted": np.roll(targets, shift, axis=0)} for shift in (3, 40))
    assert ("macro_f1" in report_labels(first, NAMES[:2], 0.95).intervals) == is_told
    values = [KNOWN["macro_f1"].by_example(one)[np.newaxis] for one in (first, second)]
    found = metric_difference(values[0], values[1], True)
    assert np.isfinite(found.low) == is_told
    assert found.difference == pytest.approx(values[1].mean() - values[0].mean()) != 0


def test_a_single_label_is_a_label_and_one_without_weighed_positives_is_not_ranked() -> None:
    targets, predicted, probabilities = made(100)
    weights = 1.0 - targets[:, 1]
    columns = {"target": targets[:, :2], "predicted": predicted[:, :2], "probabilities": probabilities[:, :2]}
    values = report_labels({**columns, "weight": weights}, NAMES[:2], 0.95).values
    one = targets[:, 0], probabilities[:, 0]
    assert values["macro_roc_auc"] == pytest.approx(sk.roc_auc_score(*one, sample_weight=weights))
    values = report_labels({name: part[:, :1] for name, part in columns.items()}, NAMES[:1], 0.95).values
    f1 = sk.f1_score(targets[:, 0], predicted[:, 0])
    assert [values[f"{kind}_f1"] for kind in ("macro", "micro")] == pytest.approx([f1, f1])
    assert values["micro_roc_auc"] == pytest.approx(sk.roc_auc_score(*one))


@pytest.mark.parametrize("is_weighted", [False, True])
def test_errors_of_numbers_are_those_of_scikit_learn(is_weighted: bool) -> None:
    weights = RANDOM.integers(0, 4, 200).astype(np.float64) if is_weighted else None
    pair = RANDOM.normal(size=(200, 2)), RANDOM.normal(size=(200, 2))
    pair[0][:, 1] = 0.5  # a constant target
    columns = dict(zip(("target", "prediction"), pair, strict=True)) | ({} if weights is None else {"weight": weights})
    report = report_numbers(columns, ("a", "b"), 0.95)
    scores = {"rmse": sk.root_mean_squared_error, "mae": sk.mean_absolute_error, "r2": sk.r2_score}
    for name, score in (scores | {"median_error": sk.median_absolute_error}).items():
        each = score(*pair, multioutput="raw_values", sample_weight=weights)
        assert [report.values[f"{name}/{target}"] for target in "ab"] == pytest.approx(each, rel=1e-12)


def test_examples_without_a_weight_have_no_median_error() -> None:
    columns = {name: RANDOM.normal(size=(20, 1)) for name in ("target", "prediction")}
    values = report_numbers({**columns, "weight": np.zeros(20)}, ("a",), 0.95).values
    assert "median_error" not in values


def test_influences_are_derivatives_by_the_weight() -> None:
    targets, predicted, _ = made(50)
    columns = {"target": targets[:, :2], "predicted": predicted[:, :2]}
    for name in ("macro_f1", "exact_match"):
        value, influences = KNOWN[name].estimate(columns, np.ones(50))
        for row in range(5):
            weights = np.ones(50)
            weights[row] += 1e-5
            changed = KNOWN[name].estimate(columns, parts_of(50, weights))[0]
            assert (changed - value) / 1e-5 * 50 == pytest.approx(influences[row], abs=1e-3)
