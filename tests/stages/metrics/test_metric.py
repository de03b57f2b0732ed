"""A metric is defined once, by what examples add and the value of the sums; all else follows from these."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sk

from stages.metrics.estimates import Columns, parts_of
from stages.metrics.known import KNOWN
from stages.metrics.metric import Metric
from stages.metrics.numbers import Mae
from stages.tasks.classification import classification
from stages.tasks.multi_label import multi_label
from stages.tasks.regression import NumberTargets
from stages.tasks.task import Task
from tests.stages.experiments import scores_by_parts

RANDOM = np.random.default_rng(7)
COUNT = 200
WEIGHTS = RANDOM.exponential(size=COUNT)
LABELS = RANDOM.integers(0, 3, COUNT).astype(np.int32)
NUMBERS = RANDOM.normal(3, 2, size=(COUNT, 2)).astype(np.float32)


class BalancedAccuracy(Metric):
    """The mean over the classes of the fraction of their examples that are predicted correctly."""

    name = "balanced_accuracy"
    span = 1.0

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        is_class = xp.equal(columns["label"][:, None], xp.arange(columns["probabilities"].shape[1]))
        is_hit = xp.equal(columns["label"], columns["predicted"])[:, None]
        return {"of_class": is_class, "hits_of_class": is_class & is_hit}

    def value(self, sums: Mapping[str, Any]) -> float:
        return float(np.mean(sums["hits_of_class"] / sums["of_class"]))


TASKS: dict[str, tuple[Task, np.ndarray]] = {
    "classes": (classification(("a", "b", "c")).with_metrics(BalancedAccuracy()), LABELS),
    "labels": (multi_label(("a", "b")), (RANDOM.random((COUNT, 2)) < 0.4).astype(np.int32)),
    "numbers": (NumberTargets.of(("a", "b"), NUMBERS).task(), NUMBERS),
}


def columns_of(task: Task, targets: np.ndarray, outputs: tf.Tensor) -> Columns:
    """Return the columns that a file of predictions has."""
    return {
        task.view.column: targets,
        **task.head.columns(task.head.rows(tf.constant(targets), outputs).numpy()),
        "weight": WEIGHTS,
    }


@pytest.mark.parametrize("name", TASKS)
def test_sums_of_batches_give_what_the_columns_of_the_predictions_give(name: str) -> None:
    task, targets = TASKS[name]
    outputs = tf.constant(RANDOM.normal(size=(COUNT, task.head.units)), tf.float32)
    columns = columns_of(task, targets, outputs)
    of_sums = scores_by_parts(task, targets, outputs, WEIGHTS, 3)
    assert of_sums.keys() == {*task.measured}
    for metric in task.metrics:
        value, influences = metric.estimate(columns, parts_of(COUNT, WEIGHTS))
        assert value == pytest.approx(of_sums[metric.name], rel=1e-6)
        assert influences.mean() == pytest.approx(0, abs=1e-7 * max(1, np.abs(influences).max()))
    sums = task.add_all(tf.constant(targets), outputs, tf.constant(WEIGHTS))
    assert {key: tuple(part.shape) for key, part in sums.items()} == task.all_sums


def test_a_new_metric_has_the_influences_and_the_interval_of_its_definition() -> None:
    task, targets = TASKS["classes"]
    columns = columns_of(task, targets, tf.constant(RANDOM.normal(size=(COUNT, 3)), tf.float32))
    metric, given = BalancedAccuracy(), (columns["label"], columns["predicted"])
    value, influences = metric.estimate(columns, parts_of(COUNT, WEIGHTS))
    assert value == pytest.approx(sk.balanced_accuracy_score(*given, sample_weight=WEIGHTS))
    for example in range(0, COUNT, 17):
        change = 1e-5 * (np.arange(COUNT) == example)
        above, below = (
            sk.balanced_accuracy_score(*given, sample_weight=WEIGHTS * (1 + sign * change)) for sign in (1, -1)
        )
        assert influences[example] == pytest.approx(COUNT * (above - below) / 2e-5, abs=1e-5)
    ends = metric.interval(columns, 0.95)
    assert not isinstance(ends, str)
    assert 0 < ends[0] < value < ends[1] < 1
    assert metric.by_example(columns).mean() == pytest.approx(value)


@pytest.mark.parametrize("name", ["macro_f1", "rmse", "mae", "r2"])
def test_influences_by_hand_are_those_that_follow_from_the_sums(name: str) -> None:
    """The project's own metrics have formulas, which are exact; the general way agrees with them."""
    task, targets = TASKS["labels" if name == "macro_f1" else "numbers"]
    outputs = tf.constant(RANDOM.normal(size=(COUNT, task.head.units)), tf.float32)
    metric = next(one for one in task.metrics if one.name == name)
    parts = parts_of(COUNT, WEIGHTS)
    known = {key: column.numpy() for key, column in task.head.known(targets, outputs).items()}
    by_hand, general = metric.estimate(columns_of(task, targets, outputs), parts), Metric.estimate(metric, known, parts)
    assert general[0] == pytest.approx(by_hand[0], rel=1e-5)
    np.testing.assert_allclose(general[1], by_hand[1] - by_hand[1].mean(), atol=1e-4 * np.abs(by_hand[1]).max())


def test_errors_have_no_interval_without_enough_examples_and_are_not_negative() -> None:
    few = {"target": NUMBERS, "prediction": NUMBERS + 1}
    assert "at least 500 test examples" in Mae().interval(few, 0.95)
    assert not KNOWN["log_loss"].higher_is_better
