"""Stages and callbacks of debug runs: what is left of the data, one batch memorized, the profiler's trace."""

import re
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from stages.callbacks import FOLDER, OneBatch, Profiler, switch_noise_off
from stages.data.batches import training_input
from stages.data.columns import Streamed
from stages.debug import OverfitSettings, ProfilingSettings, ShortenSettings, overfit, profiling, shorten
from stages.errors import UserError
from stages.results import Dataset, Trained
from stages.train import train
from tests.stages.experiments import adam, elements, one_device, real_digits, settings, small_cnn, streamed
from tests.stages.images import Telling


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return real_digits()


@pytest.mark.parametrize(("batch_size", "left"), [(64, 64 + 13), (1293, 1293), (431, 2 * 431), (1000, 1293)])
def test_the_last_of_two_batches_is_as_small_as_in_the_whole_split(digits: Dataset, batch_size: int, left: int) -> None:
    short = shorten(digits, ShortenSettings(steps=2, batch_size=batch_size))
    assert (len(short.train), len(short.train) % batch_size) == (left, len(digits.train) % batch_size)
    assert set(short.train.target_values) == set(digits.train.target_values)
    assert short.fingerprint != digits.fingerprint  # the cache must not take its features for those of the whole


def test_images_that_are_read_at_each_use_still_are(digits: Dataset) -> None:
    short = shorten(streamed(digits), ShortenSettings(steps=2, batch_size=64)).train
    assert isinstance(short.images, Streamed)
    in_memory = shorten(digits, ShortenSettings(steps=2, batch_size=64)).train
    np.testing.assert_array_equal(short.images[slice(None)], in_memory.images)
    np.testing.assert_array_equal(short.targets, in_memory.targets)


def test_every_step_takes_the_same_batch(digits: Dataset) -> None:
    one = shorten(streamed(digits), ShortenSettings(steps=4, batch_size=32, same_batch=True))
    batches = elements(training_input(one, 32, seed=1, epochs=2))
    assert len(batches) == 8
    assert isinstance(one.train.images, np.ndarray)  # a parameter server's workers take no others
    assert len(one.train.images) == 4 * 32
    for images, labels, _ in batches:
        np.testing.assert_array_equal(images, batches[0][0])
        np.testing.assert_array_equal(labels, one.val.targets)


def test_noise_is_switched_off_wherever_it_is() -> None:
    inner = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0)])
    network = keras.Sequential([keras.Input((4,)), inner, keras.layers.AlphaDropout(0.3)])
    values = np.ones([3, 4], np.float32)
    assert not np.array_equal(network(values, training=True), values)
    switch_noise_off(network)
    np.testing.assert_array_equal(network(values, training=True), values)


def learned(digits: Dataset, rate: float, epochs: int) -> Trained:
    one = shorten(digits, ShortenSettings(steps=10, batch_size=32, same_batch=True))
    where = one_device()
    given = settings(epochs=epochs, batch_size=32, optimizer=adam(learning_rate=rate), steps_per_call=10)
    given = replace(given, callbacks=[OneBatch(0.05)])
    return train(small_cnn(one, where, dropout=0.5), one, where, given)


@pytest.mark.slow
def test_one_batch_is_learned_by_heart_in_spite_of_dropout(digits: Dataset) -> None:
    metrics = overfit(learned(digits, 0.01, epochs=40), OverfitSettings(loss=0.05, steps_per_epoch=10)).metrics
    assert metrics["debug/overfit_loss"] <= 0.05
    assert metrics["debug/overfit_steps"] < 400  # it stops as soon as it knows


@pytest.mark.slow
def test_a_batch_that_is_not_learned_is_said_in_one_line(digits: Dataset) -> None:
    trained = learned(digits, 1e-9, epochs=2)
    for row in trained.history:  # every step has taken the batch that is validated
        assert row["train/loss"] == pytest.approx(row["val/loss"], abs=1e-4)
    with pytest.raises(UserError, match=r"did not memorize one batch: after 20 steps its loss is 2\."):
        overfit(trained, OverfitSettings(loss=0.05, steps_per_epoch=10))
    with pytest.raises(UserError, match=r"did not memorize one batch: .*its loss is nan "):  # no step's loss was finite
        overfit(replace(trained, history=({"train/loss": float("nan")},)), OverfitSettings())


@pytest.mark.slow
def test_the_second_epoch_is_traced_into_the_runs_folder(digits: Dataset, tmp_path: Path) -> None:
    short, where = shorten(digits, ShortenSettings(steps=4)), one_device()
    given = settings(callbacks=[Profiler(2)], steps_per_call=2)
    trained = train(small_cnn(short, where), short, where, given, folder=tmp_path)
    told = Telling()
    files = profiling(trained, ProfilingSettings(), where, told, tmp_path).files
    assert files == {FOLDER: tmp_path / FOLDER}
    assert list((tmp_path / FOLDER).rglob("*.xplane.pb"))
    assert re.fullmatch(r"a step took \d+\.\d ms on average, of which \d+% was waiting for input", told.lines[0])
    assert f"xprof --logdir {tmp_path / FOLDER}" in told.lines[1]
