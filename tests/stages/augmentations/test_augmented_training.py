"""Training on changed and mixed images: the same numbers whoever makes them, and correct ones for mixed labels."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from stages.augment import augment
from stages.errors import UserError
from stages.evaluate import evaluate
from stages.results import Dataset, Strategy, Trained
from stages.settings.data import AugmentSettings
from stages.settings.results import EvaluateSettings
from stages.settings.train import FitSettings, SgdSettings, TrainSettings
from stages.tasks.classification import ClassHead, ClassTargets, CrossEntropy
from stages.train import fit, train
from tests.stages.experiments import (
    after_steps,
    built_of,
    flat,
    mirrored,
    one_device,
    real_digits,
    settings,
    small_cnn,
    strong,
)

pytestmark = pytest.mark.slow

IN_STEP = strong(mixup=0.0, cutmix=0.0, where="model")
WEIGHTED: dict[str, Any] = {"class_weights": [1.0, 2.0] * 5, "label_smoothing": 0.1, "batch_size": 50}


def changed(given: AugmentSettings) -> Dataset:
    return augment(real_digits(130), given)


def trained(where: Strategy, given: AugmentSettings, **changes: Any) -> tuple[np.ndarray, dict[str, float]]:
    """Return the weights after nine steps, the third of each three with a smaller batch, and the means of them."""
    model, means = after_steps(where, changed(given), settings(**{"batch_size": 50, **changes}), steps=9)
    return flat(model.network), means


def test_replicas_with_everything_switched_on_equal_one_device() -> None:
    """Three of them, which share no batch evenly; with class weights, smoothed labels and parts of a batch."""
    given = {**WEIGHTED, "optimizer": SgdSettings(accumulation=2)}
    expected, expected_means = trained(one_device(), strong(), **given)
    found, means = trained(mirrored(3), strong(), **given)
    assert np.abs(found - expected).max() <= 1e-5
    assert means == pytest.approx(expected_means, abs=1e-5)


def test_the_step_gets_what_the_input_would_have_made() -> None:
    expected, expected_means = trained(one_device(), replace(IN_STEP, where="input"))
    found, means = trained(mirrored(2), IN_STEP)
    assert np.abs(found - expected).max() <= 1e-5
    assert means == pytest.approx(expected_means, abs=1e-5)
    not_augmented, _ = trained(one_device(), AugmentSettings())
    assert np.abs(found - not_augmented).max() > 1e-2


def test_fit_equals_the_loop_on_mixed_labels() -> None:
    """Losses, accuracy in training and in validation. Keras takes the mean of the batches' losses, weighted or not."""
    dataset = augment(real_digits(80), AugmentSettings(rotation=0.1, mixup=0.4, cutmix=1.0))
    rows, weights = [], []
    engines: dict[type[TrainSettings], Callable[..., Trained]] = {TrainSettings: train, FitSettings: fit}
    place = one_device()
    for kind, engine in engines.items():
        built, given = small_cnn(dataset, place), settings(epochs=1, batch_size=40, class_weights=[1.0, 2.0] * 5)
        rows.append(engine(built, dataset, place, kind(**vars(given))).history)
        weights.append(flat(built.network))
    assert np.abs(weights[0] - weights[1]).max() <= 1e-5
    for one, other in zip(*rows, strict=True):
        for name in ("train/loss", "train/accuracy", "val/loss", "val/accuracy"):
            assert one[name] == pytest.approx(other[name], abs=1e-4 if name == "train/loss" else 1e-5), name


@pytest.mark.parametrize("given", [{"mixup": 1.0}, {"where": "model"}], ids=str)
def test_validation_and_test_are_unchanged(given: dict[str, Any]) -> None:
    dataset, place = changed(AugmentSettings(rotation=0.2, **given)), one_device()
    result = train(small_cnn(dataset, place), dataset, place, settings(epochs=1, batch_size=50))
    plain = replace(dataset, transforms=())
    outputs = result.model.network(tf.cast(dataset.val.images, tf.float32))
    expected = tf.reduce_mean(result.model.task.loss.of_each(tf.constant(dataset.val.targets), outputs))
    assert result.history[0]["val/loss"] == pytest.approx(float(expected), abs=1e-6)
    scores = [evaluate(result, one, place, EvaluateSettings()) for one in (dataset, plain)]
    assert (scores[0].loss, scores[0].metrics) == (scores[1].loss, scores[1].metrics)


@pytest.mark.smoke
@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_mixture_is_the_mixture_of_the_losses(outputs: str, smoothing: float) -> None:
    random = np.random.default_rng(1)
    given = tf.constant(random.normal(size=(20, 5)), tf.float32)
    given = tf.nn.softmax(given) if outputs == "probabilities" else given
    first, second = (random.integers(0, 5, 20).astype(np.int32) for _ in range(2))
    share = random.uniform(size=20).astype(np.float32)
    rows = np.eye(5, dtype=np.float32)
    mixed = share[:, None] * rows[first] + (1 - share)[:, None] * rows[second]
    head = ClassHead(ClassTargets(tuple("abcde")), outputs)
    whole = CrossEntropy(head, smoothing, (1.0, 2.0, 3.0, 4.0, 5.0))
    loss = whole.of_each
    expected = share * loss(tf.constant(first), given) + (1 - share) * loss(tf.constant(second), given)
    np.testing.assert_allclose(loss(tf.constant(mixed), given), expected, atol=1e-5)
    weights = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
    by_hand = share * tf.gather(weights, first) + (1 - share) * tf.gather(weights, second)
    by_target = whole.weights(tf.constant(mixed), tf.float32)
    np.testing.assert_allclose(np.asarray(by_target), by_hand, atol=1e-5)
    likeliest = np.where(share > 0.5, first, second).astype(np.int32)
    np.testing.assert_array_equal(*(head.known(tf.constant(one), given)["label"] for one in (mixed, likeliest)))


def test_a_loss_of_the_network_s_own_gets_no_mixed_labels() -> None:
    network = {"_target_": "benchmarks.cases.with_own_loss"}
    built_of(network, changed(IN_STEP), one_device())
    with pytest.raises(UserError, match=r"OwnLoss overrides compute_loss.*Try: augment.mixup=0"):
        built_of(network, changed(strong()), one_device())
