"""Slices: the metrics of each part of the test split, the worst first, and none told of a few examples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from stages.errors import UserError
from stages.evaluation.by_column import check_slices, slices_of
from stages.features.kinds import NO_NUMBER
from stages.metrics.report import Section
from stages.results import Dataset
from stages.settings.results import EvaluateSettings
from tests.stages.experiments import real_digits, table_of

ROWS = 4000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"size (m)": random.normal(size=ROWS).round(4)})
    frame.loc[::50, "size (m)"] = np.nan
    frame["town"] = random.choice(["north", "south", "tiny"], ROWS, p=[0.49, 0.49, 0.02])
    frame["kind"] = random.choice(["x", "y"], ROWS)
    frame["price"] = random.normal(size=ROWS).round(4)
    frame["hot"], frame["wet"] = random.integers(0, 2, (2, ROWS))
    return frame


def loaded(folder: Path, frame: pd.DataFrame, target: Any) -> Dataset:
    return table_of(folder, frame, target=target, features=["size (m)", "town"])


def told(section: Section) -> pd.DataFrame:
    header, *rows = section.rows
    return pd.DataFrame(rows, columns=header).set_index("slice")


def test_of_classes_they_are_those_of_scikit_learn(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = loaded(tmp_path, frame, "kind")
    labels = np.asarray(data.test.targets)
    towns = np.asarray(data.test.features["town"][:])
    random = np.random.default_rng(4)
    share = np.where(towns == "south", 0.6, 0.9)
    predicted = np.where(random.random(len(labels)) < share, labels, 1 - labels).astype(np.int32)
    probabilities = np.eye(2, dtype=np.float32)[predicted] * 0.8 + 0.1
    answers = {"label": labels, "predicted": predicted, "probabilities": probabilities}
    found = told(slices_of(answers, data, EvaluateSettings(slices=["town", "size (m)"])))
    tested = pd.DataFrame({"town": towns, "label": labels, "predicted": predicted})
    for town, part in tested.groupby("town"):
        row = found.loc[f"town: {town}"]
        assert row.examples == len(part)
        assert row.accuracy == pytest.approx(sk.accuracy_score(part.label, part.predicted))
        assert row.macro_f1 == pytest.approx(sk.f1_score(part.label, part.predicted, average="macro"))
        assert row.low < row.accuracy < row.high
    assert found.loc["town: south", "vs the rest"] == "worse"
    assert (found.loc["town: north", "vs the rest"], found.index[0]) == ("better", "town: south")
    assert (found.loc["town: tiny", "examples"] < 30, found.loc["town: tiny", "vs the rest"]) == (
        True,
        "too few examples",
    )
    sizes = found[found.index.str.startswith("size (m)")]
    assert sizes.examples.sum() == len(labels)
    assert len(sizes) == 6  # fifths, and those that are missing
    assert found.loc["size (m): missing", "examples"] == np.isnan(data.test.features["size__m_"][:]).sum()
    assert set(sizes["vs the rest"]) == {"no significant difference", "too few examples"}
    assert set(found.index[-2:]) == {"town: tiny", "size (m): missing"}


def test_of_numbers_the_largest_error_comes_first(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = loaded(tmp_path, frame, "price")
    targets = np.asarray(data.test.targets)
    is_south = np.asarray(data.test.features["town"][:]) == "south"
    error = np.random.default_rng(3).normal(size=targets.shape) * np.where(is_south, 2.0, 1.0)[:, None]
    answers = {"target": targets, "prediction": (targets + error).astype(np.float32)}
    found = told(slices_of(answers, data, EvaluateSettings(slices=["town"])))
    assert found.index.tolist() == ["town: south", "town: north", "town: tiny"]
    assert found["vs the rest"].tolist() == ["worse", "better", "too few examples"]
    assert found.rmse.iloc[0] == pytest.approx(np.sqrt(np.square(error[is_south]).mean()), rel=1e-4)
    assert {"mae", "r2"} <= {*found.columns}


def test_a_missing_whole_number_is_called_missing(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = loaded(tmp_path, frame, "price")
    rooms = np.arange(len(data.test)) % 3
    features = {**data.test.features, "town": np.where(rooms == 0, NO_NUMBER, rooms)}  # as a run reads other data
    data = replace(data, test=replace(data.test, features=features))
    answers = {"target": np.asarray(data.test.targets), "prediction": np.zeros((len(rooms), 1), np.float32)}
    found = told(slices_of(answers, data, EvaluateSettings(slices=["town"])))
    assert set(found.index) == {"town: missing", "town: 1", "town: 2"}


def test_of_labels(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = loaded(tmp_path, frame, ["hot", "wet"])
    targets = np.asarray(data.test.targets)
    is_south = np.asarray(data.test.features["town"][:]) == "south"
    predicted = np.where(is_south[:, None], 1 - targets, targets).astype(np.int32)
    probabilities = (0.2 + 0.6 * predicted).astype(np.float32)
    answers = {"target": targets, "predicted": predicted, "probabilities": probabilities}
    found = told(slices_of(answers, data, EvaluateSettings(slices=["town"])))
    assert found.macro_f1.to_dict() == {"town: south": 0, "town: north": 1, "town: tiny": 1}
    for values in (targets, predicted):  # one that is not there counts nowhere: not as an F1 of 0
        values[np.asarray(data.test.features["town"][:]) == "north", 1] = 0
    found = told(slices_of(answers, data, EvaluateSettings(slices=["town"])))
    assert found.macro_f1["town: north"] == 1
    assert found["vs the rest"]["town: north"] == "better"


def test_a_column_that_is_not_used_is_refused(frame: pd.DataFrame, tmp_path: Path) -> None:
    assert check_slices(loaded(tmp_path, frame, "kind"), ["size (m)"]) == {"size (m)": "size__m_"}
    with pytest.raises(UserError, match=r"evaluate.slices=price: table.csv has no number, date or category .*town"):
        check_slices(loaded(tmp_path, frame, "kind"), ["price"])
    with pytest.raises(UserError, match=r"a data set with such columns.*evaluate\.slices=\[\]"):
        check_slices(real_digits(), ["label"])
