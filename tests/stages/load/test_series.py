"""Time series as windows: their rows, splits by time, missing times, and what cannot be used."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.data.columns import Gathered, describe
from stages.data.frequency import Frequency
from stages.errors import UserError
from stages.features.dates import DAY, YEAR
from stages.features.windows import DAYS, CalendarFeature
from stages.settings.data import NormalizeSettings
from tests.stages.series import demand, encoded, windows


def rows_of(frame: pd.DataFrame, store: str) -> pd.DataFrame:
    """Return the rows of a store in order."""
    return frame[frame.store == store].sort_values("date").reset_index(drop=True)


def test_windows_are_consecutive_rows_of_one_series(tmp_path: Path) -> None:
    frame = demand()
    data = windows(tmp_path, frame, known=["promo"])
    assert {name: one.shape for name, one in data.features.items()} == {
        "history": (14, 2), "known": (18, 1), "time": (18,), "store": (),
    }  # fmt: skip
    assert data.features["history"].channels == ("sales", "price")  # type: ignore[attr-defined]
    assert data.task.names == ("sales+1", "sales+2", "sales+3", "sales+4")
    seen = 0
    for split in data.splits.values():
        columns = {name: column[:] for name, column in split.features.items()}
        for place in range(len(split)):
            rows = rows_of(frame, columns["store"][place])
            first = int(
                np.flatnonzero(
                    pd.to_datetime(rows.date).astype("datetime64[s]").astype("int64") == columns["time"][place, 0]
                )[0]
            )
            part = rows.iloc[first : first + 18]
            np.testing.assert_array_equal(columns["history"][place], part[["sales", "price"]].to_numpy()[:14])
            np.testing.assert_array_equal(columns["known"][place, :, 0], part.promo)
            np.testing.assert_array_equal(split.target_values[place], part.sales.to_numpy(np.float32)[14:])
            assert frame.sales[split.numbers[place]] == part.sales.iloc[14]  # type: ignore[index]
            seen += 1
    assert seen == 2 * (240 - 3 * 17)  # all windows but those that would cross two borders of splits or the end


@pytest.mark.parametrize("stride", [1, 5])
def test_no_value_of_a_split_is_in_windows_of_another(stride: int, tmp_path: Path) -> None:
    """All values are different, so each can be found again."""
    frame = demand(stores=3)
    frame["sales"] = np.random.default_rng(1).permutation(len(frame)) + 0.5
    frame["price"] = np.random.default_rng(2).permutation(len(frame)) + 0.25
    data = windows(tmp_path, frame, stride=stride, known=["promo"])
    values = {
        name: {*split.features["history"][:].ravel(), *split.target_values.ravel()}
        for name, split in data.splits.items()
    }
    assert not values["train"] & values["test"]
    assert not values["train"] & values["val"]
    assert not values["val"] & values["test"]
    times = {name: split.features["time"][:] for name, split in data.splits.items()}
    assert times["train"].max() < times["val"].min()
    assert times["val"].max() < times["test"].min()
    if stride > 1:
        assert max(map(len, data.splits.values())) < 3 * 240 / 4


def test_encoded_rows_equal_encoded_windows_and_the_disk_equals_memory(tmp_path: Path) -> None:
    """To the bit, with missing values, for windows that do not divide the number of rows."""
    frame = demand()
    frame.loc[::7, "price"] = np.nan
    data = encoded(tmp_path, frame, known=["promo"])
    disk = encoded(tmp_path, frame, tmp_path / "cache", known=["promo"], memory_gib=0.0)
    assert data.encoder is not None
    for name, split in data.splits.items():
        raw = {key: column[:] for key, column in split.features.items()}
        for key, expected in data.encoder({**raw, "store": raw["store"].astype(str)}).items():
            column = split.inputs[key]
            assert isinstance(column, Gathered)
            np.testing.assert_array_equal(column[:], expected.numpy(), err_msg=key)
            np.testing.assert_array_equal(disk.splits[name].inputs[key][:], column[:])
        np.testing.assert_array_equal(disk.splits[name].target_values, split.target_values)
    assert data.train.is_in_memory
    assert not disk.train.is_in_memory
    assert data.fingerprint == disk.fingerprint
    assert data.train.inputs["history"].rows is data.test.inputs["history"].rows  # type: ignore[union-attr]


def test_digests_are_equal_for_equal_windows_only() -> None:
    rows = np.tile(np.random.default_rng(0).integers(0, 3, (7, 2)).astype(float), (9, 1))  # repeats after seven rows
    starts = np.arange(60)
    column = Gathered(rows, starts, 3)
    digests = describe({"history": column}).digests
    alike = (column[:][:, np.newaxis] == column[:]).all(axis=(2, 3))
    np.testing.assert_array_equal(digests[:, np.newaxis] == digests, alike)
    assert alike.sum() > len(starts)


def test_scaling_is_learned_from_training_rows_only(tmp_path: Path) -> None:
    frame = demand()
    frame.loc[frame.date > "2022-06-30", "sales"] *= 1000
    data = encoded(tmp_path, frame, known=["promo"])
    train = data.train.features["history"]
    assert isinstance(train, Gathered)
    used = train.rows[train.covered]
    [sales, _] = data.features["history"].elements  # type: ignore[attr-defined]
    assert (sales.mean, sales.std) == pytest.approx((used[:, 0].mean(), used[:, 0].std()))
    assert data.task.targets.mean == pytest.approx([sales.mean] * 4)  # type: ignore[attr-defined]
    assert sales.mean < 200


@pytest.mark.parametrize("fill", ["previous", "zero", "interpolate"])
def test_missing_times_are_filled(fill: str, tmp_path: Path) -> None:
    """Not with values of a later split: the day before the test split is filled with what was known before."""
    whole = demand(stores=1)
    days = sorted(whole.date)
    lost = [days[20], days[21], days[191]]  # the last is the day before the test split
    frame = whole[~whole.date.isin(lost)]
    data = windows(tmp_path, frame, fill=fill, group=None, calendar=False)
    column = data.train.features["history"]
    assert isinstance(column, Gathered)
    filled, sales = np.asarray(column.rows)[:, 0], rows_of(whole, "s0").sales.to_numpy()
    assert len(filled) == 240
    kept = np.setdiff1d(np.arange(240), [20, 21, 191])
    np.testing.assert_array_equal(filled[kept], sales[kept])
    expected = {
        "previous": [sales[19], sales[19], sales[190]],
        "zero": [0, 0, 0],
        "interpolate": [
            sales[19] + (sales[22] - sales[19]) / 3,
            sales[19] + (sales[22] - sales[19]) * 2 / 3,
            sales[190],
        ],
    }[fill]
    np.testing.assert_allclose(filled[[20, 21, 191]], expected, rtol=1e-12)


@pytest.mark.parametrize("fill", ["previous", "zero", "interpolate"])
def test_filled_steps_do_not_tell_later_values(fill: str, tmp_path: Path) -> None:
    """Each window has the same past if all rows behind it are different, wherever the gaps are."""
    whole = demand(stores=1)
    days = sorted(whole.date)
    frame = whole[~whole.date.isin([days[place] for place in (20, 21, 50, 90, 91, 92, 130)])]
    data = windows(tmp_path, frame, fill=fill, group=None, calendar=False)
    history = data.train.features["history"]
    assert isinstance(history, Gathered)
    wanted = np.array([days[first] for first in history.starts + (history.length or 0)])
    assert (days[22] in wanted) == (fill != "interpolate")
    for first in (days[22], days[51], days[91], days[93]):
        later = frame.assign(sales=frame.sales.where(frame.date < first, frame.sales + 100))
        other = windows(tmp_path, later, fill=fill, group=None, calendar=False).train.features["history"]
        assert isinstance(other, Gathered)
        before = wanted <= first
        np.testing.assert_array_equal(history[:][before], other[:][before])


FREQUENCIES = {
    "D": 7, "h": 24, "15min": 96, "MS": 12, "ME": 12, "QS-FEB": 4, "QE": 4, "YS": 1, "W": 52, "B": 5, "30s": 2880,
}  # fmt: skip


@pytest.mark.parametrize("freq", FREQUENCIES)
def test_frequencies_are_found(freq: str) -> None:
    dates = pd.date_range("2019-02-05 06:30" if freq in "Dh" else "2019-02-05", periods=120, freq=freq)
    times = dates.astype("datetime64[s]").astype(np.int64).to_numpy().astype(float)
    some = np.r_[0:50, 53:100]  # three are missing
    found = Frequency.of(times[some], np.zeros(97, np.int64), is_date=True)
    assert found is not None
    assert found.season == FREQUENCIES[freq]
    places = found.places(times)
    np.testing.assert_array_equal(np.diff(places), 1)
    np.testing.assert_array_equal(found.times(places), times)


def test_irregular_times_have_no_frequency() -> None:
    assert Frequency.of(np.array([0.0, 1.0, 2.0, 3.5, 4.0]), np.zeros(5, np.int64), is_date=False) is None


def test_a_calendar_equals_sines_of_dates(tmp_path: Path) -> None:
    data = encoded(tmp_path, demand())
    calendar = data.features["time"]
    assert isinstance(calendar, CalendarFeature)
    seconds = data.train.features["time"][:]
    assert calendar.periods[-1] == YEAR
    assert calendar.repeated == calendar.periods[:-1]  # of a year, training has seen a part
    found = data.train.inputs["time"][:].reshape(*seconds.shape, 1, 2, 3)  # period, sine or cosine, harmonic
    weekday = pd.to_datetime(seconds.ravel(), unit="s").day_of_week.to_numpy().reshape(seconds.shape)
    angle = 2 * np.pi * ((weekday + 4) % 7) / 7  # 1970-01-01 was a Thursday
    np.testing.assert_allclose(found[:, :, 0, 0, 0], np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(found[:, :, 0, 1, 1], np.cos(2 * angle), atol=1e-6)


def test_what_a_calendar_has_depends_on_the_length_of_training() -> None:
    """A period that training has seen less than twice is left out; days need four years."""
    periods = (DAY, 7 * DAY, YEAR)
    for years, expected, has_days in ((1.9, periods[:2], False), (2.1, periods, False), (4.1, periods, True)):
        times = np.array([[0, DAY, years * YEAR]], np.int64)
        learned = CalendarFeature((3,), periods).learn("time", times, NormalizeSettings())
        assert (learned.repeated, learned.has_days) == (expected, has_days)
    short = CalendarFeature((2,), (YEAR,)).learn("time", np.array([[0, 31 * DAY]], np.int64), NormalizeSettings())
    assert short.repeated == (YEAR,)  # something is better than nothing
    assert not short.has_days


def test_the_places_of_days_equal_those_of_dates() -> None:
    """A date has the same place in leap years, and a holiday such as Thanksgiving in all years."""
    dates = pd.date_range("1999-01-01", "2024-12-31", freq="13h")
    seconds = np.asarray((dates - pd.Timestamp(0)) // pd.Timedelta("1s"), np.int64)[np.newaxis]
    feature = CalendarFeature((len(dates),), (DAY, 7 * DAY, YEAR), span=5 * YEAR)
    found = np.asarray(feature.encode(seconds).steps)[0, :, -2:]
    numbers = np.rint(found * [*DAYS.values()]).astype(int)
    np.testing.assert_array_equal((found * np.array([*DAYS.values()], np.float32) + 0.5).astype(int), numbers)
    places = {date: place for place, date in enumerate(pd.date_range("2024-01-01", "2024-12-31").strftime("%m-%d"))}
    np.testing.assert_array_equal(numbers[:, 0], [places[date] for date in dates.strftime("%m-%d")])
    expected = [(date.month - 1) * 35 + (date.day - 1) // 7 * 7 + date.day_of_week for date in dates]
    np.testing.assert_array_equal(numbers[:, 1], expected)
    thanksgiving = dates.normalize().isin(pd.to_datetime(["2001-11-22", "2010-11-25", "2019-11-28"]))
    assert len({*numbers[thanksgiving, 1].tolist()}) == 1


@pytest.mark.parametrize(
    ("days", "given", "window", "test"),
    [
        (400, {}, 42, 80),
        (200, {}, 23, 50),  # splits of a quarter, and as many windows as steps to predict
        (100, {}, 5, 25),
        (400, {"test_fraction": 0.3}, 42, 120),
        (400, {"test_fraction": 0.1}, 13, 40),
        (200, {"window": 20}, 20, 47),
        (2_000, {}, 42, 400),
    ],
)
def test_short_series_get_larger_splits_and_a_shorter_window(
    days: int, given: dict[str, Any], window: int, test: int, tmp_path: Path
) -> None:
    settings = {"window": None, "horizon": 14, **given}
    data = windows(tmp_path, demand(days=days), **settings)
    assert data.features["history"].shape[0] == window
    assert len(data.test) == 2 * (test - window - 13)
    assert min(map(len, data.splits.values())) >= 2 * min(14, days // 14)


def changed(kind: str) -> pd.DataFrame:
    frame = demand(days=120)
    of_one = frame[frame.store == "s1"].sort_values("date")
    match kind:
        case "twice":
            return pd.concat([frame, of_one.iloc[[30]]])
        case "gap":
            return frame.drop(of_one.index[40:43])
        case "irregular":
            frame["date"] = pd.to_datetime(frame.date) + pd.to_timedelta(np.arange(len(frame)) % 3, unit="h")
        case "texts":
            frame["promo"] = np.where(frame.promo, "yes, a lot", "no")
    return frame


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "duplicates": ("twice", {}, r"store=s1 has the time 2022-02-02 twice, in rows \d+ and 241"),
    "no group": ("", {"group": None}, r"the time 2022-01-03 twice, in rows \d+ and \d+.*Try: data.group=<column>"),
    "gap": ("gap", {}, r"no row for 2022-02-12 \(rows are every day; 3 are missing\).*Try: data.fill=previous"),
    "irregular": ("irregular", {}, "times at irregular steps"),
    "too long": ("", {"window": 30}, r"the val split has at most 30 steps .*=30 and data.horizon=4 need 34.*window=26"),
    "no room": ("", {"horizon": 300}, "the val split has at most 30 steps .* Try: data.window=15 data.horizon=15"),
    "known texts": ("texts", {"known": ["promo"], "window": 5}, "the column promo is not numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_series_is_refused(name: str, tmp_path: Path) -> None:
    kind, given, message = REFUSED[name]
    with pytest.raises(UserError) as raised:
        windows(tmp_path, changed(kind), **given)
    assert re.search(message, str(raised.value)), raised.value
