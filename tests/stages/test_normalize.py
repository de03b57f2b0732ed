"""What a trained network keeps of its own data when it meets other data: scale of targets, classes, categories."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.data.split import Split
from stages.errors import UserError
from stages.evaluate import evaluate
from stages.features.categories import CategoryFeature
from stages.features.encoder import encoding
from stages.features.kinds import NO_NUMBER
from stages.load.table import table as load_table
from stages.networks.rescaling import FACTS, restore_scaling, save_scaling
from stages.normalize import normalize, with_kinds
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.results import EvaluateSettings
from stages.settings.table import TableSettings
from tests.stages.evaluation.test_importance import fitted
from tests.stages.experiments import REUSE, kept, one_device, real_digits, table_of

ROWS = 400


def table(folder: Path, seed: int, target: str = "price", **columns: Any) -> Dataset:
    """Return a table of one number and `columns`, whose price is about twice the number."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({"size": random.normal(size=ROWS), **columns})
    frame["price"] = frame.get("price", 2 * frame["size"] + 0.1 * random.normal(size=ROWS))
    return table_of(folder, frame, target=target)


def test_targets_of_another_scale_are_answered_in_the_units_of_the_training(tmp_path: Path) -> None:
    data = normalize(table(tmp_path / "one", 1), NormalizeSettings())
    raw = table(tmp_path / "two", 2, price=100 + 50 * np.random.default_rng(3).normal(size=ROWS))
    other = kept(data, raw, tmp_path)
    trained = fitted(data)
    trained = replace(trained, model=replace(trained.model, task=other.task))
    found = evaluate(trained, other, one_device(), EvaluateSettings(baseline=False, importance=False))
    task: Any = data.task
    outputs = trained.model.network.predict(np.asarray(other.test.inputs["numbers"]), verbose=0)
    errors = outputs * task.targets.std + task.targets.mean - np.asarray(raw.test.targets)
    np.testing.assert_allclose(found.record.metrics["test/rmse"], np.sqrt(np.mean(errors**2)), rtol=1e-5)


def test_classes_are_those_of_the_training_by_their_names(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    colors = random.choice(["red", "blue", "green"], ROWS)
    data = normalize(table(tmp_path / "one", 1, "color", color=colors), NormalizeSettings())
    raw = table(tmp_path / "two", 2, "color", color=np.where(colors == "blue", "red", colors))
    other = kept(data, raw, tmp_path)
    assert other.task.names == ("blue", "green", "red") != raw.task.names
    for name, split in other.splits.items():
        before = np.array(raw.task.names)[raw.splits[name].target_values]
        np.testing.assert_array_equal(np.array(other.task.names)[split.target_values], before)
    unknown = table(tmp_path / "three", 2, "color", color=np.where(colors == "blue", "pink", colors))
    assert kept(data, unknown, tmp_path).task.names == unknown.task.names  # which the weights refuse


def test_features_are_changed_before_they_are_encoded_or_not_at_all(tmp_path: Path) -> None:
    def zero(split: Split) -> Split:
        return replace(split, features={name: np.zeros(len(split)) for name in split.features})

    raw = table(tmp_path / "one", 1)
    changed = raw.with_each_split(zero)
    assert changed.train.described.digests.tolist() != raw.train.described.digests.tolist()
    assert not np.asarray(normalize(changed, NormalizeSettings()).train.inputs["numbers"]).any()
    with pytest.raises(UserError, match=r"a stage after `normalize` changes features that are .* before `normalize`"):
        normalize(raw, NormalizeSettings()).with_each_split(zero)


def test_classes_are_no_numbers(tmp_path: Path) -> None:
    data = normalize(table(tmp_path / "one", 1), NormalizeSettings())
    other = table(tmp_path / "two", 2, price=np.arange(ROWS) % 3)
    with pytest.raises(UserError, match=r"target for task=classification, but .*features=\{price: number\}"):
        kept(data, other, tmp_path)


@pytest.mark.parametrize("missing", ["in training", "in the other data"])
def test_whole_numbers_are_one_category_whether_some_are_missing_or_not(tmp_path: Path, missing: str) -> None:
    rooms = pd.Series(np.random.default_rng(1).integers(1, 5, ROWS), dtype="Int64")
    some = rooms.where(np.arange(ROWS) % 7 > 0)
    first, second = (some, rooms) if missing == "in training" else (rooms, some)
    data = normalize(table(tmp_path / "one", 1, rooms=first), NormalizeSettings())
    raw = table(tmp_path / "two", 2, rooms=second, further=np.arange(ROWS) / 7)
    assert raw.features["rooms"].dtype != data.features["rooms"].dtype
    REUSE.save(data, tmp_path)
    declared = {"rooms": "category"} if missing == "in training" else None
    settings = TableSettings(files=str(tmp_path / "two" / "table.csv"), target="price", features=declared)
    other = REUSE.restore(tmp_path, load_table(with_kinds(settings, tmp_path)))
    feature = data.features["rooms"]
    assert isinstance(feature, CategoryFeature)
    values = feature.values or ()
    place = list(other.features).index("rooms")
    for split in other.splits.values():
        given = second.astype("string").fillna("").to_numpy()[split.numbers]
        expected = np.array([[text == str(value) for value in values] for text in given])
        np.testing.assert_array_equal(np.asarray(split.inputs["numbers"])[:, place : place + len(values)], expected)


def test_a_table_is_read_by_the_kinds_and_classes_of_the_training(tmp_path: Path) -> None:
    """Whatever would be found in it: few values, one value, none, blanks among whole numbers; a class alone."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame({name: random.normal(size=ROWS) for name in ("size", "age")})
    frame["shop"], frame["color"] = random.choice(["a", "b"], ROWS), random.choice(["red", "blue"], ROWS)
    frame["rooms"] = random.integers(1, 4, ROWS)
    data = normalize(table_of(tmp_path, frame, target="color"), NormalizeSettings())
    (tmp_path / "saved").mkdir()
    REUSE.save(data, tmp_path / "saved")
    other = frame[:40].assign(size=np.arange(40) % 2, age=None, shop="b", rooms=[None, 2] * 20, color="red")
    other.assign(fee=[f"$ {row},5" for row in range(40)]).to_csv(tmp_path / "other.csv", index=False)
    settings = with_kinds(TableSettings(files=str(tmp_path / "other.csv"), target="color"), tmp_path / "saved")
    found = REUSE.restore(tmp_path / "saved", load_table(settings))
    raw = {"size": other["size"].to_numpy(float), "age": np.full(40, np.nan), "shop": np.full(40, "b", object)}
    raw["rooms"] = np.array([NO_NUMBER, 2] * 20)
    assert data.encoder is not None
    expected = encoding(data.encoder)(raw, slice(None))["numbers"]
    for split in found.splits.values():
        np.testing.assert_array_equal(split.inputs["numbers"], expected[split.numbers])
        assert {found.task.names[label] for label in split.targets} == {"red"}


def test_columns_that_differ_are_named_at_once(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).normal(size=ROWS)
    data = normalize(table(tmp_path / "one", 1, area=numbers, age=numbers), NormalizeSettings())
    other = table(tmp_path / "two", 2, area=np.arange(ROWS) % 4)
    with pytest.raises(UserError, match=r"area is category \(int64\), age is missing.*features=\{area: number\}"):
        kept(data, other, tmp_path)


def test_scaling_that_earlier_code_has_written_is_read(tmp_path: Path) -> None:
    """It had one scaling, and stood beside checksums."""
    dataset = normalize(real_digits(), NormalizeSettings())
    save_scaling(dataset, tmp_path)
    facts = json.loads((tmp_path / FACTS).read_text())["scalings"]["images"]
    (tmp_path / FACTS).write_text(json.dumps({"facts": facts, "files": {}, "checksum": "0"}))
    assert restore_scaling(tmp_path, real_digits()).scalings == dataset.scalings
