"""Regression: losses of Keras, metrics of scikit-learn, answers in the targets' own units."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sk

from stages.errors import UserError
from stages.tasks.regression import NumberTargets
from tests.stages.experiments import scores_by_parts, settings

RANDOM = np.random.default_rng(5)
TARGETS = (RANDOM.normal(size=(97, 3)) * [1e4, 1.0, 1e-3] + [5e5, -3.0, 0.0]).astype(np.float32)
KNOWN = NumberTargets.of(("price", "size", "weight"), TARGETS)
TASK = KNOWN.task()
STANDARDIZED = KNOWN.standardized(TARGETS, tf.float32).numpy()
OUTPUTS = (STANDARDIZED + RANDOM.normal(size=TARGETS.shape) * 0.9).astype(np.float32)
WEIGHTS = RANDOM.random(97)


def test_losses_are_those_of_keras_on_standardized_targets() -> None:
    """Losses of the user's: test_chosen.py."""
    expected = keras.losses.MeanSquaredError(reduction=None)(STANDARDIZED, OUTPUTS)
    np.testing.assert_allclose(TASK.loss.of_each(TARGETS, OUTPUTS), expected, rtol=1e-6)


def test_metrics_are_those_of_scikit_learn_however_the_examples_are_divided() -> None:
    answers = OUTPUTS.astype(np.float64) * KNOWN.std + KNOWN.mean
    expected = {
        "rmse": sk.root_mean_squared_error(TARGETS, answers, sample_weight=WEIGHTS),
        "mae": sk.mean_absolute_error(TARGETS, answers, sample_weight=WEIGHTS),
        "r2": sk.r2_score(TARGETS, answers, sample_weight=WEIGHTS),
    }
    assert scores_by_parts(TASK, TARGETS, tf.constant(OUTPUTS), WEIGHTS, 5) == pytest.approx(expected, rel=1e-9)
    assert not TASK.is_higher_better("val_rmse")
    assert TASK.is_higher_better("val_r2")


def test_answers_are_in_the_units_of_the_targets() -> None:
    answers = TASK.head.predictions(STANDARDIZED).numpy()
    np.testing.assert_allclose(answers, TARGETS, rtol=1e-6, atol=1e-9)
    inputs = keras.Input((3,))
    layer = keras.Model(inputs, TASK.head.as_layers(inputs))
    assert TASK.head.differ(answers, layer(STANDARDIZED).numpy(), 1e-4) == (pytest.approx(0, abs=1e-5), 1.0)
    assert TASK.head.differ(answers, answers + np.array(KNOWN.std), 0.5) == (pytest.approx(1, rel=1e-3), 0.0)


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_a_constant_target_is_not_divided_by_nothing(error: float) -> None:
    assert NumberTargets.of(("a",), np.ones((5, 1))).std == (1.0,)
    targets, known = np.full((9, 1), 0.3, np.float32), NumberTargets(("a",), (0.0,), (1.0,))
    outputs = known.standardized(targets, tf.float32) + error
    found = scores_by_parts(known.task(), targets, outputs, np.linspace(0.1, 1, 9), 2)["r2"]
    assert found == sk.r2_score(targets, targets + error)


def test_strata_are_quantiles_of_enough_rows() -> None:
    known = NumberTargets(("price",))
    strata = known.strata(RANDOM.normal(size=(1000, 1)))
    assert np.bincount(np.asarray(strata)).tolist() == [100] * 10
    assert known.strata(np.arange(30.0)[:, None]) is None
    strata = known.strata(np.repeat([-1.0, 0.0, *range(1, 30)], [1, 190, *[1] * 29])[:, None])
    assert np.bincount(np.asarray(strata)).min() >= 20


@pytest.mark.parametrize(("targets", "message"), [
    (TARGETS[:, :2], r"targets are float32 of shape \(97, 2\)"),
    (np.where(np.arange(291).reshape(97, 3) == 7, np.nan, TARGETS).astype(np.float32), "size is nan in row 2"),
])  # fmt: skip
def test_targets_that_do_not_fit(targets: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TASK.targets.check("houses: its train", targets)


@pytest.mark.parametrize(
    ("given", "fix"), [({"label_smoothing": 0.1}, "label_smoothing=0"), ({"class_weights": "balanced"}, "weights=null")]
)
def test_settings_of_classes_are_refused(given: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError, match=f"{next(iter(given))}.*{fix}$"):
        TASK.for_training(settings(**given), TARGETS)
