"""Columns of tables: what makes scores worth less is told, and the column named; nothing is told of others."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stages.data.column_statistics import BLOCK, statistics
from stages.data.split import Split
from stages.features.kinds import Feature
from stages.inspect import inspect
from stages.load.table import table
from stages.results import Dataset
from stages.settings.images import InspectSettings
from stages.settings.table import TableSettings
from stages.tasks.classification import Classification
from tests.stages.images import Telling

ROWS = 600


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Passengers, as of the Titanic: `alive` says what is to be predicted, and the ticket of each is his own."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"fare": random.lognormal(size=ROWS).round(4), "age": random.integers(1, 80, ROWS)})
    frame["sex"] = random.choice(["male", "female"], ROWS)
    frame["survived"] = ((frame.sex == "female") ^ (random.random(ROWS) < 0.2)).astype(int)
    frame["alive"] = np.where(frame.survived, "yes", "no")
    frame["ticket"] = [f"t{number}" for number in range(ROWS)]
    frame["rate"] = 0.5
    return frame


def told(frame: pd.DataFrame, folder: Path, **kinds: str) -> tuple[list[str], dict[str, object]]:
    frame.to_csv(folder / "people.csv", index=False)
    data = table(TableSettings(files=str(folder / "people.csv"), target="survived", features=kinds or None))
    reporter = Telling()
    result = inspect(data, InspectSettings(batch_size=8, seed=1), reporter=reporter, folder=folder)
    return reporter.lines, dict(result.params)


def test_columns_that_should_be_left_out_are_named(frame: pd.DataFrame, tmp_path: Path) -> None:
    lines, params = told(frame, tmp_path, ticket="category", rate="number")
    assert params["giving_away"] == "alive"
    assert (params["constant"], params["identifiers"]) == ("rate", "ticket")
    for column, why in (("alive", "alone predicts the target (100.0%)"), ("rate", "one value"), ("ticket", "differs")):
        [line] = [line for line in lines if line.startswith(f"{column} ")]
        assert why in line
        assert f"'data.features={{{column}: leave_out}}'" in line
    assert len(lines) == 4  # and the sizes


def test_of_innocent_columns_nothing_is_told(frame: pd.DataFrame, tmp_path: Path) -> None:
    lines, params = told(frame[["fare", "age", "sex", "survived"]], tmp_path)
    assert len(lines) == 1  # the sizes
    assert {params[name] for name in ("giving_away", "constant", "identifiers")} == {""}


def test_rows_in_two_splits_and_repeated_ones_are_counted(frame: pd.DataFrame, tmp_path: Path) -> None:
    split = np.repeat(["train", "val", "test"], [400, 100, 100])
    plain = frame[["fare", "age", "sex", "survived"]].assign(split=split)
    plain.iloc[500:507, :3] = plain.iloc[:7, :3].to_numpy()
    plain.iloc[10:13, :3] = plain.iloc[9, :3].to_numpy()
    plain.to_csv(tmp_path / "people.csv", index=False)
    settings = TableSettings(files=str(tmp_path / "people.csv"), target="survived", split_column="split")
    reporter = Telling()
    result = inspect(table(settings), InspectSettings(batch_size=8, seed=1), reporter=reporter)
    assert "400 train (3 repeated), 100 val, 100 test rows" in reporter.lines[0]
    assert reporter.lines[1:] == ["7 of 100 test rows are in train, target aside"]
    assert result.params["data/duplicates_train_test"] == 7


def test_a_column_is_constant_only_if_all_of_it_is() -> None:
    count = BLOCK + 5000
    values = np.zeros(count)
    values[BLOCK + 1] = 1  # no row of the sample
    missing = np.full(count, np.nan)
    columns = {"flag": values, "none": missing, "some": np.where(np.arange(count) == BLOCK + 1, 3.0, missing)}
    targets = np.arange(count, dtype=np.int32) % 2
    split = Split(columns, targets, numbers=np.arange(count))
    features = {name: Feature("number", "float64") for name in columns}
    data = Dataset("made", split, split, split, Classification(("a", "b")), features, "0" * 32)
    assert statistics(data).constant == ["none"]
