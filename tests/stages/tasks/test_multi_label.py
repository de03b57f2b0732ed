"""Several labels: losses of Keras, metrics of scikit-learn, probabilities as answers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sk

from stages.errors import UserError
from stages.tasks.multi_label import BinaryCrossEntropy, multi_label
from tests.stages.experiments import scores_by_parts, settings

RANDOM = np.random.default_rng(5)
TASK = multi_label(("beach", "sunset", "people", "never"))
TARGETS = (RANDOM.random((97, 4)) < [0.5, 0.1, 0.8, 0.0]).astype(np.int32)
OUTPUTS = (RANDOM.normal(size=(97, 4)) + 2 * TARGETS - [1, 1, 1, 9]).astype(np.float32)
PROBABILITIES = tf.sigmoid(OUTPUTS).numpy()
WEIGHTS = RANDOM.random(97)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_are_those_of_keras_for_logits_and_for_probabilities(smoothing: float) -> None:
    task = TASK.for_training(settings(label_smoothing=smoothing), TARGETS)
    keras_loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing, reduction=None)
    expected = keras_loss(TARGETS, OUTPUTS)
    np.testing.assert_allclose(task.loss.of_each(TARGETS, OUTPUTS), expected, rtol=1e-5)
    np.testing.assert_allclose(
        task.of_network("probabilities").loss.of_each(TARGETS, PROBABILITIES), expected, rtol=1e-4
    )


def test_weights_are_of_the_positives() -> None:
    plain = TASK.loss.of_each(TARGETS, OUTPUTS).numpy()
    for given in ([1.0, 5.0, 1.0, 1.0], "balanced"):
        task = TASK.for_training(settings(class_weights=given), TARGETS)
        assert isinstance(task.loss, BinaryCrossEntropy)
        weights = np.array(given if given != "balanced" else task.loss.class_weights)
        expected = tf.nn.weighted_cross_entropy_with_logits(TARGETS.astype(np.float32), OUTPUTS, weights[None])
        np.testing.assert_allclose(task.loss.of_each(TARGETS, OUTPUTS), expected.numpy().mean(axis=1), rtol=1e-5)
        has_rare = TARGETS[:, 1] == 1
        assert (task.loss.of_each(TARGETS, OUTPUTS).numpy()[has_rare] > plain[has_rare]).all()
    positives = TARGETS.sum(axis=0)
    np.testing.assert_allclose(weights[:3] * positives[:3], 97 - positives[:3])


def test_metrics_are_those_of_scikit_learn_however_the_examples_are_divided() -> None:
    predicted = TASK.head.columns(PROBABILITIES)["predicted"]
    expected = {
        "macro_f1": sk.f1_score(TARGETS, predicted, average="macro", zero_division=0, sample_weight=WEIGHTS),
        "exact_match": sk.accuracy_score(TARGETS, predicted, sample_weight=WEIGHTS),
    }
    assert scores_by_parts(TASK, TARGETS, tf.constant(OUTPUTS), WEIGHTS, 5) == pytest.approx(expected, rel=1e-12)
    assert TASK.is_higher_better("val_macro_f1")


def test_answers_are_probabilities() -> None:
    np.testing.assert_array_equal(TASK.head.predictions(OUTPUTS), PROBABILITIES)
    inputs = keras.Input((4,))
    layer = keras.Model(inputs, TASK.head.as_layers(inputs))
    assert TASK.head.differ(PROBABILITIES, layer(OUTPUTS).numpy(), 1e-4) == (pytest.approx(0, abs=1e-6), 1.0)
    assert TASK.head.differ(PROBABILITIES, 1 - PROBABILITIES, 1e-4)[1] == 0


def test_splits_are_cut_by_the_rarest_label_that_has_enough_examples() -> None:
    targets = np.zeros((100, 3), np.int32)
    targets[:50, 0] = targets[:30, 1] = targets[:5, 2] = 1
    np.testing.assert_array_equal(TASK.targets.strata(targets), targets[:, 1])
    assert TASK.targets.strata(targets[:, 2:]) is None


@pytest.mark.parametrize(("targets", "message"), [
    (TARGETS[:, :2], r"targets are int32 of shape \(97, 2\)"),
    (np.where(np.arange(388).reshape(97, 4) == 9, 2, TARGETS).astype(np.int32), "target sunset is 2 in row 2"),
])  # fmt: skip
def test_targets_that_do_not_fit(targets: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TASK.targets.check("photos: its train", targets)


def test_settings_and_outputs_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="class_weights has 2 numbers"):
        TASK.for_training(settings(class_weights=[1.0, 2.0]), TARGETS)
    with pytest.raises(UserError, match="some outputs of the network are not between 0 and 1"):
        TASK.of_network("probabilities").head.check(OUTPUTS)
    TASK.of_network("probabilities").head.check(PROBABILITIES)
