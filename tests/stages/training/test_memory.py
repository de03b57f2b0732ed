"""What is said where memory may not suffice, or does not."""

import math
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from stages.data.free_memory import _remainder, available_memory
from stages.data.split import Split
from stages.errors import UserError
from stages.evaluate import evaluate
from stages.evaluation.eval_step import Scorer
from stages.networks.complexity import output_bytes
from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.results import EvaluateSettings
from stages.train import train
from stages.training.outcome import warn_of_memory
from tests.stages.experiments import built_of, one_device, real_digits, settings, small_cnn
from tests.stages.images import Telling


def test_what_is_left_is_no_more_than_the_machine_has() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_a_control_group_has_left_what_it_allows_besides_cached_files(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 3\ninactive_file 200\n")
    assert _remainder(tmp_path) == math.inf
    (tmp_path / "memory.max").write_text("1000\n")
    assert _remainder(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert _remainder(tmp_path) == math.inf


class Hungry(keras.layers.Layer):
    """Asks for a petabyte where a batch has more than `most` examples, and a pixel above `bright`.

    It asks by NumPy: TensorFlow's allocator asks again for ten seconds before it gives up.
    """

    def __init__(self, most: int, bright: float) -> None:
        super().__init__()
        self.most, self.bright = most, bright

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        is_full = (tf.shape(inputs)[0] > self.most) & (tf.reduce_max(inputs) > self.bright)
        count = tf.where(is_full, tf.constant(2**48, tf.int64), 1)
        return inputs + 0 * tf.ensure_shape(
            tf.numpy_function(lambda n: np.zeros(n, np.float32)[:1], [count], tf.float32), [1]
        )


def hungry(input_shape: tuple[int, int, int], num_classes: int, most: int, bright: float) -> keras.Model:
    layers = [keras.Input(input_shape), keras.layers.Flatten(), Hungry(most, bright), keras.layers.Dense(num_classes)]
    return keras.Sequential(layers)


def hungry_model(dataset: Dataset, where: Strategy, most: int, bright: float = 0.0) -> Model:
    network = {"_target_": f"{__name__}.hungry", "most": most, "bright": bright}
    return built_of(network, dataset, where)


def test_a_step_that_does_not_fit_is_one_line() -> None:
    dataset, where = real_digits(64), one_device()
    with pytest.raises(UserError, match=r"batch_size=32 does not fit in memory .*Try: train.batch_size=16"):
        train(hungry_model(dataset, where, 16), dataset, where, settings(batch_size=32))


def test_an_evaluation_halves_its_batch() -> None:
    """From the second batch on."""
    dataset, where = real_digits(64), one_device()
    images = np.array(dataset.test.images[:])
    images[150] = 100
    split = Split.of_images(images, dataset.test.target_values)
    model = hungry_model(dataset, where, 50, 2.0)
    scores = [Scorer(where, model).score(split, size, predicts=True) for size in (100, 25)]
    of_100, of_25 = (np.asarray(one.predictions) for one in scores)
    np.testing.assert_allclose(of_100, of_25, rtol=1e-5)
    assert scores[0].metrics == scores[1].metrics
    assert scores[0].loss == pytest.approx(scores[1].loss, rel=1e-6)
    whole = Scorer(where, hungry_model(dataset, where, 0, 2.0))
    with pytest.raises(tf.errors.ResourceExhaustedError):  # one example alone does not fit
        whole.score(split, 8)


def test_a_batch_that_may_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, where, told = real_digits(64), one_device(), Telling()
    model = small_cnn(dataset, where)
    layers = 4 * (8 * 8 * 8 + 4 * 4 * 8 + 4 * 4 * 16 + 2 * 2 * 16 + 64 + 10)  # convolutions, pooling, flat, outputs
    assert layers <= sum(output_bytes(model.network)) <= 2 * layers
    warn_of_memory(model, where, settings(batch_size=64), told)
    assert not told.lines
    monkeypatch.setattr("stages.training.outcome.available_memory", lambda: 2**20)
    warn_of_memory(model, where, settings(batch_size=1024), told)
    assert "train.batch_size=1024 may need" in told.lines[0]


def test_the_batch_of_an_evaluation_is_chosen_by_memory_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(batch_size: int | None) -> int:
        told.lines.clear()
        settings = EvaluateSettings(batch_size=batch_size, mistakes=0)
        return evaluate(trained, dataset, where, settings, reporter=told).record.params["batch_size"]

    dataset, where, told = real_digits(64), one_device(), Telling()
    trained = Trained(small_cnn(dataset, where), (), 1, 0)
    assert taken(None) == 256
    monkeypatch.setattr("stages.networks.complexity.SCORING_BYTES", 40 * max(output_bytes(trained.model.network)))
    assert taken(None) == 20
    assert taken(100) == 100
