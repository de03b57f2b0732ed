"""A network with members: its answer is the mean of theirs, everywhere, and each learns by its own loss."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.tasks.classification import classification
from stages.tasks.members import with_members
from stages.tasks.multi_label import multi_label
from stages.tasks.regression import regression
from stages.tasks.task import Task

EXAMPLES, MEMBERS = 50, 4
random = np.random.default_rng(3)

TASKS: dict[str, tuple[Task, np.ndarray]] = {
    "classes": (classification(["a", "b", "c"]), random.integers(0, 3, EXAMPLES).astype(np.int32)),
    "one logit": (classification(["no", "yes"], single_logit=True), random.integers(0, 2, EXAMPLES).astype(np.int32)),
    "probabilities": (
        classification(["a", "b"]).of_network("probabilities"),
        random.integers(0, 2, EXAMPLES).astype(np.int32),
    ),
    "labels": (multi_label(["x", "y"]), random.integers(0, 2, (EXAMPLES, 2)).astype(np.int32)),
    "numbers": (regression(["p", "q"], [5.0, -1.0], [2.0, 0.1]), random.normal(size=(EXAMPLES, 2)).astype(np.float32)),
}


def outputs_of(task: Task) -> tf.Tensor:
    outputs = 3 * random.normal(size=(EXAMPLES, MEMBERS, *task.head.shape))
    if getattr(task.head, "given", "") == "probabilities":
        outputs = tf.nn.softmax(outputs).numpy()
    return tf.constant(outputs, tf.float32)


@pytest.fixture(params=TASKS)
def case(request: Any) -> tuple[Task, tf.Tensor, tf.Tensor]:
    task, targets = TASKS[request.param]
    return task, tf.constant(targets), outputs_of(task)


def test_the_prediction_is_the_mean_of_the_members(case: Any) -> None:
    """In the model, in its rows of predictions, and in the layers of a `.keras` file."""
    task, targets, outputs = case
    head = with_members(task, MEMBERS).head
    means = np.mean([task.head.predictions(outputs[:, member]) for member in range(MEMBERS)], axis=0)
    np.testing.assert_allclose(head.predictions(outputs), means, rtol=2e-6, atol=2e-6)
    rows = head.columns(head.rows(targets, outputs).numpy())[head.answer]
    np.testing.assert_allclose(rows, means, rtol=2e-6, atol=2e-6)
    given = keras.Input(outputs.shape[1:])
    layers = keras.Model(given, head.as_layers(given))
    np.testing.assert_allclose(layers(outputs), means, rtol=2e-6, atol=2e-6)


def test_the_loss_is_the_mean_of_the_members_losses(case: Any) -> None:
    task, targets, outputs = case
    losses = [task.loss.of_each(targets, outputs[:, member]) for member in range(MEMBERS)]
    np.testing.assert_allclose(
        with_members(task, MEMBERS).loss.of_each(targets, outputs), np.mean(losses, axis=0), rtol=2e-6
    )


def test_metrics_are_those_of_the_mean(case: Any) -> None:
    """Metrics of training equal those that the task has for predictions of a single network."""
    task, targets, outputs = case
    several = with_members(task, MEMBERS)
    merged = task.head.merged(outputs)
    weights = tf.ones(EXAMPLES)
    sums = {name: value.numpy() for name, value in several.add_all(targets, outputs, weights).items()}
    expected = {name: value.numpy() for name, value in task.add_all(targets, merged, weights).items()}
    assert sums.keys() == expected.keys() == several.all_sums.keys()
    for name, value in sums.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6)


def test_a_small_probability_keeps_its_digits() -> None:
    """Members that agree on a probability of 1e-30 have a merged logit that says so."""
    task = classification(["a", "b"])
    outputs = tf.constant([[[0.0, -69.0], [0.0, -69.0]]])
    np.testing.assert_allclose(task.head.merged(outputs)[0, 1] - task.head.merged(outputs)[0, 0], -69.0, rtol=1e-6)
