"""Dates of tables in training and evaluation: replicas, slices, drift, and the baseline, which gets the calendar."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stages.evaluation.by_column import slices_of
from stages.features.drift import Drift, trained_on
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.model import TabularSettings
from stages.settings.results import EvaluateSettings
from tests.stages.evaluation.test_baseline import compared
from tests.stages.experiments import assert_replicas_equal_one_device, built_of, settings, table_of

ROWS = 900
RANDOM = np.random.default_rng(2)
DAYS = pd.DatetimeIndex(pd.Timestamp("2020-01-01") + pd.to_timedelta(RANDOM.integers(0, 1500, ROWS), unit="D"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return sales that depend on the weekday only; some dates are missing."""
    texts = DAYS.strftime("%d.%m.%Y").to_numpy(object)
    texts[::40] = ""
    sales = 10 * (DAYS.day_of_week >= 5) + RANDOM.normal(size=ROWS)
    frame = pd.DataFrame({"sold on": texts, "size": RANDOM.normal(size=ROWS), "sales": sales})
    return normalize(table_of(tmp_path_factory.mktemp("dates"), frame, target="sales"), NormalizeSettings())


def test_replicas_equal_one_device(data: Dataset) -> None:
    made = partial(built_of, TabularSettings(hidden=[16], dropout=0.2, members=3))
    assert_replicas_equal_one_device(data, settings(batch_size=64), 12, made, 3)


def test_the_baseline_knows_weekdays(data: Dataset, tmp_path: Path) -> None:
    """Boosting on days since a date alone would not find them: its error would be that of the mean, about 4.5."""
    baseline = compared(data, np.zeros((len(data.test), 1)), tmp_path)
    assert baseline.values["rmse"] < 2.5


def test_slices_are_named_by_dates(data: Dataset) -> None:
    answers = {"target": np.asarray(data.test.targets), "prediction": np.zeros((len(data.test), 1), np.float32)}
    rows = slices_of(answers, data, EvaluateSettings(slices=["sold on"])).rows[1:]
    names = [str(row[0]) for row in rows]
    assert "sold on: missing" in names
    borders = [name.removeprefix("sold on: ").split(" to ") for name in names if "missing" not in name]
    assert len(borders) == 5
    for low, high in borders:
        assert pd.Timestamp("2020-01-01") <= pd.Timestamp(low) < pd.Timestamp(high)


def test_other_years_are_drift(data: Dataset) -> None:
    column = np.asarray(data.train.features["sold_on"])
    for rows, moved in ((column, []), (column + 3 * 365 * 86_400, ["sold on"])):
        drift = Drift(trained_on(data.features))
        drift.add({"sold_on": rows})
        assert [*drift.moved()] == moved
