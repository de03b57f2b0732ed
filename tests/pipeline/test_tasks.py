"""Numbers through everything that compares runs: a sweep, its table and page, the registry, a search."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from pipeline.sweep.index import compare
from stages.evaluation.predictions import read_columns
from tests import commands
from tests.pipeline.experiments import BARE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "diabetes.csv"
    load_diabetes(as_frame=True).frame.to_csv(path, index=False)
    return path


def test_a_sweep_of_numbers_is_compared_by_rmse(diabetes: Path, tmp_path: Path) -> None:
    done = commands.run(
        "-m",
        "data=table",
        f"data.files={diabetes}",
        "data.target=target",
        "strategy=one_device,mirrored",
        "seed=1,2",
        "optimizer.learning_rate=0.01",
        "train.epochs=4",
        "train.monitor=val_rmse",
        "evaluate.baseline=false",
        *BARE,
        "tracking=off",
        f"outputs={tmp_path}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "val rmse" in done.stdout
    assert "accuracy" not in done.stdout
    [folder] = (tmp_path / "sweeps").iterdir()
    comparison = compare(folder)
    means = [row.mean("val/best_rmse") or 0.0 for row in comparison.rows]
    assert comparison.choice.metric == "val/best_rmse"
    assert comparison.choice.best is not None
    assert comparison.choice.best.mean("val/best_rmse") == min(means)
    found = comparison.differences[comparison.rows[1]]
    assert found.low < found.high
    first, second = (
        np.mean([_rmse(Path(run.summary.folder) / "predictions.parquet") for run in row.runs])
        for row in comparison.rows
    )
    assert found.difference == pytest.approx(second - first, rel=1e-9, abs=1e-9)
    assert [row.mean("test/rmse") for row in comparison.rows] == pytest.approx([first, second])
    with (folder / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"test/rmse", "difference", "difference_low", "difference_high"} <= rows[0].keys()
    text = (folder / "comparison.md").read_text()
    assert "| test rmse |" in text
    assert "rows/s" in text
    assert "lower is better" in text
    page = (folder / "comparison.html").read_text()
    assert "test rmse − baseline" in page


def _rmse(path: Path) -> float:
    columns = read_columns(path)
    return float(np.sqrt(np.mean(np.square(columns["prediction"].astype(float) - columns["target"]))))


def test_a_run_is_compared_with_another_by_rmse(diabetes: Path, tmp_path: Path) -> None:
    words = ["data=table", f"data.files={diabetes}", "data.target=target", "evaluate.baseline=false", *BARE]
    for name, more in (("first", ["train.epochs=1"]), ("second", ["train.epochs=20", "optimizer.learning_rate=0.03"])):
        done = commands.run(*words, f"name={name}", *more, "tracking=off", f"outputs={tmp_path}")
        assert done.returncode == 0, done.stdout + done.stderr
        [folder] = tmp_path.glob(f"runs/{name}/*")
        words.append(f"evaluate.against={folder}")
    facts = json.loads((folder / "summary.json").read_text())["facts"]
    difference = facts["against"]["rmse"]
    assert difference["high"] < 0
    assert f"rmse {difference['difference']:+.4g}".replace("-", "\N{MINUS SIGN}") in done.stdout
    assert "predictions differ by" in done.stdout
