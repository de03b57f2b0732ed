"""A journal may be damaged, and a store may be lost: one run comes out, complete, with nothing twice."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline import sync
from pipeline.config.schemas import TrackingSettings
from pipeline.run_folder.pending import settings_for
from pipeline.system import signals
from pipeline.tracking.journal import NAME, Journal
from pipeline.tracking.stored_run import StoredRun
from stages.errors import UserError
from tests.pipeline.tracking.journals import (
    EPOCHS,
    LOCAL,
    assert_complete,
    begin,
    client,
    finish,
    interrupted,
    only_run,
    record,
)

pytestmark = pytest.mark.slow


def test_outputs_that_were_moved_are_all_in_the_new_place(outputs: Path) -> None:
    folder = interrupted(outputs)
    (folder / "plot.png").write_bytes(b"a")
    tracker = begin(outputs)
    tracker.artifact(folder / "plot.png")
    tracker.close(30)
    moved = outputs.with_name("moved")
    outputs.rename(moved)
    finish(moved)
    (moved / "runs" / "tried" / "run" / "more.png").write_bytes(b"b")
    tracker = begin(moved)
    tracker.artifact(moved / "runs" / "tried" / "run" / "more.png")
    tracker.status("FINISHED")
    tracker.close(30)
    run = assert_complete(moved)
    assert {entry.path for entry in client(moved).list_artifacts(run.info.run_id)} == {"plot.png", "more.png"}
    assert not outputs.exists()


def test_what_the_store_refuses_is_listed_and_takes_nothing_with_it(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bad name of a batch does not lose the others; what is refused is told again at the end, and noted."""
    tracker = begin(outputs)
    tracker.metrics({"good": 1.0, "bad\nname": 2.0, "also good": 3.0}, step=1)
    tracker.artifact(outputs / "there_is_none.png")
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    assert only_run(outputs).data.metrics == {"good": 1.0, "also good": 3.0}
    last = capsys.readouterr().out.splitlines()[-1]
    assert "refused by the store for good" in last
    assert "bad\\nname" in last
    assert "there_is_none.png" in last
    assert "also good" not in last
    journal = Journal(outputs / "runs" / "tried" / "run")
    assert journal.is_closed


def slow(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every request that sends something take so long."""
    for name in ("log_batch", "update_run", "set_terminated"):
        monkeypatch.setattr(MlflowClient, name, slowed(getattr(MlflowClient, name), seconds))


def slowed(method: Callable[..., object], seconds: float) -> Callable[..., object]:
    def call(*given: object, **named: object) -> object:
        time.sleep(seconds)
        return method(*given, **named)

    return call


def test_a_slow_store_that_answers_is_waited_for(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait counts from the last answer, not from the end; there is a limit, and a signal is heard."""
    tracker = begin(outputs)
    tracker.flush(seconds=30)
    slow(0.4, monkeypatch)
    record(tracker, EPOCHS)
    tracker.status("FINISHED")
    said: list[str] = []
    monkeypatch.setattr("pipeline.tracking.tracker.TOLD_AFTER_SECONDS", 0.2)
    began = time.monotonic()
    monkeypatch.setattr("pipeline.tracking.tracker.FINISHED_SECONDS", 1.0)
    assert tracker.flush(said.append) == 0
    assert time.monotonic() - began > 2
    assert "sending" in said[0]
    assert "600 s at most" in said[0]
    record(tracker, EPOCHS + 5)
    monkeypatch.setattr("pipeline.tracking.tracker.LONGEST_SECONDS", 0.5)
    assert tracker.flush(said.append) > 0
    monkeypatch.setattr("pipeline.tracking.tracker.LONGEST_SECONDS", 60)
    with signals.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert tracker.flush(said.append) > 0
    tracker.close()


@pytest.mark.smoke
def test_what_is_left_is_told_with_its_reason_and_what_to_type(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = begin(outputs)
    tracker.flush(seconds=30)
    with monkeypatch.context() as slowly:
        slow(20, slowly)
        record(tracker, 3)
        tracker.close(0.5)
    told = capsys.readouterr().out.splitlines()[-1]
    folder = outputs / "runs" / "tried" / "run"
    assert "5 of " in told
    assert "(the store is too slow" in told
    assert f"`python -m pipeline.sync {folder}` sends them" in told
    assert "None" not in told
    assert sync.main([str(folder)]) == 0  # and so it does
    assert len(client(outputs).get_metric_history(str(tracker.run_id), "train/loss")) == 3


@pytest.mark.smoke
def test_a_journal_costs_training_less_than_a_millisecond_an_epoch(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin({"run_id": "a"})
    values = {f"split/metric_{index}": 1.0 / 3 for index in range(10)}
    times = []
    for step in range(200):
        began = time.thread_time()
        journal.add("metrics", {"values": values, "step": step, "time": 1})
        times.append(time.thread_time() - began)
    assert sorted(times)[100] < 0.001
    assert (tmp_path / NAME).stat().st_size > 200 * 300


class TextRun(StoredRun):
    """A store of a user's own: a text file. It is away while there is a file `away`, and refuses `bad`."""

    def open(self, run_id: str | None) -> None:
        super().open(run_id or "mine")

    def refuses(self, error: Exception) -> bool:
        return isinstance(error, ValueError)

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        if (self.spec.outputs / "away").exists():
            raise ConnectionError("away")
        if "bad" in values:
            raise ValueError("bad")
        self._write(f"{step} {dict(values)}")

    def status(self, status: str, time: int) -> None:
        self._write(status)

    def _write(self, line: str) -> None:
        with (self.spec.outputs / self.spec.settings.options["file"]).open("a") as file:
            file.write(f"{line}\n")


OWN = TrackingSettings(_target_=f"{__name__}.TextRun", options={"file": "mine.txt"})


def test_a_store_of_ones_own_has_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost while it is away, nor twice in a resumed run; what it refuses is named."""
    monkeypatch.setattr("pipeline.tracking.tracker.RETRY_SECONDS", 0.1)
    tracker = begin(tmp_path, settings=OWN)
    tracker.metrics({"loss": 1.0}, 1)
    tracker.flush(seconds=30)
    (tmp_path / "away").touch()
    tracker.metrics({"loss": 0.5}, 2)
    assert tracker.close(0.5) == 1
    (tmp_path / "away").unlink()
    tracker = begin(tmp_path, settings=OWN)
    assert tracker.run_id == "mine"
    for step, loss in ((1, 1.0), (2, 0.5), (3, 0.25)):
        tracker.metrics({"loss": loss}, step)
    tracker.metrics({"bad": 0.0}, 3)
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    assert (tmp_path / "mine.txt").read_text().splitlines() == [
        "RUNNING",
        "1 {'loss': 1.0}",
        "2 {'loss': 0.5}",
        "RUNNING",
        "3 {'loss': 0.25}",
        "FINISHED",
    ]
    assert "the store refuses metrics 'bad' (ValueError: bad)" in capsys.readouterr().out
    assert not (tmp_path / "mlflow.db").exists()


def test_a_folder_names_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a method by a line of its journal, nor a class that the command does not name."""
    begin(tmp_path, settings=OWN).close(30)
    folder = tmp_path / "runs" / "tried" / "run"
    with pytest.raises(UserError, match=r"was recorded by .*TextRun.*tracking\._target_=.*TextRun"):
        settings_for(folder, LOCAL)
    assert settings_for(folder, OWN) == OWN
    assert sync.main([f"--outputs={tmp_path}"]) == 1
    assert "was recorded by" in capsys.readouterr().err
    with (folder / NAME).open("a") as file:
        file.write('\n{"call": "open", "given": {"run_id": "x"}}')
    journal = Journal(folder)
    assert journal.damaged == 1
    assert all(entry.call != "open" for entry in journal.entries)
    for target in ("os.system", "no.such.Class", "pipeline.tracking.tracker.Tracker", "x"):
        with pytest.raises(UserError, match=rf"tracking\._target_={target} cannot be used"):
            begin(tmp_path, "other", settings=TrackingSettings(_target_=target))


@pytest.mark.parametrize("name", [NAME, ".lock"])
def test_a_run_whose_files_are_no_files_is_one_line_and_the_others_are_sent(
    name: str, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(outputs)
    wrong = outputs / "runs" / "a" / "wrong"
    wrong.mkdir(parents=True)
    (wrong / NAME).touch()
    (wrong / name).unlink(missing_ok=True)
    os.mkfifo(wrong / name)
    assert sync.main([f"--outputs={outputs}"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {wrong}: ")
