"""Predictions that are not finite end an evaluation; nothing puts a number in the place of one, or finds it good."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from stages.callbacks import BestWeights, Callbacks
from stages.data.split import Split
from stages.errors import UserError
from stages.evaluate import evaluate
from stages.evaluation.against import compare_with
from stages.evaluation.by_column import importance_of
from stages.evaluation.eval_step import Scorer
from stages.evaluation.predictions import (
    HALF,
    NAME,
    check_finite,
    check_inputs,
    check_other,
    read_by_example,
    read_columns,
)
from stages.inspect import statistics
from stages.metrics.keras_metric import KerasMetric
from stages.metrics.known import KNOWN
from stages.normalize import normalize
from stages.results import Dataset, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings
from stages.settings.results import EvaluateSettings
from stages.settings.train import ClassificationSettings, SgdSettings
from stages.tasks.classification import classification
from stages.tasks.multi_label import multi_label
from stages.tasks.parts import View
from stages.tasks.regression import regression
from stages.tasks.task import Task
from stages.train import train
from tests.stages.evaluation import made
from tests.stages.evaluation.test_own_task import counts
from tests.stages.experiments import built_of, one_device, settings, table_of
from tests.stages.images import Telling

ROWS = 300
HUGE = 290
"""The row of the test split with a number that float32 cannot hold."""


def with_huge_number(folder: Path, row: int, value: float = 1e300, of_classes: bool = False) -> Dataset:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"size": random.normal(size=ROWS), "age": random.normal(size=ROWS)})
    frame["price"] = frame["size"] + random.normal(size=ROWS)
    if of_classes:
        frame["price"] = np.where(frame.price > 0, "dear", "cheap")
    frame["split"] = ["train"] * 200 + ["val"] * 40 + ["test"] * 60
    frame.loc[row, "size"] = value
    return normalize(table_of(folder, frame, target="price", split_column="split"), NormalizeSettings())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return with_huge_number(tmp_path_factory.mktemp("table"), HUGE)


def test_a_number_that_no_network_holds_ends_the_evaluation_with_its_row(data: Dataset, tmp_path: Path) -> None:
    model = built_of(MlpSettings(hidden=[4]), data, one_device())
    told = rf"row {HUGE + 1}: the network predicts nan for target price; the largest input of this example is 1e\+300"
    with pytest.raises(UserError, match=told):
        evaluate(Trained(model, (), 1, 0), data, one_device(), EvaluateSettings(), tmp_path)
    assert not (tmp_path / NAME).exists()


def test_a_number_that_no_network_holds_is_named_in_validation_and_in_training(tmp_path: Path) -> None:
    where = one_device()
    validated = with_huge_number(tmp_path, 210)
    model = built_of(MlpSettings(hidden=[4]), validated, where)
    with pytest.raises(
        UserError, match=r"row 211: 1e\+300 in the column size is too large for float32. Expected numbers in"
    ):
        train(model, validated, where, settings(epochs=1))
    held = with_huge_number(tmp_path, 210, 3e38)  # float32 holds it, and not ten times as much
    model = built_of(MlpSettings(hidden=[4]), held, where)
    model.network.set_weights([10 * np.abs(weight) for weight in model.network.get_weights()])
    told = r"validation loss is (nan|inf) \(\S+ row 211: the network predicts (nan|-?inf) for target price; the largest"
    with pytest.raises(UserError, match=told):
        train(model, held, where, settings(epochs=1, optimizer=SgdSettings(learning_rate=1e-6)))
    with pytest.raises(UserError, match=r"the column size has numbers whose squares overflow.*size: leave_out"):
        with_huge_number(tmp_path, 10)
    assert statistics(with_huge_number(tmp_path, 10, 1e100)).giving_away == {}  # more than a tree of scikit-learn takes


def test_a_number_that_a_network_swallows_ends_the_evaluation_too(data: Dataset, tmp_path: Path) -> None:
    """A ReLU makes 0 of a nan, so that the answer is finite, whatever the number is."""
    where = one_device()
    model = built_of(MlpSettings(hidden=[4]), data, where)
    kernel = next(one for one in model.network.core.trainable_weights if "kernel" in one.path)
    kernel.assign(-np.abs(kernel.numpy()))
    scores = Scorer(where, model).score(data.test, 64, predicts=True)
    assert np.isfinite(np.asarray(scores.predictions)).all()
    told = rf"row {HUGE + 1}: 1e\+300 in the column size is too large for float32\. Expected numbers in the range"
    with pytest.raises(UserError, match=told):
        evaluate(Trained(model, (), 1, 0), data, where, EvaluateSettings(), tmp_path)
    check_inputs(data.train, "t.csv", "float32")
    for policy in HALF:
        with pytest.raises(
            UserError, match=r"row 201: 1e\+06 in the column size is too large.* Try: precision=float32"
        ):
            check_inputs(with_huge_number(tmp_path, 200, 1e6).val, "t.csv", policy)
    check_inputs(with_huge_number(tmp_path, 200, 1e6).val, "t.csv", "mixed_bfloat16")


@pytest.mark.parametrize("of_classes", [False, True])
def test_a_column_that_breaks_the_network_where_permuted_has_no_importance(tmp_path: Path, of_classes: bool) -> None:
    """As `importance_of` sees the whole test split, the answers are not finite without a permutation, either."""
    data = with_huge_number(tmp_path, HUGE, of_classes=of_classes)
    model = built_of(MlpSettings(hidden=[4]), data, one_device())
    found = importance_of(model, data, 0.95)
    assert [row[1:] for row in found.rows[1:]] == [("", "", "")] * 2
    assert "Blank" in found.note


TASKS: dict[str, tuple[Task, int, str]] = {
    "classes": (classification(("cat", "dog")), 1, "class dog"),
    "single logit": (classification(("cat", "dog"), single_logit=True), 0, "class cat"),
    "labels": (multi_label(("hot", "wet")), 1, "label wet"),
    "numbers": (regression(("price", "rent"), (0.0,) * 2, (1.0,) * 2), 0, "target price"),
    "own task": (counts(regression(("a", "b"))), 1, "target b"),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_task_names_the_example_and_what_is_predicted(name: str, value: float) -> None:
    task, place, what = TASKS[name]
    values = np.zeros((5, task.head.width), np.float32)
    targets = np.zeros(5, np.int32)
    split = Split({"a": np.arange(5.0), "b": np.array(list("vwxyz"), object)}, targets, numbers=np.arange(10, 15))
    check_finite(values, split, task, "t.csv", "float32")
    values[3, place] = value
    told = rf"^t.csv: row 14: the network predicts {value} for {what}; the largest input .* is 3, in the column a\. "
    with pytest.raises(UserError, match=told + "Expected finite predictions$"):
        check_finite(values, split, task, "t.csv", "mixed_bfloat16")
    values[4] = value
    with pytest.raises(UserError, match=r"row 14 \(and 1 more\).* Try: precision=float32$"):
        check_finite(values, split, task, "t.csv", "mixed_float16")
    images = Split.of_images(np.zeros((5, 1, 1, 1), np.uint8), targets)
    with pytest.raises(UserError, match=r"digits: example 3 .and 1 more.: the network predicts"):
        check_finite(values, images, task, "digits", "float32")
    with pytest.raises(UserError, match=rf"photos: d\.png .* for {what}\. Expected"):
        check_finite(values, replace(images, files=[f"{name}.png" for name in "abcde"]), task, "photos", "float32")


def test_no_metric_of_predictions_replaces_what_is_not_finite() -> None:
    target = np.random.default_rng(1).normal(size=(50, 1))
    for metric in ("rmse", "mae", "r2"):
        for value in (np.nan, np.inf):
            answers = target + 1
            answers[7] = value
            with np.errstate(invalid="ignore"):
                assert not np.isfinite(KNOWN[metric].by_example({"target": target, "prediction": answers})).all()
        exact = KNOWN[metric].by_example({"target": target, "prediction": target})
        assert exact == pytest.approx(
            np.full(50, KNOWN[metric].estimate({"target": target, "prediction": target}, np.ones(50))[0])
        )


def test_predictions_of_another_run_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """Files of earlier versions may have some."""
    target = np.arange(40.0)
    values = target + 1
    made.write_numbers(tmp_path, target, values)
    assert check_other(tmp_path, "abc")["metric"] == "rmse"
    assert read_by_example(tmp_path / NAME)[1].mean() == pytest.approx(1)
    values[5] = np.inf
    path = made.write_numbers(tmp_path, target, values)
    with pytest.raises(UserError, match=r"against=abc: its predictions.parquet has inf in row 6, column prediction"):
        check_other(tmp_path, "abc")
    with pytest.raises(KeyError, match="not finite"), np.errstate(invalid="ignore"):
        read_by_example(path)
    ours = {**read_columns(path), "prediction": (target + 1)[:, None]}
    with np.errstate(invalid="ignore"):
        assert not compare_with(ours, regression(("price",)), tmp_path, 0.95).found.is_better


class Network(keras.Model):
    """Weights that say in which epoch they were read."""

    epoch = 0

    def get_weights(self) -> list[np.ndarray]:
        return [np.array(self.epoch)]


def after(values: list[float], *callbacks: keras.callbacks.Callback, metric: str = "val_auc") -> Network:
    """Return the network after epochs with these values, or those until a callback stops."""
    network, every = Network(), Callbacks(callbacks)
    network.stop_training = False
    every.set_model(network)
    every.on_train_begin()
    for epoch, value in enumerate(values):
        network.epoch = epoch + 1
        every.on_epoch_end(epoch, {metric: value})
        if network.stop_training:
            break
    return network


@pytest.mark.parametrize(
    ("values", "best"),
    [([np.nan, 0.5, np.nan, 0.7, 0.6], 4), ([0.5, np.inf, 0.4], 1), ([np.inf, 0.5, 0.6], 3), ([np.nan, np.nan], 2)],
)
def test_the_best_epoch_has_a_finite_value(values: list[float], best: int) -> None:
    kept = BestWeights("val_auc", is_higher_better=True)
    after(values, kept)
    assert (kept.best_epoch, kept.weights) == (best, [np.array(best)])
    lower = BestWeights("val_auc", is_higher_better=False)
    after([-value for value in values], lower)
    assert lower.best_epoch == best


def test_a_monitor_that_is_undefined_in_every_epoch_is_said(tmp_path: Path) -> None:
    """The AUC of a validation split of one class."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"size": random.normal(size=200), "split": ["train"] * 150 + ["val"] * 20 + ["test"] * 30})
    frame["kind"] = np.where((frame["size"] > 0) & (frame.split != "val"), "a", "b")
    data = normalize(table_of(tmp_path, frame, target="kind", split_column="split"), NormalizeSettings())
    telling, where = Telling(), one_device()
    model = built_of(MlpSettings(hidden=[4]), data, where, task=ClassificationSettings(single_logit=True))
    trained = train(model, data, where, settings(epochs=2, monitor="val_auc"), telling)
    assert trained.best_epoch == 2
    assert "train.monitor=val_auc is nan in every epoch, so there is no best epoch" in telling.warnings[-1]
    assert any("  auc 0." in line and "  val_auc undefined" in line for line in telling.lines)


@pytest.mark.parametrize("first", [np.nan, np.inf])
def test_early_stopping_goes_on_after_a_value_that_is_not_finite(first: float) -> None:
    stopping = keras.callbacks.EarlyStopping("val_auc", patience=2, mode="max")
    assert after([first, 0.1, 0.2, 0.3, 0.4, 0.3, 0.3, 0.3], stopping).epoch == 7
    assert after([0.5, np.nan, np.nan, 0.6, 0.7], stopping).epoch == 3


@pytest.mark.parametrize(
    "metric", [keras.metrics.AUC(), keras.metrics.SensitivityAtSpecificity(0.5), keras.metrics.AUC(multi_label=True)]
)
def test_a_metric_that_needs_two_classes_is_undefined_of_one(metric: Any) -> None:
    answers, ones = np.linspace(0.1, 0.9, 8, dtype=np.float32)[:, None], np.ones(8, np.float32)

    def value(targets: np.ndarray, weights: np.ndarray) -> float:
        own = KerasMetric(metric)
        columns = {"y_true": tf.constant(targets), "y_pred": tf.constant(answers)}
        return own.value(own.sums(columns, tf.constant(weights)))

    for targets in (np.zeros((8, 1), np.float32), np.ones((8, 1), np.float32)):
        assert np.isnan(value(targets, ones))
    both = (answers > 0.5).astype(np.float32)
    assert value(both, ones) == pytest.approx(1)
    assert np.isnan(value(both, 1 - both[:, 0]))  # the weighed examples are of one class
    assert View().text("auc", np.nan, True) == "undefined"
