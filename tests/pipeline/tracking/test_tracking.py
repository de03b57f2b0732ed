"""Parameters, tags and experiments as MLflow accepts them. Missing records are sent later, and only once."""

import functools
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.commands import sync
from pipeline.config.schemas import TrackingSettings
from pipeline.runs.journal import NAME, Journal
from pipeline.system import signals
from pipeline.system.processes import process_context
from pipeline.system.signals import until
from pipeline.tracking.pending import settings_for
from pipeline.tracking.stored_run import StoredRun
from stages.errors import UserError
from tests.pipeline.experiments import Patch, Printed
from tests.pipeline.tracking.journals import (
    EPOCHS,
    LOCAL,
    assert_complete,
    begin,
    client,
    finish,
    folder_of,
    interrupted,
    only_run,
    record,
    steps,
)
from tests.servers import free_port, mlflow_server

pytestmark = pytest.mark.slow


def test_many_long_and_changed_parameters_are_kept(outputs: Path) -> None:
    """Parameters that change in a resumed run are tags, as MLflow cannot change parameters."""
    long = "x" * 5_000
    first = begin(outputs)
    many = {f"p.{index}": index for index in range(350)}
    first.params({**many, "long": long, "odd[0]=key": 1, "strategy": "mirrored"})
    first.close(30)
    again = begin(outputs)
    again.params({"strategy": "one_device", "p.1": 1, "more": 2})
    again.close(30)
    run = only_run(outputs)
    assert len(run.data.params) == 354
    assert (run.data.params["odd_0__key"], run.data.params["more"], run.data.params["long"]) == ("1", "2", long)
    assert (run.data.params["strategy"], run.data.tags["changed/strategy"]) == ("mirrored", "one_device")


def test_a_custom_database_keeps_its_artifacts_in_outputs(outputs: Path) -> None:
    begin(outputs, settings=TrackingSettings(kind="server", uri=f"sqlite:///{outputs / 'mlflow.db'}")).close(30)
    assert only_run(outputs).info.artifact_uri.startswith(f"file://{outputs}/artifacts/tried/")


def test_a_server_that_comes_back_has_everything_once(tmp_path: Path, migrated_store: Path, monkeypatch: Patch) -> None:
    """A real server is killed during a run. When it is back, it gets the records of the time in between."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(migrated_store, tmp_path / "server.db")
    port = free_port()
    settings = TrackingSettings(kind="server", uri=f"http://127.0.0.1:{port}")
    server = functools.partial(mlflow_server, f"sqlite:///{tmp_path}/server.db", tmp_path / "kept", port)
    with server(ending=signal.SIGKILL):
        tracker = begin(tmp_path / "outputs", settings=settings)
        tracker.metrics({"train/loss": 1.0}, step=1)
        assert until(lambda: not tracker.unsent, 30)
    for step in (2, 3, 4):
        tracker.metrics({"train/loss": 1.0 / step}, step=step)  # returns although no store responds
    assert until(lambda: Journal(folder_of(tmp_path / "outputs")).upload.trouble is not None, 30)
    assert tracker.unsent == 3
    with server():
        tracker.metrics({"train/loss": 0.2}, step=5)
        tracker.status("FINISHED")
        tracker.close(60)
        store = MlflowClient(settings.uri)
        assert store.get_run(str(tracker.run_id)).info.status == "FINISHED"
        history = store.get_metric_history(str(tracker.run_id), "train/loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25), (5, 0.2)]


def test_a_run_whose_id_was_not_noted_is_found_again(outputs: Path) -> None:
    first = begin(outputs)
    first.close(30)
    (folder_of(outputs) / NAME).unlink()
    again = begin(outputs)
    again.close(30)
    assert again.run_id == first.run_id


def test_a_locked_database_loses_no_records(outputs: Path) -> None:
    tracker = begin(outputs)
    assert until(lambda: not tracker.unsent, 30)
    with closing(sqlite3.connect(outputs / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        for step in (1, 2, 3):
            tracker.metrics({"loss": 1.0 / step}, step=step)
        time.sleep(1)
        assert tracker.unsent == 3
        other.rollback()
    tracker.status("FINISHED")
    assert tracker.close(60) == 0
    assert steps(outputs, "loss") == [1, 2, 3]


def write_into(outputs: Path, number: int) -> None:
    """Record a run, in one of four processes that write to the same SQLite file."""
    tracker = begin(outputs, f"job {number}")
    for step in range(1, 26):
        tracker.metrics({f"m{index}": float(step * index) for index in range(5)}, step=step)
    tracker.params({f"p{index}": index for index in range(30)})
    tracker.status("FINISHED")
    tracker.close(120)


def test_four_processes_that_write_to_one_file_lose_nothing(outputs: Path) -> None:
    context = process_context()
    processes = [context.Process(target=write_into, args=(outputs, number)) for number in range(4)]  # type: ignore[attr-defined]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * 4
    store = client(outputs)
    [own] = store.search_experiments(filter_string="name = 'tried'")
    found = store.search_runs([own.experiment_id])
    assert [run.info.status for run in found] == ["FINISHED"] * 4
    for run in found:
        assert len(run.data.params) == 30
        for index in range(5):
            points = store.get_metric_history(run.info.run_id, f"m{index}")
            assert [(point.step, point.value) for point in points] == [(s, float(s * index)) for s in range(1, 26)]


def test_outputs_that_were_moved_are_all_in_the_new_place(outputs: Path) -> None:
    folder = interrupted(outputs)
    (folder / "plot.png").write_bytes(b"a")
    tracker = begin(outputs)
    tracker.artifact(folder / "plot.png")
    tracker.close(30)
    moved = outputs.with_name("moved")
    outputs.rename(moved)
    finish(moved)
    (folder_of(moved) / "more.png").write_bytes(b"b")
    tracker = begin(moved)
    tracker.artifact(folder_of(moved) / "more.png")
    tracker.status("FINISHED")
    tracker.close(30)
    run = assert_complete(moved)
    assert {entry.path for entry in client(moved).list_artifacts(run.info.run_id)} == {"plot.png", "more.png"}
    assert not outputs.exists()


@pytest.mark.smoke
def test_rejected_records_are_listed_and_the_others_are_kept(outputs: Path, capsys: Printed) -> None:
    """One wrong name in a batch does not affect the others. Rejected records are reported again at the end."""
    tracker = begin(outputs)
    tracker.metrics({"good": 1.0, "bad\nname": 2.0, "also good": 3.0}, step=1)
    tracker.artifact(outputs / "there_is_none.png")
    tracker.status("FINISHED")
    assert tracker.close(30) == 0
    assert only_run(outputs).data.metrics == {"good": 1.0, "also good": 3.0}
    last = capsys.readouterr().out.splitlines()[-1]
    said = ("rejected, and not sent again", "bad\\nname", "there_is_none.png", "also good")
    assert [text in last for text in said] == [True, True, True, False]
    assert Journal(folder_of(outputs)).is_closed


def slowed(method: Callable[..., object], seconds: float) -> Callable[..., object]:
    def call(*given: object, **named: object) -> object:
        time.sleep(seconds)
        return method(*given, **named)

    return call


def test_the_end_of_a_run_waits_for_a_slow_store(outputs: Path, monkeypatch: Patch, capsys: Printed) -> None:
    """The wait counts from the last response, has a limit, and ends on a signal. The printed command sends the rest."""
    tracker = begin(outputs)
    tracker.flush(seconds=30)
    with monkeypatch.context() as patch:
        real = {name: getattr(MlflowClient, name) for name in ("log_batch", "update_run", "set_terminated")}
        for name, method in real.items():
            patch.setattr(MlflowClient, name, slowed(method, 0.4))
        record(tracker, EPOCHS)
        tracker.status("FINISHED")
        said: list[str] = []
        patch.setattr("pipeline.tracking.tracker.REPORT_EVERY_SECONDS", 0.2)
        patch.setattr("pipeline.tracking.tracker.FINISHED_SECONDS", 1.0)
        began = time.monotonic()
        assert tracker.flush(said.append) == 0
        assert time.monotonic() - began > 2
        assert "sending" in said[0]
        record(tracker, EPOCHS + 5)
        patch.setattr("pipeline.tracking.tracker.LONGEST_SECONDS", 0.5)
        assert tracker.flush(said.append) > 0
        patch.setattr("pipeline.tracking.tracker.LONGEST_SECONDS", 60)
        with signals.listening():
            os.kill(os.getpid(), signal.SIGINT)
            assert tracker.flush(said.append) > 0
        for name, method in real.items():
            patch.setattr(MlflowClient, name, slowed(method, 5.0))
        record(tracker, EPOCHS + 7)
        tracker.close(0.5)
    told = capsys.readouterr().out.splitlines()[-1]
    assert "(sending takes longer than" in told
    assert f"`python -m pipeline sync {folder_of(outputs)}` sends them" in told
    assert sync.main([str(folder_of(outputs))]) == 0
    assert steps(outputs, "train/loss") == list(range(1, EPOCHS + 8))


class TextRun(StoredRun):
    """A custom store: a text file. It is not available while a file `away` exists, and it rejects `bad`."""

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


def test_a_custom_store_gets_the_whole_journal(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    """Nothing is lost while it is not available, or recorded twice in a resumed run. Rejected records are reported."""
    monkeypatch.setattr("pipeline.tracking.follower.RETRY_SECONDS", 0.1)
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
    lines = ["RUNNING", "1 {'loss': 1.0}", "2 {'loss': 0.5}", "RUNNING", "3 {'loss': 0.25}", "FINISHED"]
    assert (tmp_path / "mine.txt").read_text().splitlines() == lines
    assert "tracking: rejected metrics 'bad' (ValueError: bad)" in capsys.readouterr().out
    assert not (tmp_path / "mlflow.db").exists()


def test_a_folder_cannot_choose_code_to_run(tmp_path: Path, capsys: Printed) -> None:
    """A line of its journal cannot call any method, and its class is used only if the command names it."""
    begin(tmp_path, settings=OWN).close(30)
    folder = folder_of(tmp_path)
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
    for target in ("os.system", "pipeline.tracking.tracker.Tracker", "x"):
        with pytest.raises(UserError, match=rf"tracking\._target_={target} (cannot be imported|does not extend)"):
            begin(tmp_path, "other", settings=TrackingSettings(_target_=target))
