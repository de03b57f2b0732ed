"""The summary says of which epoch a number is, and where the time went."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.comparison.frame import columns_of
from pipeline.comparison.report import write
from pipeline.config.schemas import TopSettings
from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.run.facts import show_summary, show_times
from pipeline.run.launch import run_job
from pipeline.run_folder.summary import StageOutcome, Summary
from pipeline.sweep.index import compare, write_index
from stages.errors import UserError
from stages.settings.ranges import check
from tests.pipeline.experiments import BARE, QUICK, experiment

pytestmark = pytest.mark.slow

METRICS = {
    "train/best_epoch": 22.0, "train/last_epoch": 30.0, "train/weights_epoch": 22.0,
    "val/best_accuracy": 0.98, "val/best_loss": 0.012, "val/accuracy": 0.97, "val/loss": 0.02,
    "test/accuracy": 0.96, "test/loss": 0.05, "train/features_per_second": 12345.0, "train/step_milliseconds": 2.0,
}  # fmt: skip


def summary(folder: Path, **changes: Any) -> Summary:
    weights = {"epoch": 22, "selection": "best", "monitor": "val_loss", "ema": False}
    return Summary(
        "abc", "FINISHED", "x", str(folder), {}, metrics=dict(METRICS), replicas=1, weights=weights, **changes
    )


def test_the_console_says_of_which_epoch_each_number_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = summary(tmp_path)
    show_summary(made, None, Console())
    printed = " ".join(capsys.readouterr().out.split())
    assert "best epoch 22 (by val_loss): val accuracy 0.9800, loss 0.0120; test and export have its weights " in printed
    assert "last epoch 30: val accuracy 0.9700, loss 0.0200 test accuracy 0.9600, loss 0.0500 " in printed
    assert "12,345 features/s" in printed
    made.facts = {"intervals": {"test/accuracy": [0.94, 0.975]}, "confidence": 0.95}
    show_summary(made, None, Console())
    assert "test        accuracy 0.9600 (95 %: 0.9400 to 0.9750), loss 0.0500\n" in capsys.readouterr().out
    assert "images/s" not in printed
    made.weights = {"epoch": 30, "selection": "last", "monitor": "val_loss", "ema": True}
    show_summary(made, None, Console())
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "loss 0.0120 last epoch 30: val accuracy 0.9700, loss 0.0200; test and export have its weights (EMA)" in printed
    )


def test_the_comparison_says_so_too(tmp_path: Path) -> None:
    write_index([{"folder": "1", "overrides": ["seed=1"]}], tmp_path)
    (tmp_path / "1").mkdir()
    summary(tmp_path / "1").write(tmp_path / "1")
    comparison = compare(tmp_path)
    cells = {column.key: column.text(comparison.rows[0]) for column in columns_of(comparison)}
    assert (cells["train/weights_epoch"], cells["val/best_accuracy"]) == ("22", "98.00")
    assert cells["train/features_per_second"] == "12,345"
    assert "train/images_per_second" not in cells
    write(comparison, tmp_path)
    assert "- epoch: train/weights_epoch" in (tmp_path / "comparison.md").read_text()


def test_a_run_of_one_epoch_too_many_says_whose_weights_it_has(tmp_path: Path) -> None:
    given = [*QUICK, "train.restore_best=false", "optimizer.learning_rate=0.05", "tracking=off", *BARE]
    assert run_job(Job(experiment(*given, "train.epochs=3", outputs=tmp_path)), Console()) == 0
    [path] = tmp_path.glob("runs/*/*/summary.json")
    found = Summary.read(path.parent)
    assert found.weights == {"epoch": 3, "selection": "last", "monitor": "val_loss", "ema": False}
    assert found.metrics["train/last_epoch"] == found.metrics["train/weights_epoch"] == 3
    assert {"train/best_loss", "train/best_accuracy", "val/best_loss", "val/best_accuracy"} <= found.metrics.keys()
    assert found.metrics["val/best_loss"] <= found.metrics["val/loss"]
    stages = sum(stage.seconds for stage in found.stages.values())
    assert found.seconds == pytest.approx(found.start_seconds + stages + found.recording_seconds)
    parts = [v for name, v in found.metrics.items() if name.startswith("train/") and name.endswith("_seconds")]
    assert len(parts) >= 6
    assert 0 < sum(parts) <= found.stages["train"].seconds


def test_the_time_that_is_printed_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = {"load": StageOutcome("ran", 2.0), "train": StageOutcome("failed", 3.0), "export": StageOutcome("skipped")}
    made = summary(tmp_path, stages=stages, seconds=10.0, start_seconds=4.0, resumed_from_step=7)
    made.recording_seconds = 1.0
    show_times(made, Console())
    assert capsys.readouterr().out == (
        "time        FINISHED in 10.0 s (this command; resumed after step 7): start 4.0,\n"
        "            load 2.0, train 3.0, recording 1.0\n"
    )


def test_a_fork_starts_from_its_best_or_last_weights() -> None:
    with pytest.raises(UserError, match="fork_weights=first"):
        check(TopSettings(fork="x", fork_weights="first"), "")
    check(TopSettings(fork="x", fork_weights="last"), "")
