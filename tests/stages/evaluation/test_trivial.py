"""The trivial baseline: a network that has learnt nothing is reported, for every task, and under imbalance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, log_loss, root_mean_squared_error

from stages.evaluate import evaluate
from stages.evaluation.baseline import Trivial, baseline_of, trivial_of
from stages.evaluation.by_column import importance_of
from stages.evaluation.paired_tests import metric_difference
from stages.evaluation.predictions import columns_of
from stages.metrics.numbers import Mae
from stages.normalize import normalize
from stages.results import Dataset, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings
from stages.settings.results import EvaluateSettings
from tests.stages.experiments import built_of, one_device, real_digits, small_cnn, table_of
from tests.stages.images import Telling

ROWS = 900
RANDOM = np.random.default_rng(3)
FRAME = pd.DataFrame({"size": RANDOM.normal(size=ROWS), "age": RANDOM.normal(size=ROWS), "w": RANDOM.random(ROWS)})
SPLIT = ["train"] * 400 + ["val"] * 100 + ["test"] * 400
RARE = np.where(FRAME["size"] > 1.6, "bad", "ok")
"""5% of the examples, which a network can find."""


def data_of(folder: Path, target: Any, weight: str | None = "w", **columns: Any) -> Dataset:
    frame = FRAME.assign(split=SPLIT, **columns)
    if weight is None:
        del frame["w"]
    data = table_of(folder, frame, target=target, split_column="split", weight=weight)
    return normalize(data, NormalizeSettings())


def told(data: Dataset, rows: np.ndarray) -> Trivial:
    """Return what is reported about a network whose `Head.rows` returns `rows` for the test split."""
    found = trivial_of(columns_of(data.test, data.task, rows.astype(np.float32)), data, 0.95)
    assert found is not None
    return found


def is_imbalanced(data: Dataset) -> bool:
    return bool(data.task.view.further(data.task.names, data.train))


def of_class(probabilities: np.ndarray) -> np.ndarray:
    return np.column_stack([probabilities, probabilities.argmax(axis=1)])


@pytest.mark.parametrize("weight", [None, "w"])
def test_it_is_the_mean_the_majority_and_the_frequencies_of_training(tmp_path: Path, weight: str | None) -> None:
    """As scikit-learn's dummies have it, by the weights of the examples."""
    data = data_of(tmp_path, "price", weight, price=FRAME.age * 3 + 1)
    train, test = data.train, data.test
    dummy = DummyRegressor().fit(train.targets, train.targets[:, 0], train.weights)
    rmse = root_mean_squared_error(test.targets[:, 0], dummy.predict(test.targets), sample_weight=test.weights)
    found = told(data, np.asarray(test.targets))
    assert found.metrics["trivial/rmse"] == pytest.approx(rmse, rel=1e-6)
    assert found.verdict == "beats"
    assert {"trivial/mae", "trivial/r2", "trivial/rmse_difference", "trivial/rmse_difference_high"} <= {*found.metrics}

    data = data_of(tmp_path, "kind", weight, kind=RARE)
    train, test = data.train, data.test
    dummy = DummyClassifier(strategy="prior").fit(train.targets, train.targets, train.weights)
    answers = dummy.predict_proba(test.targets)
    found = told(data, of_class(np.eye(2)[test.target_values]))
    accuracy = accuracy_score(test.targets, answers.argmax(axis=1), sample_weight=test.weights)
    loss = log_loss(test.targets, answers, sample_weight=test.weights)
    ranked = average_precision_score(test.targets == 0, answers[:, 0], sample_weight=test.weights)
    expected = {"accuracy": accuracy, "log_loss": loss, "average_precision/bad": ranked}
    assert found.values == pytest.approx(expected, rel=1e-6)
    assert f'(always "ok", {100 * answers[0].max():.1f}% of 400 training examples): accuracy' in found.sentence

    data = data_of(tmp_path, ["hot", "wet"], weight, hot=(FRAME.age > -1).astype(int), wet=(FRAME.age > 1).astype(int))
    train, test = data.train, data.test
    found = told(data, np.asarray(test.targets))
    majority = np.tile([1, 0], (len(test), 1))
    f1 = f1_score(test.targets, majority, average="macro", sample_weight=test.weights, zero_division=0)
    shares = np.average(train.target_values, axis=0, weights=train.weights)
    of_each = [log_loss(test.targets[:, k], np.full(400, shares[k]), sample_weight=test.weights) for k in range(2)]
    assert found.values == pytest.approx({"macro_f1": f1, "log_loss": np.mean(of_each)}, rel=1e-6)


def test_numbers_that_are_no_better_than_the_mean(tmp_path: Path) -> None:
    data = data_of(tmp_path, "price", price=FRAME.age * 3 + 1)
    targets = np.asarray(data.test.targets)
    mean = np.full((len(targets), 1), float(np.average(data.train.targets[:, 0], weights=data.train.weights)))
    noise = np.random.default_rng(0).normal(size=targets.shape)
    for answers in (mean, mean + 0.1 * noise):  # of which R² is about 0
        found = told(data, answers)
        assert found.sentence.startswith(
            "the network does not beat the mean baseline (always the mean of price in 400 training examples): rmse "
        )
        assert "the network's R² is -" in found.sentence
    assert told(data, mean + 10 * noise).verdict == "is worse than"
    assert told(data, mean + 0.5 * (targets - mean)).verdict == "beats"
    moved = replace(told(data, mean + 0.5 * (targets - mean)), r2=-0.5)  # the test split is another than the training's
    assert moved.verdict == "does not beat"


def test_of_several_targets_those_are_named_that_are_no_better(tmp_path: Path) -> None:
    data = data_of(tmp_path, ["price", "rent"], price=FRAME.age * 3, rent=FRAME["size"] * 2)
    targets = np.asarray(data.test.targets)
    found = told(data, np.column_stack([targets[:, 0], targets[:, 1].mean() + 0 * targets[:, 1] + 0.1]))
    assert found.verdict == "beats"
    assert found.sentence.endswith("; it does not beat the baseline for rent")
    data = data_of(tmp_path, ["hot", "wet"], hot=(FRAME.age > 0).astype(int), wet=(FRAME["size"] > 0).astype(int))
    targets = np.asarray(data.test.targets)
    found = told(data, np.column_stack([np.full(400, 0.9), 0.1 + 0.8 * targets[:, 1]]))
    assert found.sentence.endswith("; it does not beat the baseline for hot")


def test_under_imbalance_the_verdict_is_by_the_log_loss_too(tmp_path: Path) -> None:
    data = data_of(tmp_path, "kind", None, kind=RARE)
    assert is_imbalanced(data)
    share = np.mean(np.asarray(data.train.targets))
    constant = np.tile([1 - share, share], (400, 1))
    found = told(data, of_class(constant))
    assert found.sentence.startswith('the network does not beat the majority-class baseline (always "ok", 9')
    assert "; by log_loss, it does not beat this baseline: log_loss 0." in found.sentence
    assert ", 0 (no interval: equal on all 400 examples; lower" in found.sentence
    rare = int(np.bincount(data.train.target_values).argmin())
    sure = np.empty((400, 2))  # always the majority, but it knows which are rare
    sure[:, 1 - rare] = np.where(data.test.targets == rare, 0.51, 0.99)
    sure[:, rare] = 1 - sure[:, 1 - rare]
    knows = told(data, of_class(sure))
    assert knows.verdict == "does not beat"
    assert "; by log_loss, it beats this baseline: log_loss 0." in knows.sentence
    assert "% CI −" in knows.sentence
    assert knows.metrics["trivial/log_loss_difference_high"] < 0
    assert "; by average_precision/bad, it beats this baseline: average_precision/bad 1 vs 0.0" in knows.sentence
    assert knows.metrics["trivial/average_precision/bad_difference_low"] > 0.5
    beside = baseline_of(columns_of(data.test, data.task, of_class(sure).astype(np.float32)), data, 0.95, 15)
    assert beside is not None
    assert "; by log_loss, " in beside.sentence
    assert beside.metrics.keys() >= {"baseline/log_loss_difference", "baseline/average_precision/bad_difference"}

    model = built_of(MlpSettings(hidden=[4]), data, one_device())
    found_importance = importance_of(model, data, 0.95)
    assert found_importance.rows[0][1] == "log_loss increase"


def test_a_class_with_few_test_examples_is_not_ranked(tmp_path: Path) -> None:
    """Four examples say too little; the log loss is compared all the same."""
    kind = np.where(FRAME["size"] > 1.6, "bad", "ok")
    test = np.flatnonzero(np.array(SPLIT) == "test")
    kind[test] = "ok"
    kind[test[:4]] = "bad"
    data = data_of(tmp_path, "kind", None, kind=kind)
    found = told(data, of_class(np.eye(2)[data.test.target_values] * 0.8 + 0.1))
    assert "; by log_loss, " in found.sentence
    assert "average_precision" not in found.sentence
    assert not any("average_precision" in name for name in found.metrics)


def test_classes_that_are_balanced_are_told_by_accuracy_alone(tmp_path: Path) -> None:
    data = data_of(tmp_path, "kind", kind=np.where(FRAME.age > 0.3, "a", "b"))
    assert not is_imbalanced(data)
    assert "log_loss" not in told(data, of_class(np.eye(2)[data.test.target_values])).sentence


def test_images_and_the_report_have_it(tmp_path: Path) -> None:
    digits = real_digits(200)
    telling = Telling()
    network = small_cnn(digits, one_device())
    found = evaluate(Trained(network, (), 1, 0), digits, one_device(), EvaluateSettings(), tmp_path, telling)
    [verdict] = found.record.summary["verdicts"]
    assert " the majority-class baseline (always " in verdict
    assert verdict in (tmp_path / "test_metrics.md").read_text()
    assert verdict not in telling.lines, "the summary of the run prints it, next to the metrics"
    assert 0 < found.record.metrics["trivial/accuracy"] < 0.2
    assert "baseline/accuracy" not in found.record.metrics


def test_without_an_interval_neither_is_better() -> None:
    """As with forecasts whose test split is a single block of time."""
    found = metric_difference(np.array([[2.0]]), np.array([[1.0]]), True, metric=Mae())
    sentence = Trivial("the last value (of", {"mae": 2.0}, replace(found, examples=50), 100).sentence
    assert sentence.startswith("no significant difference between the network and the last value (of 100 training")
    assert "mae 1 vs 2, −1 (no interval: too few independent test examples" in sentence
