"""Dates as features: the parts that the encoder makes are those of Python's `datetime`, everywhere the same."""

import math
from calendar import monthrange
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.data.split import Split
from stages.features.dates import CYCLES, FIRST, LAST, Calendar, DateFeature
from stages.features.encoder import NUMBERS, edges, encoder_of, encoding, learn
from stages.features.numbers import NumberFeature
from stages.settings.data import NormalizeSettings
from tests.stages.features.test_encoder import assert_the_same_in_parts_in_a_file_and_in_a_graph

EPOCH = datetime(1970, 1, 1)
RANDOM = np.random.default_rng(11)
ROWS = 4000


def seconds_of(days: list[datetime]) -> np.ndarray:
    return np.array([(day - EPOCH) // timedelta(seconds=1) for day in days], np.int64)


def random_days(first: int, last: int) -> list[datetime]:
    low, high = ((datetime(year, 1, 1) - EPOCH) // timedelta(seconds=1) for year in (first, last))
    return [EPOCH + timedelta(seconds=int(number)) for number in RANDOM.integers(low, high, ROWS)]


BORDERS = [
    datetime(year, month, day, *time)
    for year in (1, 4, 1900, 1969, 1970, 2000, 2023, 2024, 2100, 9999)
    for month, day in ((1, 1), (2, 28), (3, 1), (12, 31))
    for time in ((0, 0, 0), (23, 59, 59))
] + [datetime(2000, 2, 29), datetime(2024, 2, 29, 23, 59, 59)]
DAYS = {"this century and the last": random_days(1900, 2100), "all": random_days(1, 9999), "borders": BORDERS}


@pytest.mark.parametrize("days", DAYS.values(), ids=[*DAYS])
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])
def test_all_parts_are_those_of_python(days: list[datetime], is_graph: bool) -> None:
    def parts(values: Any) -> dict[str, Any]:
        return vars(Calendar.of(values))

    found = (tf.function(parts, autograph=False) if is_graph else parts)(tf.constant(seconds_of(days)))
    first = [datetime(day.year, 1, 1) for day in days]
    expected = {
        "year": [day.year for day in days], "month": [day.month for day in days], "day": [day.day for day in days],
        "weekday": [day.weekday() for day in days],
        "second": [day.hour * 3600 + day.minute * 60 + day.second for day in days],
        "day_of_year": [day.timetuple().tm_yday - 1 for day in days],
        "days_of_year": [datetime(day.year, 12, 31).timetuple().tm_yday for day in first],
        "days_of_month": [monthrange(day.year, day.month)[1] for day in days],
    }  # fmt: skip
    assert {*expected} == {*found}
    for name, values in expected.items():
        assert np.asarray(found[name]).dtype == np.int64
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def column_of(days: list[datetime], missing: int = 0) -> np.ndarray:
    values = seconds_of(days).astype(np.float64)
    values[:missing] = np.nan
    return values


FEATURES = {"size": NumberFeature(), "sold": DateFeature(), "born": DateFeature(), "paid": DateFeature()}
COLUMNS = {
    "size": RANDOM.normal(size=ROWS), "sold": column_of(random_days(1990, 2030), missing=300),
    "born": column_of([day.replace(hour=0, minute=0, second=0) for day in random_days(1900, 2000)]),
    "paid": column_of([datetime(2000 + row % 20, row % 12 + 1, 1) for row in range(ROWS)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    return learn(FEATURES, COLUMNS, NormalizeSettings())


@pytest.fixture(scope="module")
def encoder(learned: dict[str, Any]) -> keras.Model:
    return encoder_of(learned)


def test_the_encoder_makes_a_number_and_cycles(learned: dict[str, Any], encoder: keras.Model) -> None:
    assert [(*learned[name].cycles,) for name in ("sold", "born", "paid")] == [CYCLES, CYCLES[:3], ("year", "week")]
    numbers = encoding(encoder)(COLUMNS, slice(None))[NUMBERS]
    assert numbers.shape == (ROWS, (1 + 5 + 4 + 3) + 1 + (8 + 6 + 4))
    counts = [len(one) for one in edges(learned)]
    assert counts[:3] == [65, 65, 65]
    assert (counts[4], counts[9], counts[10:]) == (7, 7, [60, 12, 7])  # weekdays and months have a bin each
    sold = COLUMNS["sold"]
    is_missing = np.isnan(sold)
    days = (sold - np.nanmin(sold)) / 86_400  # since the first date: standardized, it is the same as in seconds
    np.testing.assert_allclose(
        numbers[~is_missing, 1], ((days - np.nanmean(days)) / np.nanstd(days))[~is_missing], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(numbers[:, 13], is_missing)
    assert len(np.unique(numbers[is_missing, 1:6], axis=0)) == 1  # the medians
    waves = numbers[:, 14:22]
    assert not waves[is_missing].any()
    for row in np.flatnonzero(~is_missing)[:500]:
        day = EPOCH + timedelta(seconds=sold[row])
        year = (day.timetuple().tm_yday - 1) / datetime(day.year, 12, 31).timetuple().tm_yday
        month = (day.day - 1) / monthrange(day.year, day.month)[1]
        places = [year, month, day.weekday() / 7, (day.hour * 3600 + day.minute * 60 + day.second) / 86_400]
        expected = [wave(2 * math.pi * place) for wave in (math.sin, math.cos) for place in places]
        np.testing.assert_allclose(waves[row], expected, atol=1e-7)
        for place, value, part in zip(places, numbers[row, 2:6], learned["sold"].cycles.values(), strict=True):
            np.testing.assert_allclose(value, (place - part.moments.mean) / part.moments.std, atol=1e-6)


def test_any_batch_a_file_and_a_graph_give_the_same_bits(
    learned: dict[str, Any], encoder: keras.Model, tmp_path: Path
) -> None:
    assert_the_same_in_parts_in_a_file_and_in_a_graph(encoder, learned, COLUMNS, tmp_path)


def test_days_of_two_centuries_differ_in_float32() -> None:
    days = column_of([datetime(1900, 1, 1) + timedelta(days=number) for number in range(73_000)])
    encoder = encoder_of(learn({"day": DateFeature()}, {"day": days}, NormalizeSettings()))
    numbers = encoding(encoder)({"day": days}, slice(None))[NUMBERS]
    assert (np.diff(numbers[:, 0]) > 0).all()


def test_a_request_may_have_any_number() -> None:
    encoder = encoder_of(learn({"day": DateFeature()}, {"day": COLUMNS["sold"]}, NormalizeSettings()))
    values = np.array([np.nan, -1e300, 1e300, FIRST - 1.0, LAST + 1.0, 0.5])
    assert np.isfinite(encoding(encoder)({"day": values[3:]}, slice(None))[NUMBERS]).all()
    assert np.abs(encoding(encoder)({"day": values}, slice(None))[NUMBERS][:, 6:]).max() <= 1


def test_a_column_of_one_date_or_none_stays_finite() -> None:
    for values in (np.full(9, 86_400.0), np.full(9, np.nan), np.array([np.nan, 0.0])):
        [learned] = learn({"day": DateFeature()}, {"day": values}, NormalizeSettings()).values()
        assert isinstance(learned, DateFeature)
        assert learned.cycles == {}
        numbers = encoding(encoder_of({"day": learned}))({"day": values}, slice(None))[NUMBERS]
        assert np.isfinite(numbers).all()


def test_dates_are_shown_as_dates() -> None:
    feature = DateFeature()
    assert [feature.shown(value) for value in (0.0, -1.0, 1709296200.0, LAST)] == [
        "1970-01-01", "1969-12-31 23:59:59", "2024-03-01 12:30:00", "9999-12-31 23:59:59",
    ]  # fmt: skip
    values = column_of([datetime(2024, 1, 1), datetime(2024, 1, 1), datetime(2024, 1, 3)], missing=1)
    split = Split({"day": values}, np.zeros(3, np.int32))
    assert [*feature.statistics("day", split)[0]] == [
        "day", "date", 1 / 3, "2024-01-02", "1 days", "2024-01-01", "2024-01-03", "", "",
    ]  # fmt: skip
    assert feature.statistics("day", split.take(np.array([0])))[0][3:7] == ("",) * 4


def test_trees_get_the_places_in_the_calendar() -> None:
    """A tree cannot find weekdays in days since a date."""
    plain = DateFeature().plain(COLUMNS["sold"])
    assert plain.shape == (ROWS, DateFeature().plain_columns)
    is_missing = np.isnan(COLUMNS["sold"])
    assert np.isnan(plain[is_missing]).all()
    weekdays = [(EPOCH + timedelta(seconds=value)).weekday() for value in COLUMNS["sold"][~is_missing]]
    np.testing.assert_array_equal(plain[~is_missing, 3], np.array(weekdays) / 7)
