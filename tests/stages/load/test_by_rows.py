"""Settings by the number of rows: how rows are counted, and what follows from them."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.settings import by_rows
from stages.settings.by_rows import UNKNOWN_ROWS, has_columns, settings_by_rows, training_rows


def table(folder: Path, name: str, rows: int) -> Path:
    frame = pd.DataFrame({"a": range(rows), "b": [f"word {row}" for row in range(rows)]})
    path = folder / name
    if name.endswith(".parquet"):
        frame.to_parquet(path)
    elif name.endswith(".feather"):
        frame.to_feather(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.parquet", "a.feather"])
def test_rows_of_every_format_are_counted(name: str, tmp_path: Path) -> None:
    path = table(tmp_path, name, 1000)
    assert training_rows({"files": str(path), "val_fraction": 0.1, "test_fraction": 0.2}) == 720
    assert training_rows({"files": [str(path)], "val_fraction": 0.0, "test_fraction": 0.0}) == 1000


def test_the_last_line_may_lack_its_end_and_files_may_be_given_by_split(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4")
    (tmp_path / "b.csv").write_text("a,b\n" + "1,2\n" * 30)
    files = {"train": [str(tmp_path / "?.csv")], "test": str(tmp_path / "a.csv")}
    assert training_rows({"files": files, "val_fraction": 0.5, "test_fraction": 0.9}) == 16
    assert training_rows({"files": str(tmp_path / "none.csv")}) == training_rows({}) == UNKNOWN_ROWS


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_rows_of_a_large_file_are_estimated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the part of the file that was read; lines are alike, as in most tables."""
    path, numbers = tmp_path / name, np.random.default_rng(0).normal(size=(300_000, 2))
    lines = "".join(f"{a:.5f},{b:.5f}\n" for a, b in numbers.tolist())
    content = f"a,b\n{lines}".encode()
    path.write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    monkeypatch.setattr(by_rows, "COUNTED", 2**21)
    by_rows._rows.cache_clear()
    assert training_rows({"files": str(path)}) == pytest.approx(300_000, rel=0.03)


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs"),
    [
        (1, 1, 100),
        (17, 16, 100),
        (640, 32, 100),
        (5_070, 64, 25),
        (14_860, 256, 34),
        (38_836, 256, 13),
        (10_000_000, 256, 10),
    ],
)
def test_batches_grow_with_the_table_and_about_as_many_steps_are_taken(
    rows: int, batch_size: int, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_rows, "training_rows", lambda data: rows)
    found = settings_by_rows({})
    assert (found["batch_size"], found["epochs"], found["calibrate"]) == (batch_size, epochs, True)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (None, True),
        (["b"], True),
        ({"a": "category"}, True),
        ({"b": "text"}, False),  # the only feature, as `a` is the target
        ({"b": "image"}, False),
        ({"b": "text", "c": "number"}, False),
    ],
)
def test_a_table_of_texts_or_images_keeps_the_settings_of_these(features: Any, expected: bool, tmp_path: Path) -> None:
    data = {"files": str(table(tmp_path, "a.csv", 10)), "target": "a", "features": features}
    assert has_columns(data) == expected
    assert settings_by_rows(data)["learning_rate"] == (0.003 if expected else 0.002)
    assert has_columns({**data, "target": "none", "features": {"b": "text"}})
