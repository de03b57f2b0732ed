"""Time series as arrays: the same rows as those of a table, from an `.npz` file or a function, to the bit."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.data.columns import Gathered
from stages.errors import UserError
from stages.load.arrays import dataset_of_result
from stages.load.series import series
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.series import SeriesSettings
from tests.stages.series import demand

SERIES, STEPS, WINDOW, HORIZON = 3, 120, 5, 2


def arrays_of(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the rows of a table as arrays: [N, T], [N, T, C], [T] and [N]."""
    ordered = frame.sort_values(["store", "date"])
    stores, days = sorted({*frame.store}), sorted({*frame.date})

    def by_series(name: str) -> np.ndarray:
        return ordered[name].to_numpy().reshape(len(stores), len(days))

    return {
        "sales": by_series("sales"),
        "x": np.stack([by_series("price"), by_series("promo").astype(float)], axis=-1),
        "date": np.array(days, "datetime64[D]"),
        "store": np.array(stores),
        "size": np.arange(len(stores)) + 0.5,
    }


def saved(folder: Path, arrays: dict[str, Any]) -> str:
    np.savez(folder / "sales.npz", **arrays)
    return str(folder / "sales.npz")


def loaded(files: Any, cache: Path | None = None, **given: Any) -> Dataset:
    settings = {"target": "sales", "window": WINDOW, "horizon": HORIZON, **given}
    return series(SeriesSettings(files=files, **settings), Reporter(), None, cache)


def assert_equal(ours: Dataset, theirs: Dataset) -> None:
    """Assert that windows are equal to the bit, with the same splits."""
    assert ours.fingerprint == theirs.fingerprint
    assert {name: one.to_json() for name, one in ours.features.items()} == {
        name: one.to_json() for name, one in theirs.features.items()
    }
    for name, split in ours.splits.items():
        other = theirs.splits[name]
        assert len(split) == len(other) > 0
        for key, column in split.features.items():
            np.testing.assert_array_equal(column[:], other.features[key][:], err_msg=key)
        np.testing.assert_array_equal(split.target_values, other.target_values)
        np.testing.assert_array_equal(split.numbers, other.numbers)
        np.testing.assert_array_equal(split.groups, other.groups)


@pytest.mark.parametrize("known", [[], ["x_1"]])
def test_arrays_equal_the_same_table(known: list[str], tmp_path: Path) -> None:
    """In memory, from the disk, as a CSV file and from a function."""
    frame = demand(days=STEPS, stores=SERIES)
    arrays = arrays_of(frame)
    table = frame.sort_values(["store", "date"]).rename(columns={"price": "x_0", "promo": "x_1"})
    table["size"] = np.repeat(arrays["size"], STEPS)
    table["x_1"] = table.x_1.astype(float)
    table[["sales", "x_0", "x_1", "date", "store", "size"]].to_csv(tmp_path / "sales.csv", index=False)
    roles: dict[str, Any] = {"time": "date", "group": "store", "known": known}
    expected = loaded(str(tmp_path / "sales.csv"), **roles)
    file = saved(tmp_path, arrays)
    found = loaded(file, **roles)
    assert found.features["history"].channels[0] == "sales"  # type: ignore[attr-defined]
    assert_equal(found, expected)
    disk = loaded(file, tmp_path / "cache", memory_gib=0.0, **roles)
    assert not disk.train.is_in_memory
    assert_equal(disk, expected)
    settings = SeriesSettings(_target_="mine.load", target="sales", window=WINDOW, horizon=HORIZON, **roles)
    of_function = dataset_of_result(arrays, settings)
    assert_equal(of_function, expected)


def test_series_and_times_are_numbered_without_names(tmp_path: Path) -> None:
    """Steps from 0 as times, and the numbers of the series as their names; [T] is shared by all series."""
    arrays = {name: array for name, array in arrays_of(demand(STEPS, SERIES)).items() if name in ("sales", "x")}
    week = np.arange(STEPS) % 7 + 0.5
    data = loaded(saved(tmp_path, {**arrays, "week": week}), known=["x", "week"])
    assert data.features["known"].channels == ("x_0", "x_1", "week")  # type: ignore[attr-defined]
    assert {*data.train.features} == {"history", "known", "series"}
    assert {*data.train.features["series"][:]} == {"0", "1", "2"}
    history, known = data.test.features["history"], data.test.features["known"]
    assert isinstance(history, Gathered)
    assert isinstance(known, Gathered)
    for place, start in enumerate(history.starts):
        number, step = divmod(int(start), STEPS)
        np.testing.assert_array_equal(history[:][place, :, 0], arrays["sales"][number, step : step + WINDOW])
        np.testing.assert_array_equal(known[:][place, :, :2], arrays["x"][number, step : step + WINDOW + HORIZON])
        np.testing.assert_array_equal(known[:][place, :, 2], week[step : step + WINDOW + HORIZON])


def test_all_channels_are_targets_if_their_array_is(tmp_path: Path) -> None:
    arrays = {
        "x": arrays_of(demand(STEPS, SERIES))["x"],
        "time": np.arange("2022-01", "2032-01", dtype="datetime64[M]"),
    }
    data = loaded(saved(tmp_path, arrays), target="x")
    assert data.task.names == ("x_0+1", "x_1+1", "x_0+2", "x_1+2")
    assert data.record.params["steps"] == "every month"
    assert "time" in data.features


def test_a_single_series_needs_one_axis(tmp_path: Path) -> None:
    data = loaded(saved(tmp_path, {"sales": np.arange(90.0) % 9, "price": np.arange(90) % 4 + 0.5}))
    assert {*data.features} == {"history"}
    one = loaded(saved(tmp_path, {"sales": np.arange(90.0)[np.newaxis] % 9, "price": np.arange(90) % 4 + 0.5}))
    assert_equal(one, data)


def test_series_that_begin_later_are_padded_with_missing_values(tmp_path: Path) -> None:
    """Rows without a target are left out if the user asks for it."""
    sales = arrays_of(demand(STEPS, SERIES))["sales"].copy()
    sales[1, :30] = np.nan
    file = saved(tmp_path, {"sales": sales})
    with pytest.raises(UserError, match=r"sales\.npz row 121, column sales: the value is missing.*on_error=skip"):
        loaded(file)
    data = loaded(file, on_error="skip")
    numbers = data.train.numbers
    assert numbers is not None
    assert min(numbers[numbers >= STEPS]) == STEPS + 30 + WINDOW


def test_splits_by_file_and_by_function(tmp_path: Path) -> None:
    sales = np.random.default_rng(0).normal(size=(2, 200))
    time = np.arange(200)
    parts = {"train": slice(100), "val": slice(100, 150), "test": slice(150, 200)}
    given: dict[str, dict[str, Any]] = {
        name: {"sales": sales[:, part], "time": time[part]} for name, part in parts.items()
    }
    files = {}
    for name, arrays in given.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        files[name] = str(tmp_path / f"{name}.npz")
    data = loaded(files)
    np.testing.assert_array_equal(data.test.features["history"][:1][0], sales[0, 150 : 150 + WINDOW, np.newaxis])
    settings = SeriesSettings(_target_="mine.load", target="sales", window=WINDOW, horizon=HORIZON)
    assert_equal(dataset_of_result(tuple(given.values()), settings), data)


SALES = np.random.default_rng(0).normal(size=(3, 60))
DAYS = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other length": ({"sales": SALES, "y": np.ones(7)}, {}, r"y has the shape \(7,\), and sales has \(3, 60\)"),
    "other series": ({"sales": SALES, "y": np.ones((4, 60))}, {}, r"y has the shape \(4, 60\)"),
    "four axes": ({"sales": SALES, "y": np.ones((3, 60, 2, 2))}, {}, r"y has the shape \(3, 60, 2, 2\)"),
    "a number": ({"sales": SALES, "y": np.array(1.0)}, {}, r"y has the shape \(\)"),
    "series or steps": (
        {"sales": SALES[:, :3], "y": np.ones(3)}, {}, r"the shape \(3, 3\), as 3 may be the series or the steps",
    ),
    "twice": ({"sales": SALES, "time": np.r_[DAYS[:-1], DAYS[5]]}, {}, "series=0 has the time 2024-01-06 twice"),
    "gap": ({"sales": SALES, "time": np.r_[DAYS[:9], DAYS[9:] + 2]}, {}, r"no row for 2024-01-10.*data\.fill=previous"),
    "irregular": ({"sales": SALES, "time": np.arange(60.0) ** 1.5}, {}, "times at irregular steps"),
    "horizon": ({"sales": SALES}, {"horizon": 100}, r"data\.horizon=100"),
    "unknown": ({"sales": SALES}, {"known": ["promo"]}, r"known=promo: .*has no such column.*one of: sales"),
    "objects": ({"sales": SALES, "y": np.array([{}] * 60)}, {}, "cannot be read .*pickle|allow_pickle"),
}  # fmt: skip


def checked(settings: SeriesSettings) -> None:
    settings.check("data")
    series(settings)


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_series_is_refused(name: str, tmp_path: Path) -> None:
    arrays, given, message = REFUSED[name]
    file = saved(tmp_path, arrays)
    with pytest.raises(UserError) as raised:
        checked(SeriesSettings(files=file, **{"target": "sales", "window": WINDOW, "horizon": HORIZON, **given}))
    assert re.search(message, str(raised.value)), raised.value


def test_results_of_functions_are_checked() -> None:
    settings = SeriesSettings(_target_="mine.load", target="sales", horizon=4)
    with pytest.raises(UserError, match="returned ndarray"):
        dataset_of_result(SALES, settings)
    with pytest.raises(UserError, match=r"data\.target=sales: train has no such column"):
        dataset_of_result({"x": SALES}, settings)
    with pytest.raises(UserError, match="test has no column price"):
        dataset_of_result(({"sales": SALES, "price": SALES}, {"sales": SALES}), settings)
