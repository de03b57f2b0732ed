"""Forecasts: seasonal naive forecasts, scaled errors, quantiles, and intervals by blocks of time."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import mean_pinball_loss

from stages.data.examples import first_inputs
from stages.errors import UserError
from stages.exporters.keras_file import KerasFile
from stages.exporters.saved_model import Serving
from stages.metrics.estimates import Sample
from stages.metrics.forecasts import Mase, Pinball, block_interval, blocks_of
from stages.results import Dataset
from stages.settings.model import NBeatsSettings, TabularSettings
from stages.settings.train import ForecastSettings
from stages.tasks.forecast import ForecastTargets, naive_errors
from stages.tasks.quantiles import with_quantiles
from tests.stages.experiments import assert_replicas_equal_one_device, built_of, one_device, settings
from tests.stages.series import demand, encoded

LEVELS = (0.1, 0.5, 0.9)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return encoded(tmp_path_factory.mktemp("demand"), demand(), known=["promo"])


def test_seasonal_naive_forecasts_repeat_the_last_season() -> None:
    """Of two targets, with a horizon longer than the season."""
    history = np.arange(60.0).reshape(1, 20, 3)
    targets = ForecastTargets(tuple(map(str, range(10))), columns=("a", "b"), season=3)
    expected = history[0, [17, 18, 19, 17, 18], :2]
    np.testing.assert_array_equal(targets.forecasts(history)[0], expected.ravel())


def test_errors_are_scaled_by_those_of_naive_forecasts_within_each_series() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(60, 1))
    series = np.repeat([0, 1], 30)
    parts = [np.abs(rows[7:30] - rows[:23]), np.abs(rows[37:] - rows[30:53])]
    [naive] = naive_errors(rows, series, 7)
    assert naive == pytest.approx(np.concatenate(parts).mean())
    columns = {"target": random.normal(size=(9, 4)), "prediction": random.normal(size=(9, 4))}
    value, _ = Mase((1.0,) * 4, (naive,) * 4).estimate(columns, np.ones(9))
    assert value == pytest.approx(np.abs(columns["target"] - columns["prediction"]).mean() / naive)


def test_the_loss_is_the_absolute_error_in_standard_deviations() -> None:
    random = np.random.default_rng(0)
    targets, outputs = (random.normal(size=(9, 4)).astype(np.float32) for _ in range(2))
    task = ForecastTargets(("a+1", "a+2", "a+3", "a+4"), (1.0,) * 4, (2.0,) * 4, ("a",), (1.0,) * 4).task()
    losses = task.loss.of_each(tf.constant(targets), tf.constant(outputs)).numpy()
    np.testing.assert_allclose(losses, np.abs(outputs - (targets - 1) / 2).mean(axis=1), rtol=1e-5)


def built(data: Dataset, network: Any = None) -> Any:
    task = ForecastSettings(quantiles=list(LEVELS))
    return built_of(network or NBeatsSettings(hidden=[16], blocks=2), data, one_device(), task=task)


@pytest.mark.parametrize("network", [None, TabularSettings(hidden=[16], members=3)])
def test_quantiles_ascend_and_are_exported_as_they_are_predicted(network: Any, data: Dataset) -> None:
    model = built(data, network)
    raw = {name: column[:20] for name, column in data.test.features.items()}
    outputs = model.network(first_inputs(data.test, 20), training=False)
    quantiles = model.task.head.predictions(outputs).numpy()
    assert quantiles.shape == (20, 4, 3)
    assert (np.diff(quantiles, axis=-1) >= 0).all()
    unsorted = outputs.numpy().reshape(20, -1, 4, 3).mean(axis=1)
    assert (np.diff(unsorted, axis=-1) < 0).any()
    serving = Serving(model, data)
    given = {name: tf.constant(values.tolist() if values.dtype == object else values) for name, values in raw.items()}
    served = serving.signatures()["serving_default"](**given)
    np.testing.assert_allclose(served["quantiles"], quantiles, atol=1e-4)
    np.testing.assert_allclose(served["prediction"], quantiles[:, :, 1], atol=1e-4)
    np.testing.assert_allclose(KerasFile().converted(model, data)(given), quantiles, atol=1e-4)


def of_scikit_learn(targets: np.ndarray, quantiles: np.ndarray) -> float:
    parts = [mean_pinball_loss(targets, quantiles[:, :, place], alpha=level) for place, level in enumerate(LEVELS)]
    return float(np.mean(parts))


def test_the_pinball_loss_equals_that_of_scikit_learn(data: Dataset) -> None:
    model = built(data)
    targets = data.train.target_values[:50]
    outputs = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)
    losses = model.task.loss.of_each(tf.constant(targets), tf.constant(outputs)).numpy()
    head = model.task.targets
    wanted = (targets - np.array(head.mean)) / np.array(head.std)
    by_target = outputs.reshape(50, 4, 3)
    expected = np.mean(
        [mean_pinball_loss(wanted, by_target[:, :, place], alpha=level) for place, level in enumerate(LEVELS)]
    )
    assert losses.mean() == pytest.approx(expected, rel=1e-5)
    rows = model.task.head.rows(tf.constant(targets), tf.constant(outputs)).numpy()
    columns = {"target": targets, **model.task.head.columns(rows)}
    value = Pinball(LEVELS).estimate(columns, np.ones(50))[0]
    several = rows.reshape(50, 4, 3)
    expected = np.mean(
        [mean_pinball_loss(targets, several[:, :, place], alpha=level) for place, level in enumerate(LEVELS)]
    )
    assert value == pytest.approx(expected, rel=1e-5)


def test_replicas_with_quantiles_equal_one_device(data: Dataset) -> None:
    def build(data: Dataset, where: Any, network: Any) -> Any:
        return built_of(network, data, where, task=ForecastSettings(quantiles=list(LEVELS)))

    made = functools.partial(build, network=NBeatsSettings(hidden=[16], blocks=2))
    assert_replicas_equal_one_device(data, settings(batch_size=50), 12, made, 3)


def test_quantiles_need_next_values(tmp_path: Path) -> None:
    from stages.tasks.regression import regression

    with pytest.raises(UserError, match=r"task\.quantiles does not fit"):
        with_quantiles(regression(["a"], [0.0], [1.0]), LEVELS)


def test_blocks_are_equal_parts_of_time_and_at_least_three_horizons_long() -> None:
    places = np.repeat(np.arange(100, 400), 2)  # of two series
    blocks = blocks_of(places, 5)
    counts = np.bincount(blocks)
    assert len(counts) == 15
    assert counts.max() - counts.min() <= 2
    np.testing.assert_array_equal(blocks[::2], blocks[1::2])
    assert len(np.unique(blocks_of(places, 40))) == 2
    assert blocks_of(places, 500).max() == 0


def test_an_interval_follows_from_the_means_of_blocks() -> None:
    values, blocks = np.random.default_rng(0).exponential(size=60), np.repeat(np.arange(6), 10)
    sample = Sample(np.ones(60), blocks)
    ends = block_interval((values.mean(), values - values.mean()), sample, 0.95)
    assert not isinstance(ends, str)
    means = values.reshape(6, 10).mean(axis=1)
    assert (ends[1] - ends[0]) / 2 == pytest.approx(2.5706 * means.std(ddof=1) / np.sqrt(6), rel=1e-4)
    few = Sample(np.ones(40), blocks[:40])
    assert block_interval((0.0, values[:40]), few, 0.95) == "at least 5 blocks of 3 horizons are needed"
