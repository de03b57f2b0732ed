"""Regression in everything that compares runs: a sweep with its table and page, and a comparison with another run."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from pipeline.sweep.index import compare, latest
from stages.evaluation.predictions import read_columns
from tests import commands
from tests.pipeline.experiments import BARE, last

pytestmark = pytest.mark.slow


def run(outputs: Path, *words: str) -> str:
    """Train on a table of numbers; return the printed text."""
    load_diabetes(as_frame=True).frame.to_csv(outputs / "diabetes.csv", index=False)
    given = ("data=table", f"data.files={outputs}/diabetes.csv", "data.target=target", "evaluate.baseline=false")
    words = (*words, *given, *BARE, "train.monitor=val_rmse", "tracking=off", f"outputs={outputs}")
    return commands.succeed(*words).stdout


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a sweep, and the printed text."""
    outputs = tmp_path_factory.mktemp("outputs")
    printed = run(outputs, "-m", "train.epochs=1,4")
    return latest(outputs), printed


def test_a_sweep_of_numbers_is_compared_by_rmse(sweep: tuple[Path, str]) -> None:
    folder, printed = sweep
    assert "val rmse" in printed
    assert "accuracy" not in printed
    comparison = compare(folder)
    means = [row.mean("val/best_rmse") or 0.0 for row in comparison.rows]
    assert comparison.choice.metric == "val/best_rmse"
    assert comparison.choice.best is not None
    assert comparison.choice.best.mean("val/best_rmse") == min(means)
    found = comparison.differences[comparison.rows[1]]
    assert found.low < found.high
    [first], [second] = ([_rmse(run.summary.folder) for run in row.runs] for row in comparison.rows)
    assert found.difference == pytest.approx(second - first, rel=1e-9, abs=1e-9)
    assert [row.mean("test/rmse") for row in comparison.rows] == pytest.approx([first, second])
    with (folder / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"test/rmse", "difference", "difference_low", "difference_high"} <= rows[0].keys()
    for text in ("| test RMSE |", "rows/s", "lower is better"):
        assert text in (folder / "comparison.md").read_text()
    assert "test RMSE vs baseline" in (folder / "comparison.html").read_text()


def _rmse(folder: Path) -> float:
    columns = read_columns(folder / "predictions.parquet")
    return float(np.sqrt(np.mean(np.square(columns["prediction"].astype(float) - columns["target"]))))


def test_a_run_is_compared_with_another_by_rmse(sweep: tuple[Path, str], tmp_path: Path) -> None:
    [other, _] = sorted(path.parent for path in sweep[0].glob("*/summary.json"))
    printed = run(tmp_path, "train.epochs=20", "optimizer.learning_rate=0.03", f"evaluate.against='{other}'")
    difference = last(tmp_path).facts.others["against"]["rmse"]
    assert difference["low"] < difference["difference"] < difference["high"]
    assert f"rmse {difference['difference']:+.4g}".replace("-", "\N{MINUS SIGN}") in printed
    assert "example differ by" in " ".join(printed.split())
