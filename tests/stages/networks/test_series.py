"""Inputs of networks for windows of time series: past seasons, days, scales, and other columns."""

from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
from keras import ops

from stages.features.windows import DAYS, CalendarFeature
from stages.networks import series as networks
from stages.networks.joined import SeriesFacts
from stages.networks.series import LARGEST, Steps, by_step
from stages.tasks.forecast import ForecastTargets

WINDOW, HORIZON, SEASON, TARGETS = 15, 9, 4, 2
FACTS = SeriesFacts(WINDOW, HORIZON, TARGETS, SEASON)


def history(channels: int = TARGETS, rows: int = 3) -> np.ndarray:
    """Return random windows, float32 [rows, WINDOW, channels], at levels far from 0."""
    return np.random.default_rng(0).normal(5, 2, (rows, WINDOW, channels)).astype(np.float32)


def computed(steps: Steps, tensor: Any, inputs: Any) -> np.ndarray:
    """Return the values of a tensor of a network."""
    return np.asarray(keras.Model(list(steps.inputs.values()), tensor)(inputs))


def test_the_first_past_season_is_the_seasonal_naive_forecast() -> None:
    """For several targets and more next steps than a season has; the seasons before it are at the same places."""
    given = history()
    steps = Steps.of((WINDOW, TARGETS), FACTS)
    in_units = steps.in_units(ops.reshape(steps.seasonal[:, :, :TARGETS], (-1, HORIZON * TARGETS)))
    names = tuple(str(place) for place in range(HORIZON * TARGETS))
    targets = ForecastTargets(names, columns=("a", "b"), season=SEASON)
    np.testing.assert_allclose(computed(steps, in_units, [given]), targets.forecasts(given), rtol=1e-5)
    seasonal = computed(steps, steps.seasonal, [given])
    assert seasonal.shape == (3, HORIZON, 3 * TARGETS)  # a fourth season would start before the window
    scaled = computed(steps, steps.targets, [given])
    for step in range(HORIZON):
        for count in range(3):
            place = WINDOW - SEASON * (count + 1) + step % SEASON
            found = seasonal[:, step, count * TARGETS : (count + 1) * TARGETS]
            np.testing.assert_array_equal(found, scaled[:, place])


def test_each_target_is_scaled_by_its_own_mean_and_deviation() -> None:
    given = history() * np.array([1.0, 50.0], np.float32)
    steps = Steps.of((WINDOW, TARGETS), FACTS)
    scaled = computed(steps, steps.targets, [given])
    np.testing.assert_allclose(scaled.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=1), 1, atol=1e-4)


def test_embeddings_are_those_of_the_days_of_the_next_steps() -> None:
    """For all days of a leap year and the year after it; an embedding of width 1 holds the number of its place."""
    days = pd.date_range("2024-01-01", "2025-12-31").astype("datetime64[s]")
    seconds = days.astype("int64").to_numpy()
    feature = CalendarFeature((WINDOW + HORIZON,), (7 * 86_400.0, 365.2425 * 86_400), span=5 * 366 * 86_400.0)
    starts = np.arange(len(days) - WINDOW - HORIZON + 1)
    rows = starts[:, np.newaxis] + np.arange(WINDOW + HORIZON)
    times = np.asarray(feature.encode(seconds[rows]).steps)
    facts = SeriesFacts(WINDOW, HORIZON, TARGETS, SEASON, has_days=feature.has_days)
    assert facts.has_days
    steps = Steps.of({"history": (WINDOW, TARGETS), "time": times.shape[1:]}, facts)
    network = keras.Model(list(steps.inputs.values()), steps.days)
    widths = networks.DAY_WIDTH.values()
    for (name, count), width in zip(DAYS.items(), widths, strict=True):
        numbers = np.repeat(np.arange(count, dtype=np.float32)[:, np.newaxis], width, axis=1)
        network.get_layer(f"embed_day_of_{name}").set_weights([numbers])
    found = np.asarray(network([np.zeros((len(rows), WINDOW, TARGETS), np.float32), times]))
    following = days[rows[:, WINDOW:].ravel()]
    in_leap_year = pd.DatetimeIndex([day.replace(year=2024) for day in following])
    of_month = (following.month - 1) * 35 + (following.day - 1) // 7 * 7 + following.day_of_week
    for place, expected in ((0, in_leap_year.day_of_year - 1), (-1, of_month)):
        np.testing.assert_array_equal(found[..., place].ravel(), expected)


@pytest.fixture(scope="module")
def network() -> keras.Model:
    """Return the network by steps for two targets and another column."""
    return by_step((WINDOW, TARGETS + 1), HORIZON * TARGETS, [8, 8], 0.0, 2, FACTS)


def test_a_constant_window_has_finite_forecasts_near_its_level(network: keras.Model) -> None:
    found = np.asarray(network(np.full((1, WINDOW, TARGETS + 1), 7.0, np.float32)))
    np.testing.assert_allclose(found, 7.0, atol=1.0)


def test_of_another_column_only_the_last_season_has_an_effect(network: keras.Model) -> None:
    given = history(TARGETS + 1)
    base = np.asarray(network(given))
    for place in range(WINDOW):
        changed = given.copy()
        changed[:, place, -1] += 3.0
        is_same = np.array_equal(np.asarray(network(changed)), base)
        assert is_same == (place < WINDOW - SEASON), place


def test_a_far_value_of_another_column_is_bounded() -> None:
    given = history(TARGETS + 1)
    given[:, -1, -1] = [1e3, -1e6, 1e9]
    steps = Steps.of((WINDOW, TARGETS + 1), FACTS)
    last, mean = computed(steps, steps.summary, [given])[:, -2:].T
    np.testing.assert_allclose(last, LARGEST * np.array([1, -1, 1]), rtol=1e-3)
    assert np.abs(mean).max() <= LARGEST


def test_each_step_has_an_answer_of_its_own() -> None:
    """With a season of 1 and no calendar, the values of past seasons are the same for all steps."""
    network = by_step((WINDOW, 1), HORIZON, [8, 8], 0.0, 2, SeriesFacts(WINDOW, HORIZON, 1, 1))
    found = np.asarray(network(history(1, rows=1)))
    assert len(np.unique(found[0, 0].round(5))) == HORIZON


def test_one_answer_knows_the_last_step_and_means_of_more_and_more_steps() -> None:
    facts = SeriesFacts(WINDOW, 0, 0, SEASON)
    given = history(2) - 5
    steps = Steps.of((WINDOW, 2), facts)
    bounded = given / np.sqrt(1 + (given / LARGEST) ** 2)
    expected = np.concatenate([bounded[:, -count:].mean(axis=1) for count in (1, 2, 4, 8, WINDOW)], axis=1)
    np.testing.assert_allclose(computed(steps, steps.summary, [given]), expected, rtol=1e-4, atol=1e-6)
    network = by_step((WINDOW, 2), 3, [8, 8], 0.0, 2, facts)
    kernel, bias = network.get_layer("heads").get_weights()
    network.get_layer("heads").set_weights([np.where(np.arange(10)[:, np.newaxis] < 8, 0, kernel), bias])
    expected = np.einsum("bh,kho->bko", bounded[:, -1], kernel[:, 8:]) + bias  # linear in the last step
    np.testing.assert_allclose(np.asarray(network(given)), expected, rtol=1e-4, atol=1e-5)
