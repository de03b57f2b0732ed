"""What a run reports: the epoch of each number, the time of each part, its name and its description."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.comparison.frame import columns_of
from pipeline.comparison.report import write
from pipeline.console import Console
from pipeline.decide.job import Job
from pipeline.decide.plan import make_plan
from pipeline.execute import facts
from pipeline.launch.run import run_job
from pipeline.paths import new_folder_name
from pipeline.runs.facts import Facts
from pipeline.runs.summary import StageOutcome, Summary
from pipeline.sweep.index import compare, write_index
from tests.pipeline.experiments import SMALL, TRAINED, Patch, Printed, experiment, only_folder, write_files

GROUPS = {"strategy": "mirrored", "debug": "fast", "precision": "float32", "model": "mlp"}
METRICS = {
    "train/best_epoch": 22.0, "train/last_epoch": 30.0, "train/weights_epoch": 22.0,
    "val/best_accuracy": 0.98, "val/best_loss": 0.012, "val/accuracy": 0.97, "val/loss": 0.02,
    "test/accuracy": 0.96, "test/loss": 0.05, "train/features_per_second": 12345.0, "train/step_milliseconds": 2.0,
}  # fmt: skip


def summary(folder: Path, **changes: Any) -> Summary:
    changes.setdefault("stages", {name: StageOutcome("ran", 1.0) for name in ("train", "evaluate", "export")})
    changes["weights"] = {"epoch": 22, "selection": "best", "monitor": "val_loss", "ema": False}
    return Summary("abc", "FINISHED", "x", folder, {}, metrics=dict(METRICS), replicas=1, **changes)


def test_the_plan_shows_when_training_stops_early(tmp_path: Path, capsys: Printed) -> None:
    """Tables and texts overfit early, so they stop by default; what the user sets wins."""
    (tmp_path / "some.csv").write_text("a,b\n1,2\n")
    table = ("data=table", f"data.files={tmp_path / 'some.csv'}", "data.target=b")
    write_files(tmp_path, {"good/1.txt": "fine", "bad/1.txt": "poor"})
    for words, expected in {
        table: "early stopping: after 33 epochs without a better val_loss",  # of 100
        (*table, "train.epochs=60", "train.monitor=val_rmse"): "after 20 epochs without a better val_rmse",
        (*table, "train.early_stopping_patience=3"): "early stopping: after 3 epochs",
        (*table, "train.early_stopping_patience=0"): "",
        (*table, "train.epochs=4"): "",  # too few epochs to stop early
        ("data=text_folder", f"data.dir={tmp_path}"): "early stopping: after 10 epochs",
        (): "",
        ("train.early_stopping_patience=7",): "early stopping: after 7 epochs",
    }.items():
        facts.show_plan(given := experiment(*words), make_plan(given), Console())
        printed = capsys.readouterr().out
        assert expected in printed
        assert ("early stopping" in printed) == bool(expected)


def test_the_console_shows_the_epoch_of_each_number(tmp_path: Path, capsys: Printed) -> None:
    made = summary(tmp_path)
    facts.show_summary(made, (), Console())
    printed = " ".join(capsys.readouterr().out.split())
    best = "best epoch 22 of 30 by val_loss: val_accuracy 0.9800, val_loss 0.0120; its weights were tested and exported"
    assert f"{best} last epoch 30: " in printed
    assert "last epoch 30: val_accuracy 0.9700, val_loss 0.0200 test accuracy 0.9600, loss 0.0500" in printed
    assert "12,345 features/s" in printed
    made.facts = Facts(intervals={"test/accuracy": [0.94, 0.975]}, confidence=0.95)
    facts.show_summary(made, (), Console())
    assert "test        accuracy 0.9600 (95% CI 0.9400 to 0.9750), loss 0.0500\n" in capsys.readouterr().out
    assert "images/s" not in printed
    for left_out, said in ({"export"}, "; its weights were tested"), ({"evaluate"}, "; its weights were exported"):
        stages = {name: StageOutcome("ran", 1.0) for name in {"train", "evaluate", "export"} - left_out}
        facts.show_summary(summary(tmp_path, stages=stages), (), Console())
        assert said in " ".join(capsys.readouterr().out.split())
    for status in ("failed", "skipped"):
        stages = {"train": StageOutcome("ran", 1.0), "evaluate": StageOutcome(status, 1.0)}
        facts.show_summary(summary(tmp_path, stages=stages), (), Console())
        assert "its weights" not in capsys.readouterr().out
    made.metrics = {name: value for name, value in METRICS.items() if not name.startswith(("val/a", "val/l"))}
    facts.show_summary(made, (), Console())
    assert "last epoch  30\n" in capsys.readouterr().out, "evaluated again"
    made.metrics = dict(METRICS)
    made.weights = {"epoch": 30, "selection": "last", "monitor": "val_loss", "ema": True}
    facts.show_summary(made, (), Console())
    printed = " ".join(capsys.readouterr().out.split())
    last = "last epoch 30: val_accuracy 0.9700, val_loss 0.0200; its weights (their EMA) were tested and exported"
    assert f"loss 0.0120 {last}" in printed


def test_the_comparison_shows_the_epochs_too(tmp_path: Path) -> None:
    write_index([{"folder": "1", "overrides": ["seed=1"]}], tmp_path)
    (tmp_path / "1").mkdir()
    summary(tmp_path / "1").write(tmp_path / "1")
    comparison = compare(tmp_path)
    cells = {column.key: column.text(comparison.rows[0]) for column in columns_of(comparison)}
    shown = {"train/weights_epoch": "22", "val/best_accuracy": "98.00%", "train/features_per_second": "12,345"}
    assert shown.items() <= cells.items()
    assert "train/images_per_second" not in cells
    write(comparison, tmp_path)
    assert (
        "- best epoch (train/weights_epoch): Epoch whose weights are tested" in (tmp_path / "comparison.md").read_text()
    )


@pytest.mark.slow
def test_a_run_that_overfits_reports_which_weights_it_has(tmp_path: Path) -> None:
    """With `tracking=off`, it is not tracked either."""
    given = [*SMALL, "train.restore_best=false", "optimizer.learning_rate=0.05", "tracking=off", *TRAINED]
    assert run_job(Job(experiment(*given, "train.epochs=3", outputs=tmp_path)), Console()) == 0
    found = Summary.read(only_folder(tmp_path))
    assert found.weights == {"epoch": 3, "selection": "last", "monitor": "val_loss", "ema": False}
    assert found.metrics["train/last_epoch"] == found.metrics["train/weights_epoch"] == 3
    assert {"train/best_loss", "train/best_accuracy", "val/best_loss", "val/best_accuracy"} <= found.metrics.keys()
    assert found.metrics["val/best_loss"] <= found.metrics["val/loss"]
    assert found.run_id is None
    assert not (tmp_path / "mlflow.db").exists()


def test_the_time_that_is_printed_adds_up(tmp_path: Path, capsys: Printed) -> None:
    stages = {"load": StageOutcome("ran", 2.0), "train": StageOutcome("failed", 3.0), "export": StageOutcome("skipped")}
    made = summary(tmp_path, stages=stages, seconds=10.0, start_seconds=4.0, resumed_from_step=7)
    made.recording_seconds = 1.0
    facts.show_times(made, Console())
    assert capsys.readouterr().out == (
        "time        FINISHED in 10.0 s (this command; resumed after step 7): start 4.0,\n"
        "            load 2.0, train 3.0, recording 1.0\n"
    )


@pytest.mark.parametrize(
    ("overrides", "name"),
    [(["strategy=mirrored", "precision=mixed_bfloat16", "debug=fast"], "mirrored mixed_bfloat16 debug=fast"),
     (["optimizer.learning_rate=0.01", "train.batch_size=64"], "lr=0.01 batch=64"), ([], ""),
     (["+model.network.mine=[1,2]", "seed=2"], "mine=[1,2] seed=2"), (["the only job"], "the only job")],
)  # fmt: skip
def test_a_label_is_the_options_and_the_last_part_of_a_setting(overrides: list[str], name: str) -> None:
    assert facts.label(overrides, GROUPS) == name


def test_a_run_is_named_by_its_settings_first_and_its_folder_last() -> None:
    folder = Path("outputs/runs/digits_mlp/20261122-062003-398877be")
    given = ["model=mlp", "outputs=/elsewhere", "tracking.note=a try", "resume=never", "seed=3"]
    assert facts.run_name(given, GROUPS, folder) == "mlp seed=3 398877be"
    assert facts.run_name(["tracking=off"], GROUPS, folder) == "defaults 398877be"


def test_a_sweep_is_named_by_the_settings_in_which_its_jobs_differ() -> None:
    labels = [f"strategy={strategy} train.batch_size={size}" for strategy in "ab" for size in (1, 2)]
    assert facts.sweep_name(labels) == "strategy × batch, 4 jobs"
    assert facts.sweep_name(["the only job"]) == "sweep, 1 job"


def test_a_description_begins_with_the_error_unchanged() -> None:
    failed = Summary("4d9eb298", "FAILED", "digits_cnn", Path("outputs/runs/a"), {})
    failed.stages = {"train": StageOutcome("failed", 1.0)}
    failed.error = "no <b>device</b> */gpu:7*\n`x`"
    first, *_ = facts.run_description(failed, "python -m pipeline", None, "made").split("\n\n")
    assert first == r"**FAILED in train**: no \<b\>device\</b\> \*/gpu:7\* \`x\`"
    assert facts.escaped("a_b|c") == r"a\_b\|c"


@pytest.mark.parametrize("text", ["plain", "with `one`", "``two", "`"])
def test_backticks_do_not_end_code_early(text: str) -> None:
    shown = facts.code(text)
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    assert fence not in text
    assert shown.removeprefix(fence).removesuffix(fence).strip() == text.strip()


def test_folders_sort_by_their_beginning_whatever_the_local_time(monkeypatch: Patch, tmp_path: Path) -> None:
    """Local time goes back when summer ends, and differs between machines."""
    names = []
    for zone in ("EAST-9", "WEST+9"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        names.append(new_folder_name(tmp_path))
    monkeypatch.undo()
    time.tzset()
    assert names[0][:15] <= names[1][:15]
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", name) for name in names)
