"""Simulated demand of stores by day, for tests of time series."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages.load.series import series
from stages.normalize import normalize
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.series import SeriesSettings

COLUMNS: dict[str, Any] = {"target": "sales", "time": "date", "group": "store", "window": 14, "horizon": 4}
"""Settings for the table of `demand`."""


def demand(days: int = 240, stores: int = 2, seed: int = 0) -> pd.DataFrame:
    """Return sales with a weekly season, a trend and promotions: a row for each day and store, in random order."""
    random = np.random.default_rng(seed)
    day = np.arange(days)
    parts = []
    for store in range(stores):
        promo = (random.random(days) < 0.15).astype(int)
        price = (5 + random.normal(0, 0.3, days)).round(2)
        season = np.array([0, 1, 2, 3, 6, 12, 9])[day % 7]
        sales = 40 + 10 * store + 0.03 * day + season + 15 * promo - 3 * (price - 5) + random.normal(0, 2, days)
        dates = pd.date_range("2022-01-03", periods=days).strftime("%Y-%m-%d")
        parts.append(
            pd.DataFrame({"date": dates, "store": f"s{store}", "sales": sales.round(3), "price": price, "promo": promo})
        )
    return pd.concat(parts).sample(frac=1, random_state=seed).reset_index(drop=True)


def windows(folder: Path, frame: pd.DataFrame, cache: Path | None = None, **given: Any) -> Dataset:
    """Return the windows of a table as they are loaded."""
    path = folder / "demand.csv"
    frame.to_csv(path, index=False)
    return series(SeriesSettings(files=str(path), **{**COLUMNS, **given}), Reporter(), None, cache)


def encoded(folder: Path, frame: pd.DataFrame, cache: Path | None = None, **given: Any) -> Dataset:
    """Return the windows of a table with their encoder."""
    return normalize(windows(folder, frame, cache, **given), NormalizeSettings(), cache=cache)
