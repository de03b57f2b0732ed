"""Dates in tables: they are features, whatever their notation and file, or the user is asked."""

import csv
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from pipeline.execute.example import input_example, request_example
from pipeline.internals.hydra import parse
from pipeline.serving import models, rows
from pipeline.serving.server import Watch, predictor
from stages.errors import UserError
from stages.exporters.reload import load_saved_model
from stages.exporters.saved_model import SavedModel
from stages.features.dates import DateFeature
from stages.features.encoder import encoding, restore_encoder
from stages.load.arrays import dataset_of_arrays
from stages.load.table import table
from stages.normalize import _save, normalize, with_kinds
from stages.reporter import Reporter
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings
from stages.settings.table import TableSettings
from tests.stages.experiments import built_of, one_device
from tests.stages.images import Telling

ROWS = 300
RANDOM = np.random.default_rng(5)
DAYS = [datetime(2021, 1, 1) + timedelta(days=int(day)) for day in RANDOM.integers(0, 1400, ROWS)]
TIMES = [day + timedelta(minutes=int(minute)) for day, minute in zip(DAYS, RANDOM.integers(0, 1440, ROWS), strict=True)]
PRICE = RANDOM.normal(1000, 200, ROWS).round(2)

Load = Callable[..., Dataset]


def seconds(days: list[datetime]) -> np.ndarray:
    return np.array([(day - datetime(1970, 1, 1)).total_seconds() for day in days])


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that loads a table with the given columns and a price."""

    def make(
        columns: dict[str, Any],
        form: str = "csv",
        cache: Path | None = None,
        reporter: Reporter | None = None,
        **given: Any,
    ) -> Dataset:
        path = tmp_path / f"table.{form}"
        frame = pd.DataFrame({**columns, "price": PRICE})
        frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
        settings = TableSettings(**{"files": str(path), "target": "price", **given})
        settings.check("data")
        return table(settings, reporter, tmp_path, cache)

    return make


def whole(dataset: Dataset, name: str) -> np.ndarray:
    """Return a column in the order of the file."""
    values = np.full(ROWS, -1.0)
    for split in dataset.splits.values():
        values[split.numbers] = split.features[name][:]
    return values


def written(days: list[datetime], pattern: str) -> list[str]:
    return [day.strftime(pattern) for day in days]


@pytest.mark.parametrize("pattern", [
    "%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d %b %Y", "%B %d, %Y", "%a, %d %b %Y",
])  # fmt: skip
def test_dates_and_times_are_features_in_any_notation(load: Load, pattern: str) -> None:
    time = f"{pattern} %H:%M"
    dataset = load({"day": written(DAYS, pattern), "time": written(TIMES, time), "size": PRICE / 7})
    assert {name: one.kind for name, one in dataset.features.items()} == {
        "day": "date",
        "time": "date",
        "size": "number",
    }
    np.testing.assert_array_equal(whole(dataset, "day"), seconds(DAYS))
    np.testing.assert_array_equal(whole(dataset, "time"), seconds(TIMES))
    encoded = normalize(dataset, NormalizeSettings())
    assert [(*encoded.features[name].cycles,) for name in ("day", "time")] == [  # type: ignore[attr-defined]
        ("year", "month", "week"), ("year", "month", "week", "day"),
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["ns", "us", "s", "date32", "UTC", "Europe/Berlin"])
def test_files_with_a_type_for_dates_equal_texts(load: Load, case: str) -> None:
    stamps = pd.Series(pd.DatetimeIndex(TIMES)).astype("datetime64[ns]")
    days: Any = stamps.astype(f"datetime64[{case}]") if len(case) < 3 and case != "UTC" else stamps
    texts = written(TIMES, "%Y-%m-%dT%H:%M:%S")
    if case == "date32":
        days, texts = [time.date() for time in TIMES], written(TIMES, "%Y-%m-%d")
    if case in ("UTC", "Europe/Berlin"):
        days = stamps.dt.tz_localize("UTC").dt.tz_convert(case)
        texts = [f"{text}Z" for text in texts]
    zone = case if case in ("UTC", "Europe/Berlin") else ""
    typed = load({"day": days, "size": PRICE / 7}, "parquet")
    of_texts = load({"day": texts, "size": PRICE / 7}, time_zone=zone or None)
    np.testing.assert_array_equal(whole(typed, "day"), whole(of_texts, "day"))
    assert typed.reading["time_zone"] == of_texts.reading["time_zone"] == {"day": zone}
    local = [time.replace(tzinfo=UTC).astimezone(ZoneInfo(zone or "UTC")).replace(tzinfo=None) for time in TIMES]
    if case != "date32":
        np.testing.assert_array_equal(whole(typed, "day"), seconds(local if zone else TIMES))


def test_arrays_of_dates_are_features() -> None:
    days = np.array(DAYS, "datetime64[s]")
    dataset = dataset_of_arrays("data", {"train": ({"day": days, "size": PRICE / 7}, PRICE)})
    assert isinstance(dataset.features["day"], DateFeature)
    np.testing.assert_array_equal(whole(dataset, "day"), seconds(DAYS))


def test_numbers_are_dates_if_they_are_declared(load: Load) -> None:
    day, unix = [int(text) for text in written(DAYS, "%Y%m%d")], seconds(TIMES).astype(int)
    columns = {"day": day, "time": unix, "ms": unix * 1000, "year": [time.year for time in TIMES]}
    assert "date" not in {one.kind for one in load(columns).features.values()}
    formats = {"day": "%Y%m%d", "time": "unix", "ms": "unix_ms", "year": "%Y"}
    for form in ("csv", "parquet"):
        dataset = load(columns, form, date_format=formats)
        assert {one.kind for one in dataset.features.values()} == {"date"}
        np.testing.assert_array_equal(whole(dataset, "day"), seconds(DAYS))
        np.testing.assert_array_equal(whole(dataset, "time"), seconds(TIMES))
        np.testing.assert_array_equal(whole(dataset, "ms"), seconds(TIMES))
        np.testing.assert_array_equal(whole(dataset, "year"), seconds([datetime(time.year, 1, 1) for time in TIMES]))
    dataset = load({"day": day, "size": unix}, features={"day": "date"}, date_format="%Y%m%d")
    assert (dataset.features["day"].kind, dataset.features["size"].kind) == ("date", "number")
    some: list[Any] = [*day]
    some[3] = None
    dataset = load({"day": some, "size": unix}, "parquet", date_format={"day": "%Y%m%d"})
    assert np.isnan(whole(dataset, "day")).sum() == 1


def test_missing_dates_are_flagged(load: Load) -> None:
    texts = written(DAYS, "%Y-%m-%d")
    texts[::3] = [""] * len(texts[::3])
    dataset = normalize(load({"day": texts, "size": PRICE / 7}), NormalizeSettings())
    is_missing = np.isnan(np.asarray(dataset.train.features["day"]))
    numbers = np.asarray(dataset.train.inputs["numbers"])
    assert is_missing.any()
    assert numbers.shape[1] == (2 + 3) + 1 + 6
    np.testing.assert_array_equal(numbers[:, 5], is_missing)
    assert not numbers[is_missing, 6:].any()


AMBIGUOUS = [f"{row % 12 + 1:02}/{row % 11 + 1:02}/2024" for row in range(ROWS)]
UNCLEAR: dict[str, tuple[list[Any], dict[str, Any], str, str]] = {
    "day or month": (
        AMBIGUOUS, {}, "table.csv: the dates of day, such as '01/01/2024', may be %d/%m/%Y or %m/%d/%Y. Expected",
        "data.date_format='%d/%m/%Y'",
    ),
    "a year of two digits": (
        [f"{row % 28 + 1:02}-Mar-{row % 9 + 10}" for row in range(ROWS)], {}, "a year of two digits",
        "data.date_format='%d-%b-%y'",
    ),
    "declared": (AMBIGUOUS, {"features": {"day": "date"}}, "may be", "data.date_format='%d/%m/%Y'"),
    "the order": (AMBIGUOUS, {"time": "day"}, "may be", "data.date_format='%d/%m/%Y'"),
    "another pattern": (
        AMBIGUOUS, {"date_format": {"other": "%Y"}}, "may be", "'++data.date_format={day: \"%d/%m/%Y\"}'",
    ),
    "numbers of days": (
        [20200101 + row % 28 for row in range(ROWS)], {"features": {"day": "date"}},
        "the column day is declared as dates, but has numbers such as 20200101", "data.date_format='%Y%m%d'",
    ),
    "numbers of seconds": (
        [1_700_000_000 + row for row in range(ROWS)], {"features": {"day": "date"}}, "such as 1700000000",
        "'++data.date_format={day: \"unix\"}'",
    ),
    "numbers of milliseconds": (
        [1_700_000_000_000 + row for row in range(ROWS)], {"features": {"day": "date"}}, "such as 1700000000000",
        "'++data.date_format={day: \"unix_ms\"}'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLEAR)
def test_unclear_dates_are_asked_for_and_the_answer_works(load: Load, case: str) -> None:
    values, given, problem, fix = UNCLEAR[case]
    columns = {"day": values, "size": PRICE / 7, "other": [2000 + row % 20 for row in range(ROWS)]}
    with pytest.raises(UserError, match=re.escape(problem)) as refused:
        load(columns, **given)
    assert refused.value.fix == fix
    config: Any = OmegaConf.create({"data": {"date_format": None, **given}})
    for word in shlex.split(fix):
        typed = parse(word)
        OmegaConf.update(config, typed.key_or_group, typed.value(), merge=True, force_add=typed.is_force_add())
    given = OmegaConf.to_container(config)["data"]  # type: ignore[call-overload,index,assignment]
    dataset = load(columns, **given)
    assert "time" in given or dataset.features["day"].kind == "date"


def test_days_of_spreadsheets_are_refused(load: Load) -> None:
    days = [45_000 + row for row in range(ROWS)]
    problem = "the column day is declared as dates, but has numbers such as 45000, which may count days"
    with pytest.raises(UserError, match=problem) as refused:
        load({"day": days, "size": PRICE / 7}, features={"day": "date"})
    assert not refused.value.fix
    assert load({"day": days[::-1], "size": PRICE / 7}, features={"day": "number"}).features["day"].kind == "number"


def test_dates_that_group_rows_are_compared_as_texts(load: Load) -> None:
    dataset = load({"day": AMBIGUOUS, "size": PRICE / 7}, group="day")
    assert [*dataset.features] == ["size"]


def test_dates_beyond_the_training_split_do_not_extrapolate(load: Load) -> None:
    """The days since the first date are those of the last date of the training split; other places are their own."""
    days = [datetime(2021, 1, 1) + timedelta(days=row) for row in range(ROWS)]
    dataset = normalize(load({"day": written(days, "%Y-%m-%d"), "size": PRICE / 7}, time="day",
                             features={"day": "date"}), NormalizeSettings())  # fmt: skip
    last = np.asarray(dataset.train.features["day"]).max()
    assert dataset.features["day"].span == (seconds(days).min(), last)  # type: ignore[attr-defined]
    later = last + 7 * 86_400 * np.arange(1, 5)
    encode = encoding(dataset.encoder)

    def encoded(values: np.ndarray) -> np.ndarray:
        columns = {"day": values, "size": np.zeros(len(values))}
        return np.asarray(encode(columns, slice(None))["numbers"])

    numbers, of_last = encoded(later), encoded(np.full(4, last))
    place = [*dataset.features].index("day")
    np.testing.assert_array_equal(numbers[:, place], of_last[:, place])
    week = np.flatnonzero((numbers == of_last).all(axis=0))
    assert len(week) >= 5  # the days, the place in the week, its sine and cosine, and the size
    assert np.isnan(encoded(np.array([np.nan]))).sum() == 0


@pytest.mark.parametrize(("row", "value", "why"), [
    (7, "31.02.2023", "'31.02.2023' is not a date (such as 31.12.2024)"),
    (8, "2023-02-01", "'2023-02-01' is not a date (such as 31.12.2024)"),
    (9, "unknown", "'unknown' is not a date"),
    (10, "01.02.2023 12:00Z", "'01.02.2023 12:00Z' has a time zone, unlike the other dates of the column"),
])  # fmt: skip
def test_values_that_do_not_fit_are_errors_of_their_row(
    load: Load, row: int, value: str, why: str, tmp_path: Path
) -> None:
    texts = written(DAYS, "%d.%m.%Y")
    texts[row] = value
    with pytest.raises(UserError, match=re.escape(f"table.csv row {row + 1}, column day: {why}")) as refused:
        load({"day": texts, "size": PRICE / 7})
    assert refused.value.fix == "data.on_error=skip"
    dataset = load({"day": texts, "size": PRICE / 7}, on_error="skip")
    assert sum(map(len, dataset.splits.values())) == ROWS - 1
    assert why.split(" (")[0] in (tmp_path / "data" / "skipped.csv").read_text()
    dataset = load({"day": texts, "size": PRICE / 7}, missing=[value])
    assert np.isnan(whole(dataset, "day")).sum() == 1


@pytest.mark.parametrize("texts", [["unknown"], ["-", "soon"]])
def test_dates_among_few_other_texts_are_not_dropped(load: Load, texts: list[str], tmp_path: Path) -> None:
    """They would be a category, or an identifier, and seem to be left out for a good reason."""
    days = written(DAYS, "%d.%m.%Y")
    days[1::5] = [texts[row % len(texts)] for row in range(len(days[1::5]))]
    columns = {"day": days, "size": PRICE / 7}
    problem = (
        rf"table.csv row \d+, column day is '({'|'.join(texts)})', but 1\d\d of 2\d\d values in this column are dates"
    )
    with pytest.raises(UserError, match=problem) as refused:
        load(columns)
    [typed] = map(parse, shlex.split(refused.value.fix))
    dataset = load(columns, missing=typed.value())
    assert np.isnan(whole(dataset, "day")).sum() == 60
    assert load(columns, features={"day": "category"}).features["day"].kind == "category"


def test_a_time_without_a_zone_among_others_is_an_error(load: Load) -> None:
    texts = [f"{text}+02:00" for text in written(TIMES, "%Y-%m-%dT%H:%M")]
    dataset = load({"day": texts, "size": PRICE / 7})
    np.testing.assert_array_equal(whole(dataset, "day"), seconds(TIMES))
    assert dataset.reading["time_zone"] == {"day": "+02:00"}
    texts[5] = texts[5].removesuffix("+02:00")
    with pytest.raises(
        UserError, match=r"row 6, column day: .* has no time zone, unlike the other dates of the column"
    ):
        load({"day": texts, "size": PRICE / 7})


def test_columns_can_be_left_out_or_have_another_kind(load: Load, tmp_path: Path) -> None:
    columns = {"day": [f"2024-01-{row % 14 + 1:02}" for row in range(ROWS)], "size": PRICE / 7}
    assert [*load(columns, features={"day": "leave_out"}).features] == ["size"]
    assert load(columns, features={"day": "category"}).features["day"].kind == "category"
    telling = Telling()
    load(columns, reporter=telling)
    assert any("date      day (%Y-%m-%d)" in line for line in telling.lines)
    [row, *_] = csv.DictReader((tmp_path / "data" / "columns.csv").open())
    assert (row["name"], row["kind"], row["note"], row["date_format"]) == ("day", "date", "", "%Y-%m-%d")
    with pytest.raises(UserError, match=r"data.target=day cannot be used as the target \(dates\)"):
        load(columns, target="day")
    assert load(columns, target="day", features={"day": "category"}).task.kind == "classification"


def test_the_column_of_the_order_is_a_feature_if_it_is_declared(load: Load) -> None:
    for texts in (written(TIMES, "%d.%m.%Y %H:%M"), written(TIMES, "%Y-%m-%dT%H:%MZ")):
        columns = {"day": texts, "size": PRICE / 7}
        assert [*load(columns, time="day").features] == ["size"]
        for features in ({"day": "date"}, ["day", "size"]):
            dataset = load(columns, time="day", features=features)
            assert {name: one.kind for name, one in dataset.features.items()} == {"day": "date", "size": "number"}
            days = [np.asarray(dataset.splits[split].features["day"]) for split in ("train", "val", "test")]
            assert days[0].max() <= days[1].min() <= days[1].max() <= days[2].min()
    texts[3] = ""
    with pytest.raises(UserError, match="row 4, column day: the value is missing"):
        load(columns, time="day", features={"day": "date"})


def test_a_table_on_the_disk_equals_the_one_in_memory(load: Load, tmp_path: Path) -> None:
    texts = written(TIMES, "%d/%m/%Y %H:%M")
    texts[4], texts[9] = "", "31/02/2024"
    given: Any = {"columns": {"time": texts, "size": PRICE / 7}, "on_error": "skip"}
    in_memory = normalize(load(**given), NormalizeSettings())
    for _ in range(2):  # converted, then found
        loaded = load(**given, cache=tmp_path / "cache", memory_gib=0.0)
        assert not isinstance(loaded.train.features["time"], np.ndarray)
        assert loaded.reading == in_memory.reading
        on_disk = normalize(loaded, NormalizeSettings(), cache=tmp_path / "cache")
        assert on_disk.features == in_memory.features
        for split in ("train", "val", "test"):
            ours, theirs = on_disk.splits[split], in_memory.splits[split]
            np.testing.assert_array_equal(ours.features["time"][:], theirs.features["time"][:])
            np.testing.assert_array_equal(ours.inputs["numbers"][:], theirs.inputs["numbers"][:])
            np.testing.assert_array_equal(ours.described.digests, theirs.described.digests)


SERVED = {
    "%d/%m/%Y": written(DAYS, "%d/%m/%Y"), "%d %b %Y": written(TIMES, "%d %B %Y, %H:%M"),
    "%Y-%m-%d": [f"{text}+02:00" for text in written(TIMES, "%Y-%m-%dT%H:%M:%S")],
}  # fmt: skip


@pytest.mark.parametrize("pattern", SERVED)
def test_serving_equals_training(load: Load, tmp_path: Path, pattern: str) -> None:
    """A model that is exported reads files and requests as the training did, also texts."""
    texts = [*SERVED[pattern]]
    texts[7] = ""
    dataset = normalize(load({"sold on": texts, "size": PRICE / 7}), NormalizeSettings())
    expected = encoding(dataset.encoder)({name: whole(dataset, name) for name in dataset.features}, slice(None))[
        "numbers"
    ]
    model = built_of(MlpSettings(hidden=[8]), dataset, one_device())
    SavedModel().write(model, dataset, tmp_path / "saved")
    loaded = load_saved_model(str(tmp_path / "saved"))
    predictions = np.asarray(model.task.head.predictions(model.network(expected, training=False)))
    reading = models.reading_settings(loaded, [tmp_path / "table.csv"])
    drift = models.drift_of(loaded)
    of_file = [part[2] for part in rows.rows_of_files(loaded, reading, drift)]
    size = (PRICE / 7).tolist()
    raw = [None if np.isnan(value) else value for value in whole(dataset, "sold_on")]
    requests = [
        {"sold on": texts, "size": size}, {"sold_on": texts, "size": [*map(str, size)]}, {"sold on": raw, "size": size},
        {"sold on": [text if text else None for text in texts], "size": size},
    ]  # fmt: skip
    for given in (
        *of_file,
        *(rows.arguments_of(loaded, reading, drift, json.loads(json.dumps(one))) for one in requests),
    ):
        np.testing.assert_array_equal(given["sold_on"], whole(dataset, "sold_on"))
        answers = next(iter(models.outputs_of(loaded, given).values()))
        np.testing.assert_allclose(answers.ravel(), predictions.ravel(), rtol=1e-5)
    answer = predictor(loaded, Watch(drift))({"sold on": texts[:2], "size": size[:2]})
    np.testing.assert_allclose([row["prediction"] for row in answer], predictions.ravel()[:2], rtol=1e-5)
    other = "2024-03-01" if pattern != "%Y-%m-%d" else "01.03.2024"
    with pytest.raises(UserError, match=f"'{other}' is not a date"):
        rows.arguments_of(loaded, reading, drift, {"sold on": [other], "size": [1.0]})


NOTATIONS = ("%d/%m/%Y", "%d %b %Y", "%Y-%m", "%Y%m%d", "%y%m%d", "%H:%M", "unix", "unix_ms", "%Y-%m-%d %H:%M%z")


def test_the_stored_examples_of_a_request_equal_the_rows_of_the_file(load: Load, tmp_path: Path) -> None:
    """Each column has another notation, and one has missing values. Half of the times are before 1970.

    Seconds, which are the example of the model itself, are refused if the notation has other numbers.
    """
    times = [time - timedelta(days=25_000 * (row % 2)) for row, time in enumerate(TIMES)]
    since = seconds(times).astype(int)
    numbers = {"unix": since, "unix_ms": 1000 * since - 7}
    columns: dict[str, Any] = {f"c{place}": numbers.get(one, written(times, one.replace("%z", "-03:30")))
                               for place, one in enumerate(NOTATIONS)}  # fmt: skip
    formats = {f"c{place}": one for place, one in enumerate(NOTATIONS)}
    columns |= {
        "time": [f"{text}Z" for text in written(times, "%Y-%m-%dT%H:%M:%S.%f")],
        "none": ["", "2024-01-31"] * 150,
    }
    columns |= {"local": columns["time"], "plain": since}
    columns["early"] = [f"0{row % 9 + 1:03}-01-31 12:30" for row in range(ROWS)]
    formats |= dict.fromkeys(("time", "none", "local", "early"), "%Y-%m-%d") | {"plain": "unix"}
    zones = {"local": "Europe/Berlin", f"c{NOTATIONS.index('unix')}": "America/New_York"}
    dataset = normalize(load(columns, date_format=formats, time_zone=zones), NormalizeSettings())
    model = built_of(MlpSettings(hidden=[8]), dataset, one_device())
    SavedModel().write(model, dataset, tmp_path / "saved")
    loaded = load_saved_model(str(tmp_path / "saved"))
    reading, drift = models.reading_settings(loaded, [tmp_path / "table.csv"]), models.drift_of(loaded)
    [(_, _, of_file)] = rows.rows_of_files(loaded, reading, drift)
    for name, expected in {"time": since, "plain": since, "c7": since - 0.007}.items():
        np.testing.assert_array_equal(of_file[name], expected)
        np.testing.assert_array_equal(whole(dataset, name), expected)
    of_numbers = {name for name, one in formats.items() if one in ("%Y%m%d", "%y%m%d", "unix", "unix_ms")} - {"plain"}
    for first in range(4):
        shown = replace(dataset, test=dataset.test.take(np.arange(first, first + 1)))
        row = shown.test.numbers
        example = json.loads(json.dumps(request_example(shown)))
        given = rows.arguments_of(loaded, reading, drift, example)
        for name in dataset.features:
            np.testing.assert_array_equal(given[name], of_file[name][row], err_msg=formats.get(name, name))
            np.testing.assert_array_equal(np.float64(input_example(shown)[name]), of_file[name][row])
        [answer] = predictor(loaded, Watch(drift))(example)
        [expected] = models.outputs_of(loaded, {name: column[row] for name, column in of_file.items()}).values()
        assert answer["prediction"] == expected.ravel()[0]
        in_seconds = json.loads(json.dumps(input_example(shown)))
        given = rows.arguments_of(loaded, reading, drift, in_seconds | {name: example[name] for name in of_numbers})
        for name in dataset.features:
            np.testing.assert_array_equal(given[name], of_file[name][row])
        for name in of_numbers:
            with pytest.raises(UserError, match=f"column {name}: the number .* may be {formats[name]}.*, or seconds"):
                rows.arguments_of(loaded, reading, drift, {**example, name: in_seconds[name]})
        for name in ("time", "plain"):
            with pytest.raises(UserError, match=f"column {name}: the number .* is not a time in seconds since 1970"):
                rows.arguments_of(loaded, reading, drift, {**example, name: [1_735_603_200_000]})


def test_a_trained_model_reads_other_tables_as_in_training(load: Load, tmp_path: Path) -> None:
    """Its pattern and its zone stay, also where the new dates alone would not say what they are."""
    texts = written(TIMES, "%d/%m/%Y %H:%M")
    dataset = normalize(load({"day": texts, "size": PRICE / 7}), NormalizeSettings())
    saved = tmp_path / "saved"
    saved.mkdir()
    _save(dataset, saved)
    path = tmp_path / "other.csv"
    pd.DataFrame({"day": AMBIGUOUS, "size": PRICE, "price": PRICE}).to_csv(path, index=False)
    other = with_kinds(TableSettings(files=str(path), target="price"), saved)
    restored = restore_encoder(saved, table(other), None, Reporter())
    days = [datetime.strptime(text, "%d/%m/%Y") for text in AMBIGUOUS]
    np.testing.assert_array_equal(whole(restored, "day"), seconds(days))
    pd.DataFrame({"day": written(DAYS, "%Y-%m-%d"), "size": PRICE, "price": PRICE}).to_csv(path, index=False)
    with pytest.raises(UserError, match=r"is not a date \(such as 31/12/2024\)"):
        table(other)
    given = TableSettings(files=str(path), target="price", date_format={"day": "%Y-%m-%d"})
    np.testing.assert_array_equal(whole(table(with_kinds(given, saved)), "day"), seconds(DAYS))


def test_a_trained_model_converts_times_to_the_zone_of_the_training(load: Load, tmp_path: Path) -> None:
    texts = written(TIMES, "%Y-%m-%dT%H:%M")
    columns: dict[str, Any] = {"day": [f"{text}+02:00" for text in texts], "size": PRICE / 7}
    _save(normalize(load(columns), NormalizeSettings()), tmp_path)
    path = tmp_path / "other.csv"
    columns["day"] = [f"{text}+01:00" for text in texts]
    pd.DataFrame({**columns, "price": PRICE}).to_csv(path, index=False)
    other = table(with_kinds(TableSettings(files=str(path), target="price"), tmp_path))
    np.testing.assert_array_equal(whole(other, "day"), seconds(TIMES) + 3600)
