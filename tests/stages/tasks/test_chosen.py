"""Tasks as a configuration has them: losses, metrics and classes of the user's, and what cannot be used."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sk

from stages.errors import UserError
from stages.settings.train import AutoTaskSettings, ClassificationSettings, RegressionSettings
from stages.tasks.chosen import chosen_task
from stages.tasks.classification import classification
from stages.tasks.multi_label import multi_label
from stages.tasks.regression import NumberTargets
from stages.tasks.task import Task
from stages.training.task_loss import TaskLoss
from tests.stages.experiments import scores_by_parts

HERE = __name__

RANDOM = np.random.default_rng(0)

COUNT = 300

TARGETS = {
    "classes": RANDOM.integers(0, 3, COUNT).astype(np.int32),
    "two": RANDOM.integers(0, 2, COUNT).astype(np.int32),
    "labels": RANDOM.integers(0, 2, (COUNT, 3)).astype(np.int32),
    "numbers": (100 + 30 * RANDOM.normal(size=(COUNT, 2))).astype(np.float32),
}

NUMBERS = NumberTargets.of(("x", "y"), TARGETS["numbers"])

TASKS: dict[str, Task] = {
    "classes": classification(("a", "b", "c")),
    "two": classification(("a", "b")),
    "labels": multi_label(("a", "b", "c")),
    "numbers": NUMBERS.task(),
}


@keras.saving.register_keras_serializable()
class Within(keras.metrics.Mean):
    """Part of the examples whose error is at most a share of the target."""

    def __init__(self, share: float = 0.1, name: str = "within", **settings: Any) -> None:
        super().__init__(name=name, **settings)
        self.share = share

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        is_near = keras.ops.abs(y_pred - y_true) <= self.share * keras.ops.abs(y_true)
        return super().update_state(keras.ops.mean(keras.ops.cast(is_near, "float32"), axis=-1), sample_weight)


class Largest(keras.metrics.Metric):
    """The largest error, which is no function of sums."""

    def __init__(self, name: str = "largest", **settings: Any) -> None:
        super().__init__(name=name, **settings)
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.value


def pinball(y_true: Any, y_pred: Any, quantile: float = 0.9) -> Any:
    error = y_true - y_pred
    return keras.ops.mean(keras.ops.maximum(quantile * error, (quantile - 1) * error), axis=-1)


def reduced(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


def misses(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.cast(y_pred < y_true, "float32"), axis=-1)


def of_logits(y_true: Any, y_pred: Any, from_logits: bool = True) -> Any:
    return keras.losses.categorical_crossentropy(y_true, y_pred, from_logits)


class OfLogits(keras.losses.CategoricalCrossentropy):
    def __init__(self) -> None:
        super().__init__(from_logits=True)


def relative(task: Task) -> Task:
    """Return the task with models compared by their MAE."""
    return replace(task, metrics=tuple(sorted(task.metrics, key=lambda metric: metric.name != "mae")))


def outputs_of(task: Task) -> tf.Tensor:
    return tf.constant(RANDOM.normal(size=(COUNT, task.head.units)), tf.float32)


@pytest.mark.parametrize(("name", "loss", "expected"), [
    ("numbers", {"_target_": "keras.losses.Huber", "delta": 2.0}, keras.losses.Huber(2.0, reduction=None)),
    ("numbers", {"_target_": f"{HERE}.pinball", "quantile": 0.8}, lambda true, out: pinball(true, out, 0.8)),
    (
        "classes",
        {"_target_": "keras.losses.CategoricalFocalCrossentropy", "from_logits": True},
        keras.losses.CategoricalFocalCrossentropy(from_logits=True, reduction=None),
    ),
    ("classes", {"_target_": f"{HERE}.of_logits"}, of_logits),
    ("classes", {"_target_": f"{HERE}.OfLogits"}, of_logits),
    ("labels", {"_target_": "keras.losses.BinaryCrossentropy"}, keras.losses.BinaryCrossentropy(reduction=None)),
    (
        "two",
        {"_target_": "keras.losses.BinaryFocalCrossentropy"},
        keras.losses.BinaryFocalCrossentropy(reduction=None),
    ),
])  # fmt: skip
def test_a_loss_of_the_users_is_that_of_each_example(name: str, loss: dict[str, Any], expected: Any) -> None:
    task = chosen_task(TASKS[name], AutoTaskSettings(loss=loss, single_logit=name == "two"), TARGETS[name])
    outputs, targets = outputs_of(task), TARGETS[name]
    true = {
        "numbers": lambda: NUMBERS.standardized(targets, tf.float32),
        "classes": lambda: np.eye(3)[targets],
        "labels": lambda: targets,
        "two": lambda: targets[:, np.newaxis],
    }[name]()
    answers = outputs if name in ("numbers", "classes") else tf.sigmoid(outputs)
    found = task.loss.of_each(tf.constant(targets), outputs)
    assert found.shape == (COUNT,)
    np.testing.assert_allclose(found, expected(tf.constant(true, tf.float32), answers), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 7])
def test_metrics_add_up_whatever_the_batches(parts: int) -> None:
    """As scikit-learn computes them of all examples with their weights."""
    weights = RANDOM.random(COUNT).astype(np.float32)
    entries = [{"_target_": f"{HERE}.Within", "share": 0.3}, {"_target_": "keras.metrics.MeanAbsolutePercentageError"}]
    task = chosen_task(TASKS["numbers"], RegressionSettings(metrics=entries), TARGETS["numbers"])
    outputs = outputs_of(task)
    answers, targets = task.head.predictions(outputs).numpy(), TARGETS["numbers"]
    found = scores_by_parts(task, TARGETS["numbers"], outputs, weights, parts)
    near = (np.abs(answers - targets) <= 0.3 * np.abs(targets)).mean(axis=1)
    assert found["within"] == pytest.approx(np.average(near, weights=weights), rel=1e-6)
    mape = 100 * sk.mean_absolute_percentage_error(targets, answers, sample_weight=weights)
    assert found["mean_absolute_percentage_error"] == pytest.approx(mape, rel=1e-6)
    assert task.is_higher_better("val_within")
    assert not task.is_higher_better("mean_absolute_percentage_error")
    one = chosen_task(TASKS["two"], ClassificationSettings(single_logit=True), TARGETS["two"])
    outputs = outputs_of(one)
    found = scores_by_parts(one, TARGETS["two"], outputs, weights, parts)
    area = sk.roc_auc_score(TARGETS["two"], outputs[:, 0], sample_weight=weights)
    assert found["auc"] == pytest.approx(area, abs=2e-3)  # by 200 thresholds
    accuracy = sk.accuracy_score(TARGETS["two"], outputs[:, 0] > 0, sample_weight=weights)
    assert found["accuracy"] == pytest.approx(accuracy, rel=1e-6)


def test_two_classes_with_one_logit_answer_as_with_two() -> None:
    one = chosen_task(TASKS["two"], AutoTaskSettings(single_logit=True), TARGETS["two"])
    outputs = outputs_of(one)
    two = tf.concat([tf.zeros_like(outputs), outputs], axis=1)
    targets = tf.constant(TARGETS["two"])
    np.testing.assert_allclose(one.loss.of_each(targets, outputs), TASKS["two"].loss.of_each(targets, two), atol=1e-6)
    np.testing.assert_allclose(one.head.rows(targets, outputs), TASKS["two"].head.rows(targets, two), atol=1e-6)
    layer = keras.Input((1,))
    as_layers = keras.Model(layer, one.head.as_layers(layer))
    np.testing.assert_allclose(as_layers(outputs), one.head.predictions(outputs), atol=1e-6)
    predicted = one.head.columns(one.head.rows(targets, outputs).numpy())["predicted"]
    np.testing.assert_array_equal(predicted, outputs[:, 0] > 0)


@pytest.mark.parametrize(("count", "is_higher_better"), [("FalseNegatives", False), ("TruePositives", True)])
def test_of_counts_those_of_mistakes_are_to_be_low(count: str, is_higher_better: bool) -> None:
    entries = [{"_target_": f"keras.metrics.{count}", "name": "cases"}]
    task = chosen_task(TASKS["two"], AutoTaskSettings(metrics=entries), TARGETS["two"])
    assert task.is_higher_better("val_cases") == is_higher_better


def test_names_of_metrics_are_those_of_the_configuration_alone() -> None:
    """Keras numbers them among all of the process, where other runs may have been."""
    entries = [{"_target_": "keras.metrics.AUC"}, {"_target_": "keras.metrics.AUC", "curve": "PR"}]
    for _ in range(2):
        task = chosen_task(TASKS["two"], AutoTaskSettings(metrics=entries), TARGETS["two"])
        assert task.measured == ("accuracy", "auc", "auc_1")
    one = chosen_task(TASKS["two"], AutoTaskSettings(metrics=entries[:1], single_logit=True), TARGETS["two"])
    assert one.measured == ("accuracy", "auc", "auc_1")


@pytest.mark.parametrize(("name", "settings"), [
    ("two", AutoTaskSettings(single_logit=True)),
    ("two", AutoTaskSettings(single_logit=True, loss={"_target_": "keras.losses.BinaryFocalCrossentropy"})),
    ("classes", AutoTaskSettings(loss={"_target_": "keras.losses.CategoricalFocalCrossentropy"})),
    ("labels", AutoTaskSettings()), ("numbers", AutoTaskSettings()),
])  # fmt: skip
def test_keras_computes_the_loss_of_a_task(name: str, settings: Any) -> None:
    """As `train=fit` and a network's own `compute_loss` have it do."""
    task = chosen_task(TASKS[name], settings, TARGETS[name])
    network = keras.Sequential([keras.Input((task.head.units,)), keras.layers.Identity()])
    network.compile(loss=TaskLoss(task))
    outputs, targets = outputs_of(task), tf.constant(TARGETS[name])
    found = network.compute_loss(y=targets, y_pred=outputs)
    np.testing.assert_allclose(found, np.mean(task.loss.of_each(targets, outputs)), rtol=1e-5)


def test_a_task_of_the_users_is_a_task_with_parts_replaced() -> None:
    task = chosen_task(TASKS["numbers"], AutoTaskSettings(_target_=f"{HERE}.relative"), TARGETS["numbers"])
    assert (task.name, task.primary, task.targets) == ("relative", "mae", TASKS["numbers"].targets)


LARGEST, NEAR = {"_target_": f"{HERE}.Largest"}, {"_target_": f"{HERE}.Within", "name": "near"}
SPARSE, F1 = {"_target_": "keras.losses.SparseCategoricalCrossentropy"}, {"_target_": "keras.metrics.F1Score"}
LOGITS = {"_target_": "keras.losses.BinaryCrossentropy", "from_logits": True}
OF_LOGITS = {"_target_": "keras.metrics.BinaryCrossentropy", "from_logits": True}
REDUCED, MISSES = {"_target_": f"{HERE}.reduced"}, {"_target_": f"{HERE}.misses"}


@pytest.mark.parametrize(("name", "settings", "problem", "fix"), [
    ("classes", RegressionSettings(), "which needs task=classification", "task=classification"),
    ("classes", AutoTaskSettings(single_logit=True), "requires 2 classes, but the data has 3", "single_logit=false"),
    ("numbers", AutoTaskSettings(loss=REDUCED), "returns shape () when called with 16 examples", "keras.ops.mean"),
    ("numbers", AutoTaskSettings(loss=MISSES), "misses has no gradient when called with 16 examples", "keras.ops.mean"),
    ("numbers", AutoTaskSettings(loss=MISSES | {"off": 1}), "misses raises TypeError: ", "keras.ops.mean"),
    ("labels", AutoTaskSettings(loss=LOGITS), "from_logits=true does not match model.outputs", "from_logits=false"),
    ("classes", AutoTaskSettings(loss=SPARSE), "have one column per class", "keras.ops.mean"),
    ("numbers", AutoTaskSettings(metrics=[LARGEST]), "cannot be computed from sums", "task.metrics=[]"),
    ("numbers", AutoTaskSettings(metrics=[NEAR, NEAR]), "the name near is used by", "mine"),
    ("labels", AutoTaskSettings(metrics=[OF_LOGITS]), "but metrics receive probabilities", "from_logits: false"),
    ("classes", AutoTaskSettings(metrics=[F1]), "one number", "task.metrics=[]"),
    ("numbers", AutoTaskSettings(_target_=f"{HERE}.misses"), "cannot be created", "task._target_=null"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused_in_a_line(name: str, settings: Any, problem: str, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        chosen_task(TASKS[name], settings, TARGETS[name]).of_network("probabilities")
    text = str(refused.value)
    assert problem in text
    assert "Try: " in text
    assert fix in text.partition("Try: ")[2]
    assert "\n" not in text
