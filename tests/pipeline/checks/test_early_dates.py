"""Dates that cannot be read are refused before TensorFlow is imported, and only those."""

import random
import re
import shlex
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.checks.registry import check_rules
from stages.data import planned
from stages.data.planned import refuse_dates
from stages.errors import UserError
from stages.load.table import table
from stages.settings.date_columns import LOOKED_AT, columns_of_dates
from stages.settings.table import TableSettings
from tests.pipeline.experiments import experiment

ROWS = 60
UNCLEAR = [f"{row % 12 + 1:02}/{row % 11 + 1:02}/2024" for row in range(ROWS)]
DAYS = [f"2024-{row % 12 + 1:02}-{row % 28 + 1:02}" for row in range(ROWS)]
ZONES = [f"{day}T12:00Z" for day in DAYS]

REFUSED: dict[str, tuple[Sequence[str], str, str]] = {
    "day or month": (UNCLEAR, "", "the dates of day, such as '01/01/2024', may be %d/%m/%Y or %m/%d/%Y"),
    "the time": (UNCLEAR, "data.time=day", "may be %d/%m/%Y or %m/%d/%Y"),
    "two digits": ([f"{row % 28 + 1:02}-Mar-{row % 9 + 10}" for row in range(ROWS)], "", "a year of two digits"),
    "numbers": ([f"202401{row % 28 + 1:02}" for row in range(ROWS)], "data.features={day:date}", "declared as dates"),
    "no such day": ([*DAYS[1:], "2024-02-31"], "", "t.csv row 60, column day: '2024-02-31' is not a date"),
    "a zone": ([*ZONES[1:], DAYS[0]], "", "row 60, column day: '2024-01-01' has no time zone, unlike the other"),
    "no zone": ([*DAYS[1:], ZONES[0]], "", "row 60, column day: '2024-01-01T12:00Z' has a time zone, unlike the"),
    "few others": (["?", *DAYS[1:30], *4 * ["?"], *DAYS[34:]], "", "row 1, column day is '?', but 55 of 60 values"),
    "the target": (DAYS, "data.target=day", "data.target=day cannot be used as the target (dates)"),
}  # fmt: skip


def written(folder: Path, day: Sequence[str], kind: str = "csv") -> Path:
    path = folder / f"t.{kind}"
    frame = pd.DataFrame({"day": day, "size": [row / 7 for row in range(len(day))], "y": [*"ab"] * (len(day) // 2)})
    frame.to_csv(path, index=False) if "csv" in kind else frame.to_parquet(path)
    return path


def refusal(path: Path, *words: str) -> UserError | None:
    """Return the error of an experiment; None if it is accepted."""
    target = [] if any("data.target" in word for word in words) else ["data.target=y"]
    try:
        check_rules(experiment("data=table", f"data.files={path}", *target, *words), surroundings=False)
    except UserError as error:
        return error
    return None


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("case", REFUSED)
def test_dates_that_cannot_be_read_are_refused(case: str, kind: str, tmp_path: Path) -> None:
    values, words, message = REFUSED[case]
    error = refusal(path := written(tmp_path, values, kind), *words.split())
    assert error is not None
    assert re.search(re.escape(message).replace(r"t\.csv", r"t\.\S+"), str(error)), error
    assert str(error).isprintable()
    fix = shlex.split(error.fix)
    assert not fix or refusal(path, *words.split(), *fix) is None


@pytest.mark.parametrize(("values", "words"), [
    (DAYS, ""), (DAYS, "data.time=day"), (ZONES, ""), ([*UNCLEAR[1:], "13/01/2024"], ""),
    (UNCLEAR, "data.date_format='%m/%d/%Y'"), (UNCLEAR, "data.features={day:leave_out}"),
    (UNCLEAR, "data.features={day:category}"), (UNCLEAR, "data.features=[size]"),
    ([*DAYS[1:], "2024-02-31"], "data.on_error=skip"), ([*DAYS[:30], *UNCLEAR[:30]], "data.on_error=skip"),
    (["99/99/9999"] * ROWS, ""), (["1/2"] * ROWS, ""), (["NA", "", *DAYS[2:]], ""),
])  # fmt: skip
def test_other_dates_are_accepted(values: Sequence[str], words: str, tmp_path: Path) -> None:
    assert refusal(written(tmp_path, values), *shlex.split(words)) is None


def test_a_trained_model_knows_the_notation(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, UNCLEAR), "from=evaluate", "run=abcdef12") is None


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, UNCLEAR)
    monkeypatch.setattr(planned, "PLANNED_BYTES", path.stat().st_size - 1)
    assert refusal(path) is None


def test_dates_are_looked_for_in_the_first_rows(tmp_path: Path) -> None:
    values = ["", "NA", "soon"] * (LOOKED_AT // 3 + 1)
    for place, expected in ((LOOKED_AT - 1, ["day"]), (LOOKED_AT, [])):
        texts = [*values[:place], "3/4/2024", *values[place : LOOKED_AT + 2]]
        path = written(tmp_path, texts[: LOOKED_AT + 2])
        assert columns_of_dates(TableSettings(files=str(path), target="y")) == expected


NOTATIONS = (
    "%Y-%m-%d",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%y",
    "%d.%m.%Y",
    "%Y-%m-%dT%H:%MZ",
    "%d %b %Y",
    "%Y%m%d",
    "%j.5",
)
OTHERS = ("", "NA", "soon", "2023-02-29", "03/04/2024", "13/04/2024", "03/14/2024", "2024-01-31", "2024-01-31T12:00Z")
ROLES: Sequence[dict[str, Any]] = (
    {}, {"time": "day"}, {"group": "day"}, {"features": {"day": "date"}}, {"split_column": "split"}
)  # fmt: skip


def test_only_tables_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    """For random tables: if `refuse_dates` refuses one, loading refuses it as well.

    All dates but one have the same notation. If several are frequent, those in the training rows may differ.
    """
    draw = random.Random(0)
    count = 0
    for number in range(40):
        role, on_error, pattern = draw.choice(ROLES), draw.choice(("fail", "skip")), draw.choice(NOTATIONS)
        days = [date(2024, draw.randint(1, 12), draw.randint(1, 28 if number % 2 else 12)) for _ in range(40)]
        values = [day.strftime(pattern) for day in days]
        values[draw.randrange(40)] = draw.choice([*OTHERS, values[0]])
        splits = draw.choices(("train", "test"), k=40)
        rows = [f"{row % 5}.5,{'ab'[row % 2]},{values[row]},{splits[row]}" for row in range(40)]
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["a,y,day,split", *rows, ""]))
        settings = TableSettings(files=str(path), target="y", on_error=on_error, **role)
        try:
            refuse_dates(settings)
        except UserError:
            count += 1
            with pytest.raises(UserError):
                table(settings)
    assert count > 10
