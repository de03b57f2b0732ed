"""Columns of tables: what makes scores worth less is told, and the column named; nothing is told of others."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stages.data.columns import describe
from stages.data.split import Split
from stages.data.splits import dataset_of
from stages.features.categories import CategoryFeature
from stages.features.kinds import NO_NUMBER
from stages.features.numbers import SAMPLE, NumberFeature
from stages.inspect import HEADER, inspect, statistics
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import InspectSettings, NormalizeSettings
from stages.tasks.classification import classification
from tests.stages.experiments import table_of
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


def inspected(data: Dataset, folder: Path) -> tuple[list[str], dict[str, object]]:
    reporter = Telling()
    result = inspect(data, InspectSettings(batch_size=8, seed=1), reporter=reporter, folder=folder)
    return reporter.lines, dict(result.params)


def test_a_column_that_gives_the_target_away_is_named(frame: pd.DataFrame, tmp_path: Path) -> None:
    lines, params = inspected(table_of(tmp_path, frame, target="survived"), tmp_path)
    assert params["giving_away"] == "alive"
    assert lines[5:] == [
        "the column alive predicts the target by itself (100.0%), so it may contain the answer. To leave it out: "
        "'++data.features={alive: leave_out}'"
    ]


def test_of_innocent_columns_nothing_is_told(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = table_of(tmp_path, frame[["fare", "age", "sex", "survived"]], target="survived")
    lines, params = inspected(data, tmp_path)
    assert len(lines) == 5  # the sizes
    assert params["giving_away"] == ""


@pytest.mark.parametrize(("texts", "told"), [(["good film", "bad film"], 0), (["这部电影{}很好看", "糟糕的{}电影"], 1)])
def test_texts_whose_words_no_training_text_has_are_told(texts: list[str], told: int, tmp_path: Path) -> None:
    rows = [(texts[row % 2].format(row), row % 2) for row in range(100)]
    data = table_of(tmp_path, pd.DataFrame(rows, columns=["said", "good"]), target="good", features={"said": "text"})
    lines, _ = inspected(normalize(data, NormalizeSettings()), tmp_path)
    assert (
        sum("100% of the words of the column said in val do not occur in the training texts" in line for line in lines)
        == told
    )


def test_rows_in_two_splits_and_repeated_ones_are_counted(frame: pd.DataFrame, tmp_path: Path) -> None:
    split = np.repeat(["train", "val", "test"], [400, 100, 100])
    plain = frame[["fare", "age", "sex", "survived"]].assign(split=split)
    plain.iloc[500:507, :3] = plain.iloc[:7, :3].to_numpy()
    plain.iloc[10:13, :3] = plain.iloc[9, :3].to_numpy()
    data = table_of(tmp_path, plain, target="survived", split_column="split")
    lines, params = inspected(data, tmp_path)
    assert [line.split("  ")[-1].strip() for line in lines[2:5]] == ["3 within train", "0", "7 also in train"]
    assert lines[5].startswith("7 of 100 test rows are also in train: the scores may be too high")
    assert params["data/duplicates_train_test"] == 7


@pytest.mark.parametrize("values", [np.array(["a", "", "a", ""], object), np.array([1, NO_NUMBER, 1, NO_NUMBER])])
def test_a_missing_category_is_called_missing(values: np.ndarray) -> None:
    column = np.tile(values, 10)
    split = Split({"cabin": column}, np.arange(40, dtype=np.int32) % 2)
    features = {"cabin": CategoryFeature(str(column.dtype))}
    data = dataset_of("x", dict.fromkeys(("train", "val", "test"), split), classification(("no", "yes")), features)
    row = dict(zip(HEADER, statistics(data).rows[0], strict=True))
    assert (row["missing"], row["different"]) == (0.5, 2)
    assert row["most frequent"] in (f"{values[0]} (20), missing (20)", f"missing (20), {values[0]} (20)")


def test_statistics_are_of_all_rows_in_memory() -> None:
    values = np.arange(2.0 * SAMPLE)
    split = Split({"size": values, "cut": np.array(["a", "b"] * SAMPLE, object)}, np.arange(2 * SAMPLE) % 2)
    features = {"size": NumberFeature(), "cut": CategoryFeature()}
    data = dataset_of("x", dict.fromkeys(("train", "val", "test"), split), classification(("no", "yes")), features)
    size, cut = (dict(zip(HEADER, row, strict=True)) for row in statistics(data).rows[:2])
    assert float(size["mean"]) == pytest.approx(SAMPLE - 0.5, rel=1e-5)
    assert (float(size["min"]), float(size["max"])) == (0, 2 * SAMPLE - 1)
    assert cut["most frequent"] in (f"a ({SAMPLE}), b ({SAMPLE})", f"b ({SAMPLE}), a ({SAMPLE})")


def test_texts_of_two_columns_are_told_apart_wherever_the_border_is() -> None:
    columns = {name: np.array(values, object) for name, values in {"a": ["ab", "a"], "b": ["c", "bc"]}.items()}
    first, second = describe(columns).digests
    assert first != second
