"""Parameters, tags and experiments as MLflow can hold them; secrets nowhere; a real server."""

import functools
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient
from omegaconf import OmegaConf

from pipeline.checks.registry import check_rules
from pipeline.config.schemas import TrackingSettings
from pipeline.redaction import redact
from pipeline.system.processes import process_context
from pipeline.tracking.journal import Journal
from pipeline.tracking.params import configuration_params
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker, open_tracker
from stages.errors import UserError
from tests.pipeline.experiments import experiment
from tests.servers import free_port, mlflow_server

pytestmark = pytest.mark.slow

LOCAL = TrackingSettings(kind="local")


def begin(
    outputs: Path, name: str = "a run", tags: dict[str, str] | None = None, parent: str | None = None,
    settings: TrackingSettings = LOCAL, experiment: str = "tried",
) -> Tracker:  # fmt: skip
    """Begins or resumes a run in a folder of that name."""
    folder = outputs / "runs" / experiment / name
    folder.mkdir(parents=True, exist_ok=True)
    return open_tracker(RunSpec(settings, outputs, folder, experiment, name, parent, tags or {}), print)


@pytest.fixture
def tracker(outputs: Path) -> Tracker:
    return begin(outputs, tags={"note": "by hand"})


def test_many_and_long_parameters_are_kept_whole(tracker: Tracker, outputs: Path) -> None:
    long = "x" * 5_000
    tracker.params({f"p.{index}": index for index in range(350)} | {"long": long, "odd[0]=key": 1})
    tracker.status("FINISHED")
    tracker.close(30)
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    params = client.get_run(tracker.run_id).data.params
    assert len(params) == 352
    assert params["odd_0__key"] == "1"
    assert params["long"] == long


def test_runs_are_children_and_end_as_they_are_told(tracker: Tracker, outputs: Path) -> None:
    child = begin(outputs, "a job", parent=tracker.run_id)
    for status, run in (("KILLED", child), ("FINISHED", tracker)):
        run.status(status)
        run.close(30)
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    found = client.get_run(child.run_id)
    assert found.data.tags["mlflow.parentRunId"] == tracker.run_id
    assert (found.info.status, client.get_run(tracker.run_id).info.status) == ("KILLED", "FINISHED")
    assert found.info.artifact_uri.startswith(f"file://{outputs}/artifacts/tried/")


def test_pointers_stand_once_and_values_resolved() -> None:
    document = OmegaConf.create(
        {"seed": 7, "train": {"seed": "${seed}", "name": "run ${seed}", "list": [1, 2]}, "e": {}}
    )
    assert configuration_params(document) == {"seed": 7, "train.name": "run 7", "train.list": [1, 2], "e": {}}


def test_a_database_of_ones_own_keeps_its_artifacts_in_outputs(outputs: Path) -> None:
    settings = TrackingSettings(kind="server", uri=f"sqlite:///{outputs / 'mlflow.db'}")
    run = begin(outputs, settings=settings, experiment="own")
    client = MlflowClient(settings.uri)
    assert client.get_run(run.run_id).info.artifact_uri.startswith(f"file://{outputs}/artifacts/own/")


def test_a_store_that_cannot_be_used_is_said_in_one_line(outputs: Path) -> None:
    settings = TrackingSettings(kind="server", uri="postgresql://me:secret@127.0.0.1:9/x")
    with pytest.raises(UserError, match="tracking=server cannot be used") as raised:
        begin(outputs, settings=settings)
    assert "secret" not in redact(str(raised.value))


def test_a_web_server_is_no_mlflow_server(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        port = re.search(r"port (\d+)", process.stdout.readline())
        assert port is not None
        uri = f"http://127.0.0.1:{port.group(1)}"
        with pytest.raises(UserError, match="does not answer"):
            check_rules(experiment("tracking=server", f"tracking.uri={uri}", outputs=tmp_path / "outputs"))
        process.terminate()


def test_a_server_that_dies_and_comes_back_has_everything_once(
    tmp_path: Path, migrated_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracked by a real server: killed in the middle, back later, and all that came meanwhile is sent."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(migrated_store, tmp_path / "server.db")
    port = free_port()
    settings = TrackingSettings(kind="server", uri=f"http://127.0.0.1:{port}")
    server = functools.partial(mlflow_server, f"sqlite:///{tmp_path}/server.db", tmp_path / "kept", port)
    with server(ending=signal.SIGKILL):
        tracker = begin(tmp_path / "outputs", settings=settings)
        tracker.metrics({"train/loss": 1.0}, step=1)
        assert wait_until(lambda: not tracker.unsent)
    for step in (2, 3, 4):
        tracker.metrics({"train/loss": 1.0 / step}, step=step)  # returns, though no store answers
    assert wait_until(lambda: tracker._sender.trouble is not None)
    assert tracker.unsent == 3
    with server():
        tracker.metrics({"train/loss": 0.2}, step=5)
        tracker.status("FINISHED")
        tracker.close(60)
        client = MlflowClient(settings.uri)
        assert tracker.run_id is not None
        assert client.get_run(tracker.run_id).info.status == "FINISHED"
        history = client.get_metric_history(tracker.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25), (5, 0.2)]


def test_what_a_dead_process_has_left_is_sent_once(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process died after the store had got an entry and before that was noted: it is sent again, and stays one."""
    first = begin(outputs)
    first.metrics({"train/loss": 1.0, "val/loss": float("nan")}, step=1)
    assert first.close(30) == 0
    folder = outputs / "runs" / "tried" / "a run"
    journal = Journal(folder)
    journal.mark_sent(journal.sent - 1)
    with (folder / "tracking.jsonl").open("a") as file:
        file.write('\n{"call": "metrics", "given": {"values": {"train/')  # killed while it wrote
    again = begin(outputs)
    again.metrics({"train/loss": 2.0}, step=1)  # of the same step: what is there stays
    again.metrics({"train/loss": 0.5}, step=2)
    again.status("FINISHED")
    again.close(30)
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    assert again.run_id == first.run_id
    assert again.run_id is not None
    history = client.get_metric_history(again.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5)]
    assert len(client.get_metric_history(again.run_id, "val/loss")) == 1
    assert client.get_run(again.run_id).info.status == "FINISHED"
    assert Journal(folder).unsent == 0  # it can be read again: no line is half of two


def test_a_run_that_was_begun_and_not_noted_is_found_again(outputs: Path) -> None:
    first = begin(outputs)
    first.close(30)
    (outputs / "runs" / "tried" / "a run" / "tracking.jsonl").unlink()
    again = begin(outputs)
    again.close(30)
    assert again.run_id == first.run_id


def test_a_parameter_that_changes_in_a_continued_run_is_a_tag(outputs: Path) -> None:
    first = begin(outputs)
    first.params({"strategy": "mirrored", "seed": 1})
    first.close(30)
    again = begin(outputs)
    again.params({"strategy": "one_device", "seed": 1, "more": 2})
    again.status("FINISHED")
    again.close(30)
    assert again.run_id is not None
    found = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}").get_run(again.run_id)
    assert found.data.params == {"strategy": "mirrored", "seed": "1", "more": "2"}
    assert found.data.tags["changed/strategy"] == "one_device"


def test_a_database_that_is_locked_costs_nothing(outputs: Path) -> None:
    tracker = begin(outputs)
    assert wait_until(lambda: not tracker.unsent)
    with closing(sqlite3.connect(outputs / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        for step in (1, 2, 3):
            tracker.metrics({"loss": 1.0 / step}, step=step)
        time.sleep(1)
        assert tracker.unsent == 3
        other.rollback()
    tracker.status("FINISHED")
    assert tracker.close(60) == 0
    assert tracker.run_id is not None
    points = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}").get_metric_history(tracker.run_id, "loss")
    assert [point.step for point in points] == [1, 2, 3]


def test_a_store_that_cannot_be_opened_is_not_suggested_again(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database")
    with pytest.raises(UserError, match=r"tracking=local cannot be used \(.*file is not a database.*Try: tracking=off"):
        begin(tmp_path)


def test_a_journal_that_cannot_be_written_for_a_while_is_whole_afterwards(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin({"run_id": "a"})
    journal.add("tags", {"values": {"n": "1"}})
    (tmp_path / "tracking.jsonl").rename(tmp_path / "away")
    (tmp_path / "tracking.jsonl").mkdir()
    with pytest.raises(OSError, match="directory"):
        journal.add("tags", {"values": {"n": "2"}})
    journal.mark_sent(2)
    assert Journal(tmp_path / "nowhere").unsent == 0
    (tmp_path / "tracking.jsonl").rmdir()
    (tmp_path / "away").rename(tmp_path / "tracking.jsonl")
    assert Journal(tmp_path).unsent == 1  # more are said to be sent than it has: all are sent again
    journal.add("tags", {"values": {"n": "3"}})
    again = Journal(tmp_path)
    assert [entry.arguments["values"]["n"] for entry in again.entries] == ["1", "2", "3"]
    assert again.unsent == 1


def write_into(outputs: Path, number: int) -> None:
    """One of four processes that write into one SQLite file."""
    tracker = begin(outputs, f"job {number}")
    for step in range(1, 26):
        tracker.metrics({f"m{index}": float(step * index) for index in range(5)}, step=step)
    tracker.params({f"p{index}": index for index in range(30)})
    tracker.status("FINISHED")
    tracker.close(120)


def test_four_processes_that_write_into_one_file_lose_nothing(outputs: Path) -> None:
    context = process_context()
    processes = [context.Process(target=write_into, args=(outputs, number)) for number in range(4)]  # type: ignore[attr-defined]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * 4
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    [own] = client.search_experiments(filter_string="name = 'tried'")
    found = client.search_runs([own.experiment_id])
    assert [run.info.status for run in found] == ["FINISHED"] * 4
    for run in found:
        assert len(run.data.params) == 30
        for index in range(5):
            points = client.get_metric_history(run.info.run_id, f"m{index}")
            assert [(point.step, point.value) for point in points] == [(s, float(s * index)) for s in range(1, 26)]


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
