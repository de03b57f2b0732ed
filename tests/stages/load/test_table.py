"""Tables as data sets: the task, the splits, and errors for targets that cannot be learned."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from pipeline.internals.hydra import parse
from stages.errors import UserError
from stages.load.table import _whole_groups, table
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.table import TableSettings
from stages.tasks.classification import ClassTargets
from stages.tasks.multi_label import LabelTargets
from stages.tasks.regression import NumberTargets
from tests.conftest import shared
from tests.stages.images import Telling

ROWS = 400
RANDOM = np.random.default_rng(7)
COLUMNS: dict[str, Any] = {
    "size": RANDOM.normal(100, 20, ROWS).round(3), "area (m²)": RANDOM.normal(5, 2, ROWS).round(3),
    "color": RANDOM.choice(["red", "blue", "green"], ROWS),
    "shop": [f"s{number}" for number in RANDOM.integers(0, 60, ROWS)],
    "patient": [f"p{number}" for number in RANDOM.integers(0, 40, ROWS)],
    "day": [f"2024-{row % 12 + 1:02}-{row % 28 + 1:02}" for row in range(ROWS)],
    "part": RANDOM.choice(["train", "Validation", "test"], ROWS), "weight": RANDOM.random(ROWS).round(3),
    "grade": RANDOM.integers(1, 5, ROWS), "price": RANDOM.normal(1000, 200, ROWS).round(2),
    "rent": RANDOM.normal(10, 2, ROWS).round(3),
}  # fmt: skip

Load = Callable[..., Dataset]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that loads a table of COLUMNS, some of which may be replaced."""

    def make(
        target: Any = "price",
        replaced: dict[str, Any] | None = None,
        cache: Path | None = None,
        reporter: Telling | None = None,
        **given: Any,
    ) -> Dataset:
        columns = {**COLUMNS, **(replaced or {})}
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        path = tmp_path / "table.csv"
        if not path.exists():
            path.write_text("\n".join(lines) + "\n")
        settings = TableSettings(files=str(path), target=target, **given)
        settings.check("data")
        return table(settings, reporter, tmp_path, cache)

    return make


def numbers(dataset: Dataset) -> dict[str, set[int]]:
    """Return the row numbers of each split in the file."""
    return {name: {*np.asarray(split.numbers).tolist()} for name, split in dataset.splits.items()}


def column(dataset: Dataset, name: str, split: str) -> np.ndarray:
    """Return the values of a column in the file for the rows of a split."""
    return np.array(COLUMNS[name])[dataset.splits[split].numbers]


def test_features_are_the_columns_of_the_file(load: Load) -> None:
    dataset = load()
    assert dataset.features["area__m__"].column == "area (m²)"
    assert dataset.features["day"].kind == "date"
    for split in ("train", "val", "test"):
        features = dataset.splits[split].features
        np.testing.assert_array_equal(features["area__m__"][:], column(dataset, "area (m²)", split))
        assert features["shop"][:].tolist() == column(dataset, "shop", split).tolist()
        np.testing.assert_array_equal(features["grade"][:], column(dataset, "grade", split))
    rows = [row for part in numbers(dataset).values() for row in part]
    assert sorted(rows) == list(range(ROWS))


@pytest.mark.parametrize(
    ("target", "task"),
    [("price", NumberTargets), (["price", "rent"], NumberTargets), ("color", ClassTargets), ("grade", ClassTargets)],
)
def test_the_task_follows_from_the_target(load: Load, target: Any, task: type) -> None:
    dataset = load(target)
    assert isinstance(dataset.task.targets, task)
    names = [target] if isinstance(target, str) else target
    for split in ("train", "test"):
        targets = np.asarray(dataset.splits[split].targets)
        if task is NumberTargets:
            expected = np.stack([column(dataset, name, split) for name in names], axis=1)
            np.testing.assert_array_equal(targets, expected.astype(np.float32))
        else:
            classes = np.array(dataset.task.names)[targets].tolist()
            assert classes == [str(value) for value in column(dataset, target, split)]
    if isinstance(dataset.task.targets, NumberTargets):
        np.testing.assert_allclose(dataset.task.targets.mean, dataset.train.target_values.astype(float).mean(axis=0))
    assert not set(names) & set(dataset.features)


def test_several_columns_of_0_and_1_are_labels(load: Load) -> None:
    hot = RANDOM.integers(0, 2, ROWS)
    wet = RANDOM.choice(["Yes", "No"], ROWS)
    labels = {"hot": hot, "wet": wet, "old": hot[::-1].astype(float), "dry": ["no"] * ROWS, "all": [1] * ROWS}
    telling = Telling()
    dataset = load([*labels], labels, reporter=telling)
    assert isinstance(dataset.task.targets, LabelTargets)
    assert "hot, wet, old, dry, all are 0 or 1: task=multi_label" in telling.lines[0]
    expected = np.stack([hot, wet == "Yes", hot[::-1], 0 * hot, 0 * hot + 1], axis=1)[dataset.train.numbers]
    np.testing.assert_array_equal(dataset.train.targets, expected)
    assert dataset.train.targets.dtype == np.int32
    declared = {"hot": "number", "old": "number"}
    assert isinstance(load(["hot", "old"], labels, features=declared).task.targets, NumberTargets)


def test_kinds_can_be_declared(load: Load, tmp_path: Path) -> None:
    dataset = load("grade", features={"grade": "number", "shop": "leave_out", "size": "category"})
    assert isinstance(dataset.task.targets, NumberTargets)
    assert "shop" not in dataset.features
    assert dataset.features["size"].kind == "category"
    assert list(load(features=["size", "color"]).features) == ["size", "color"]
    trained_on = np.asarray(load(features={"size": "category"}).train.features["size"])
    [size] = [row for row in (tmp_path / "data" / "columns.csv").read_text().splitlines() if row.startswith("size,")]
    assert size.split(",")[4:6] == [str(len({*trained_on.tolist()})), "0"]


def test_splits_have_a_proportionate_part_of_each_class_or_quantile(load: Load) -> None:
    shares = [np.bincount(split.target_values) / len(split) for split in load("color").splits.values()]
    np.testing.assert_allclose(shares[1:], [shares[0]] * 2, atol=0.03)
    means = [np.mean(split.target_values) for split in load("price").splits.values()]
    np.testing.assert_allclose(means, np.mean(means), rtol=0.05)


def test_a_column_may_define_the_splits(load: Load) -> None:
    dataset = load(split_column="part")
    for split, value in (("train", "train"), ("val", "Validation"), ("test", "test")):
        assert numbers(dataset)[split] == set(np.flatnonzero(COLUMNS["part"] == value))
    assert "part" not in dataset.features


@pytest.mark.parametrize("cache", [False, True])
def test_files_may_be_given_by_split(tmp_path: Path, cache: bool) -> None:
    parts = {"train": ["a", "b"], "test": ["c"]}
    for place, name in enumerate("abc"):
        rows = [f"{place * 100 + row},{row * 0.7}" for row in range(100)] + ["n/k,1"] * (name == "a")
        (tmp_path / f"{name}.csv").write_text("\n".join(["size,price", *rows]))
    files = {split: [str(tmp_path / f"{name}.csv") for name in names] for split, names in parts.items()}
    settings = TableSettings(files=files, target="price", on_error="skip", memory_gib=0.0 if cache else None)
    settings.check("data")
    dataset = table(settings, None, None, tmp_path / "cache" if cache else None)
    sizes = {name: {*np.asarray(split.features["size"][:]).astype(int)} for name, split in dataset.splits.items()}
    assert (sizes["test"], sizes["train"] | sizes["val"]) == ({*range(200, 300)}, {*range(200)})
    assert len(sizes["val"]) == 21  # of 201, as a row that cannot be used does not change the cut


def test_files_of_splits_must_be_complete_and_belong_to_one_split(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("size,price\n1,2\n")
    first, second = (str(tmp_path / name) for name in ("a.csv", "b.csv"))
    errors: list[tuple[Any, Any, str]] = [
        ({"test": second}, {}, "has the splits test. Expected train, and optionally val and test"),
        ({"train": first, "dev": second}, {}, "has the splits train, dev"),
        ({"train": first, "test": str(tmp_path / "*.csv")}, {}, "a.csv in two splits"),
        ({"train": first, "test": []}, {}, "a file, or a list of files"),
        (
            {"train": first, "test": second},
            {"split_column": "size"},
            "split_column is set, but data.files already has one entry per split",
        ),
    ]
    for files, given, message in errors:
        with pytest.raises(UserError, match=re.escape(message)):
            TableSettings(files=files, target="price", **given).check("data")


def test_rows_of_a_group_stay_together(load: Load) -> None:
    dataset = load(group="patient")
    groups = [{*column(dataset, "patient", split)} for split in dataset.splits]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
    assert [len(split) for split in dataset.splits.values()] == pytest.approx([288, 32, 80], abs=12)
    few = np.repeat(range(5), 4)
    assert {few[_whole_groups(few, 0.1, seed)].mean() for seed in range(40)} == {0, 1, 2, 3, 4}
    assert not _whole_groups(few, 0.99, 0).all()


def test_the_last_rows_by_time_are_the_test_split(load: Load, tmp_path: Path) -> None:
    dataset = load(time="day")
    days = [sorted(column(dataset, "day", split)) for split in ("train", "val", "test")]
    assert days[0][-1] < days[1][0]  # about five rows have a day, and no two splits have the same
    assert days[1][-1] < days[2][0]
    assert abs(len(dataset.test) - 80) <= 3
    (tmp_path / "table.csv").unlink()
    same = load(time="day", replaced={"day": ["2023-12-31", *["2024-01-01"] * (ROWS - 1)]})
    assert len(same.test) == 80


def test_each_row_has_its_weight(load: Load) -> None:
    dataset = load(weight="weight")
    np.testing.assert_array_equal(dataset.val.weights, column(dataset, "weight", "val"))


def test_a_table_on_the_disk_equals_the_one_in_memory(load: Load, tmp_path: Path) -> None:
    settings, given = NormalizeSettings(), {"replaced": replaced("size", 3, "large"), "on_error": "skip"}
    in_memory = normalize(load(**given), settings)
    for _ in range(2):  # converted, then found
        loaded = load(**given, cache=tmp_path / "cache", memory_gib=0.0)
        on_disk = normalize(loaded, settings, cache=tmp_path / "cache")
        assert not isinstance(on_disk.train.inputs["numbers"], np.ndarray)
        rows = np.array([5, 0, 5, 17])
        for split in ("train", "val", "test"):
            ours, theirs = on_disk.splits[split], in_memory.splits[split]
            for columns, others in ((ours.features, theirs.features), (ours.inputs, theirs.inputs)):
                for name, values in columns.items():
                    np.testing.assert_array_equal(values[rows], others[name][rows])
            np.testing.assert_array_equal(ours.targets, theirs.targets)
            np.testing.assert_array_equal(ours.described.digests, theirs.described.digests)


def test_the_fingerprint_follows_values_targets_and_splits(load: Load, tmp_path: Path) -> None:
    found = [load().fingerprint, load("rent").fingerprint, load(split_seed=1).fingerprint]
    (tmp_path / "table.csv").unlink()
    found.append(load(replaced={"size": COLUMNS["size"] + 1}).fingerprint)
    (tmp_path / "table.csv").unlink()
    assert (load().fingerprint, len({*found})) == (found[0], 4)


def test_rows_that_cannot_be_used_are_left_out_and_listed(load: Load, tmp_path: Path) -> None:
    size, price = [*map(str, COLUMNS["size"])], [*map(str, COLUMNS["price"])]
    size[3], price[5], price[7] = "large", "", "inf"
    dataset = load(replaced={"size": size, "price": price}, on_error="skip")
    assert not {3, 5, 7} & {row for part in numbers(dataset).values() for row in part}
    assert sum(map(len, dataset.splits.values())) == ROWS - 3
    lines = (tmp_path / "data" / "skipped.csv").read_text().splitlines()
    assert lines[1:] == [
        "\"table.csv row 4, column size\",'large' is not a number",
        '"table.csv row 6, column price",the value is missing',
        "\"table.csv row 8, column price\",'inf' is infinite",
    ]
    (tmp_path / "table.csv").unlink()
    of_color = load("color", replaced=replaced("color", 3, ""), on_error="skip")
    assert of_color.task.names == tuple(sorted({*COLUMNS["color"]}))  # without a class for the missing value


def replaced(name: str, row: int, value: str) -> dict[str, Any]:
    values = [*map(str, COLUMNS[name])]
    values[row] = value
    return {name: values}


@pytest.mark.parametrize(("columns", "settings", "message"), [
    ({"price": [5] * ROWS}, {}, "cannot be used as the target (only one value)"),
    ({"price": [5.5] * ROWS}, {}, "data.target=price is 5.5 in all rows"),
    (replaced("price", 4, "cheap"), {}, "table.csv row 5, column price: 'cheap' is not a number"),
    ({"price": [""] * ROWS}, {}, "cannot be used as the target (no values)"),
    ({}, {"features": {"price": "leave_out"}}, "data.target=price is left out by data.features"),
    ({"price": [f"n{row}" for row in range(ROWS)]}, {}, "cannot be used as the target (an identifier, 400 different"),
    ({}, {"target": ["price", "color"]}, "color is blue in row"),
    ({"hot": np.arange(ROWS) % 2, "old": np.arange(ROWS) % 3}, {"target": ["hot", "old"]}, "old is 2 in row 3, which"),
    (replaced("weight", 4, "-0.5"), {"weight": "weight"}, "weights are float64 "),
    (replaced("part", 4, "other"), {"split_column": "part"}, "row 5, column part is other"),
    ({"part": ["val", "test"] * (ROWS // 2)}, {"split_column": "part"}, "has no train rows that"),
    (
        {"price": ["" if part == "test" else row / 7 for row, part in enumerate(COLUMNS["part"])]},
        {"split_column": "part", "on_error": "skip"},
        "has no test rows that can be used",
    ),
    ({}, {"split_column": "part", "group": "patient"}, "is in the splits"),
    (replaced("day", 4, "5.5.2024"), {"time": "day"}, "row 5, column day: '5.5.2024' is not a date"),
    ({}, {"features": ["rent"], "target": "rent"}, "has no features"),
    ({"price": [1.7e9 + row / 7 for row in range(ROWS)]}, {}, "data.target=price loses up to"),
    (replaced("price", 4, "1e300"), {}, "train target price is inf in row 4"),
    ({"price": ["n/k" if row % 3 == 2 else row / 7 for row in range(ROWS)]}, {}, "is 'n/k', but 267 of"),
    ({"size": ["?" if row % 3 else row / 7 for row in range(ROWS)]}, {}, "row 2, column size is '?', but"),
    ({"weight": [0] * ROWS}, {"weight": "weight"}, "train weights are float64"),
    ({"patient": ["p"] * ROWS}, {"group": "patient"}, "data.group=patient has too few groups"),
    ({"price": [f"${row + 900}" for row in range(ROWS)]}, {}, "row 1, column price is '$900', but 0 of"),
    ({"color": ["red"] * (ROWS - 1) + ["blue"]}, {"target": "color"}, "class blue has 1"),
])  # fmt: skip
def test_unusable_tables_are_refused(
    load: Load, columns: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load(replaced=columns, **settings)


@pytest.mark.parametrize(("columns", "settings"), [
    *(
        ({column: [f'"{written.format(row + 990.5)}"' for row in range(ROWS)]}, {"features": {"shop": "leave_out"}})
        for column in ("cost (a: b)", "price")
        for written in ("${}", "{} kg/m²", "{:,.0f}", "${:,.0f}", "{} %", "EUR {}")
    ),
    ({}, {"features": {"size": "numbr", "shop": "leave_out"}}),
    ({}, {"target": ["price", "color"], "features": {"shop": "leave_out"}}),
    (
        {"hot": np.arange(ROWS) % 2, "old": np.arange(ROWS) % 3},
        {"target": ["hot", "old"], "features": {"shop": "leave_out"}},
    ),
    (
        {"said": [f"row {row} of the table" for row in range(ROWS)]},
        {"features": dict.fromkeys([*COLUMNS][:-2], "leave_out") | {"rent": "leave_out"}},
    ),
])  # fmt: skip
def test_the_suggestion_of_an_error_works_and_keeps_declared_kinds(
    load: Load, columns: dict[str, Any], settings: dict[str, Any]
) -> None:
    with pytest.raises(UserError) as refused:
        load(replaced=columns, **settings)
    given: Any = OmegaConf.create({"data": settings})
    for word in shlex.split(refused.value.fix):
        typed = parse(word)
        OmegaConf.update(given, typed.key_or_group, typed.value(), merge=True, force_add=typed.is_force_add())
    assert "shop" not in load(replaced=columns, **dict(given.data)).features


SPLIT_BY: dict[str, dict[str, Any]] = {
    "by chance": {}, "by column": {"split_column": "part"}, "by group": {"group": "patient"}, "by time": {"time": "day"}
}  # fmt: skip
POISON: dict[str, list[Any]] = {
    "size": ["", "large", "1e30", "-1", "$5"], "grade": ["", "7", "x", "1.5", "3000000000000000000000"],
    "color": ["", "pink", "5", "é" * 300], "shop": ["new", "", "0"], "even": ["5", "", "7.5"], "same": ["1", "", "z"],
    "number": ["20.5", "11", "", "text"], "day": ["", "1"], "code": ["00012", "5.5", "x"], "note": ["", "5"],
}  # fmt: skip


@pytest.mark.parametrize("given", SPLIT_BY.values(), ids=[*SPLIT_BY])
def test_values_of_other_splits_do_not_change_the_training_data(
    load: Load, tmp_path: Path, given: dict[str, Any]
) -> None:
    """Kinds are detected in the training rows; another row that does not fit them is refused or left out."""
    shared = {
        "even": RANDOM.integers(0, 2, ROWS) * 2, "same": [3] * ROWS, "number": RANDOM.integers(1, 11, ROWS),
        "code": RANDOM.integers(100, 999, ROWS), "note": [f"a note on row {row}" for row in range(ROWS)],
    }  # fmt: skip
    clean = load(replaced=shared, **given)
    rows = [int(row) for split in ("val", "test") for row in np.asarray(clean.splits[split].numbers)[:: len(POISON)]]
    for turn in range(5):
        poisoned: dict[str, Any] = shared | {name: [*map(str, (COLUMNS | shared)[name])] for name in POISON}
        for place, (name, values) in enumerate(POISON.items()):
            for first in (0, len(POISON)) if given.get("time") != name else ():
                poisoned[name][rows[(first + place) % len(rows)]] = values[turn % len(values)]
        (tmp_path / "table.csv").unlink()
        dataset = load(replaced=poisoned, **given, on_error="skip")
        assert dataset.features == clean.features
        for name, column in clean.train.features.items():
            np.testing.assert_array_equal(dataset.train.features[name][:], column[:])
        np.testing.assert_array_equal(dataset.train.targets, clean.train.targets)
        with pytest.raises(UserError, match=rf"row ({'|'.join(str(row + 1) for row in rows)}), column"):
            load(replaced=poisoned, **given)


def test_targets_of_another_split_do_not_change_the_task(load: Load, tmp_path: Path) -> None:
    for target, value in ("grade", "7"), ("grade", "1.5"), ("color", "pink"), ("hot", "2"), ("price", "cheap"):
        replaced = {name: [*map(str, COLUMNS[name])] for name in ("grade", "color", "price")}
        replaced["hot"], replaced["wet"] = ([str(row % base % 2) for row in range(ROWS)] for base in (7, 5))
        row = int(np.flatnonzero(COLUMNS["part"] == "test")[2])
        replaced[target][row] = value
        (tmp_path / "table.csv").unlink(missing_ok=True)
        with pytest.raises(UserError, match=rf"{value} in row {row + 1},|row {row + 1}, column {target}.*{value}"):
            load(["hot", "wet"] if target == "hot" else target, replaced, split_column="part")


def test_real_tables() -> None:
    found = {}
    for name, target in (("diamonds", "price"), ("penguins", "species"), ("titanic", "survived")):
        loaded = table(TableSettings(files=str(shared("tables", f"{name}.csv")), target=target))
        [inputs] = normalize(loaded, NormalizeSettings()).train.inputs.values()
        found[name] = (type(loaded.task.targets), sum(map(len, loaded.splits.values())), inputs.shape[1])
    expected = [(NumberTargets, 53_940, 26), (ClassTargets, 344, 14), (ClassTargets, 891, 49)]
    assert found == dict(zip(("diamonds", "penguins", "titanic"), expected, strict=True))
