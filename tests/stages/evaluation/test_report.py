"""The report of an evaluation: what its intervals are of, and where it has none."""

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

from stages.data.split import Split
from stages.evaluate import evaluate
from stages.results import Dataset, Model, Trained
from stages.settings.results import EvaluateSettings
from stages.tasks.classification import Classification
from tests.stages.experiments import assemble, one_device

PENALTY = 0.02


def with_ten_hard_examples(gap: float) -> Dataset:
    """Returns 500 examples of two classes, whose pixels are their logits; ten are wrong by `gap`."""
    labels = np.arange(500, dtype=np.int32) % 2
    logits = np.random.default_rng(1).normal(size=(500, 2)).astype(np.float32)
    logits[:10] = 0
    logits[np.arange(10), 1 - labels[:10]] = gap
    split = Split.of_images(logits[:, np.newaxis, np.newaxis], labels)
    return assemble("logits", split, split, split, ("a", "b"), (-100.0, 100.0))


def identity() -> Trained:
    """Returns a network whose logits are the pixels, and its penalty `PENALTY`."""
    dense = keras.layers.Dense(
        2, use_bias=False, kernel_initializer="identity", kernel_regularizer=keras.regularizers.L2(PENALTY / 2)
    )
    network = keras.Sequential([keras.Input((1, 1, 2)), keras.layers.Flatten(), dense])
    return Trained(Model(network, Classification(("a", "b")), "float32"), (), 1, 0)


def test_the_loss_has_the_penalties_and_the_log_loss_the_interval() -> None:
    dataset = with_ten_hard_examples(12.0)
    result = evaluate(identity(), dataset, one_device(), EvaluateSettings(mistakes=0))
    test = dataset.test
    losses = -log_softmax(test.images[:, 0, 0].astype(np.float64), axis=1)[np.arange(500), test.targets]
    assert result.loss == pytest.approx(losses.mean() + PENALTY, rel=1e-5)
    assert {"test/log_loss", "test/accuracy"} <= result.record.summary["intervals"].keys()
