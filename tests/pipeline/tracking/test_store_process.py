"""The process that talks to a run's store: it outlives a killed run, has its lock, and never stays for long."""

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from pipeline import redaction
from pipeline.commands import sync
from pipeline.config.schemas import TrackingSettings
from pipeline.runs.lock import is_locked, locked
from pipeline.runs.summary import Summary
from pipeline.system.signals import until
from pipeline.tracking import store_process
from pipeline.tracking.store import Store
from pipeline.tracking.store_process import OUTLIVES_SECONDS, StoreClient, StoreProcess, serve
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import open_tracker
from stages.errors import UserError
from tests import commands
from tests.pipeline.experiments import SMALL, TRAINED, Patch, Printed, tracked
from tests.pipeline.tracking.journals import LOCAL, client, only_run, steps

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.config.schemas import TrackingSettings
from pipeline.runs.lock import locked
from pipeline.tracking.store_process import StoreProcess
from pipeline.runs.summary import Summary
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import open_tracker

outputs, folder = map(Path, sys.argv[1:3])
settings = TrackingSettings(kind="local")
with locked(folder, shared=bool(sys.argv[3])) as lock:
    Summary(None, "RUNNING", "tried", folder, {}).write(folder)
    process = StoreProcess(Store(settings, outputs), folder, lock)
    tracker = open_tracker(RunSpec(settings, outputs, folder, "tried", "run"), print, process.open_run)
    tracker.flush(seconds=60)
    os.kill(process._process.pid, signal.SIGSTOP)
    tracker.metrics({"train/loss": 0.5}, 1)
    print(process._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(outputs: Path) -> Path:
    folder = outputs / "runs" / "tried" / "run"
    folder.mkdir(parents=True)
    return folder


@contextmanager
def started(outputs: Path, folder: Path, settings: TrackingSettings = LOCAL) -> Iterator[StoreProcess]:
    with locked(folder) as lock:
        process = StoreProcess(Store(settings, outputs), folder, lock)
        try:
            yield process
        finally:
            process.close()


def left_by_a_killed_run(outputs: Path, folder: Path, shared: str = "") -> psutil.Process:
    """Return the process of a run that was killed, stopped before it could send a metric."""
    killed = commands.run_alone(KILLED, str(outputs), str(folder), shared)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    return psutil.Process(int(killed.stdout))


def test_a_killed_run_gets_its_end_and_what_its_journal_holds(outputs: Path, folder: Path, capsys: Printed) -> None:
    """No other command sends meanwhile, and none does it twice afterwards."""
    process = left_by_a_killed_run(outputs, folder)
    assert is_locked(folder)
    assert sync.main([str(folder)]) == 0
    assert "in use by a process, which sends its records itself" in capsys.readouterr().out
    process.resume()
    assert until(lambda: not is_locked(folder), 60)
    run = only_run(outputs)
    assert run.info.status == "FAILED"
    assert [point.value for point in client(outputs).get_metric_history(run.info.run_id, "train/loss")] == [0.5]
    assert run.data.tags["error"] == "its process was killed or did not respond"
    summary = Summary.read(folder)
    assert (summary.status, summary.run_id) == ("FAILED", run.info.run_id)


def test_it_ends_soon_where_its_run_was_killed_and_the_store_takes_nothing(outputs: Path, folder: Path) -> None:
    process = left_by_a_killed_run(outputs, folder)
    with closing(sqlite3.connect(outputs / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        process.resume()
        assert until(lambda: not is_locked(folder), OUTLIVES_SECONDS + 3)
    assert sync.main([str(folder)]) == 0
    assert steps(outputs, "train/loss") == [1]
    status = Summary.read(folder).status
    assert status == only_run(outputs).info.status  # FAILED; RUNNING where its metric was on its way already


def test_a_supervisor_that_shares_the_lock_ends_the_run_itself(outputs: Path, folder: Path) -> None:
    with locked(folder, shared=True):
        process = left_by_a_killed_run(outputs, folder, "shared")
        process.resume()
        process.wait(60)
    assert Summary.read(folder).status == only_run(outputs).info.status == "RUNNING"


def test_a_store_that_cannot_be_opened_is_said_as_ever(outputs: Path, folder: Path) -> None:
    (outputs / "mlflow.db").write_text("no database")
    said = r"tracking=local cannot be used \(.*file is not a database.*Try: tracking=off"
    with started(outputs, folder) as process, pytest.raises(UserError, match=said):
        open_tracker(RunSpec(LOCAL, outputs, folder, "tried", "run"), print, process.open_run)


@pytest.mark.parametrize(("code", "said"), [
    ("raise RuntimeError('Could not determine home directory.')", "RuntimeError: Could not determine home directory."),
    ("import os\nos.write(2, b'INFO begins\\nFatal: token=geheim12\\n')\nos._exit(3)", "ended: Fatal: token="),
    ("import os\nos._exit(4)", "ended with exit code 4"),
    ("import os\nos.kill(os.getpid(), 9)", "ended by SIGKILL"),
])  # fmt: skip
def test_a_process_that_dies_says_why(
    code: str, said: str, outputs: Path, folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "dying.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = TrackingSettings(kind="local", _target_="dying.Store")
    with started(outputs, folder, settings) as process, pytest.raises(UserError) as caught:
        process.open_run(RunSpec(settings, outputs, folder, "tried", "run"), None)
    assert said in caught.value.problem
    assert "geheim12" not in str(caught.value)
    assert (caught.value.expected, caught.value.fix) == ("a database or server that can be opened", "tracking=off")


def test_a_store_that_does_not_answer_first_is_said_in_time(outputs: Path, folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(store_process, "OPEN_SECONDS", 0.3)
    with started(outputs, folder) as process:
        os.kill(process._process.pid, signal.SIGSTOP)
        with pytest.raises(UserError, match=r"tracking=local cannot be used \(no response after 0\.3 s\)"):
            process.open_run(RunSpec(LOCAL, outputs, folder, "tried", "run"), None)


def test_what_was_learned_to_be_secret_is_masked_there_too(outputs: Path, folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(redaction, "learned", {"swordfish-12"})
    spec = RunSpec(LOCAL, outputs, folder, "tried", "run", tags={"note": "by swordfish-12"})
    with started(outputs, folder) as process:
        process.open_run(spec, None)
        command = psutil.Process(process._process.pid).cmdline()
    assert only_run(outputs).data.tags["note"] == "by ***"
    assert "swordfish-12" not in " ".join(command)


def test_live_metrics_and_a_process_that_dies(outputs: Path, folder: Path) -> None:
    """Training goes on without it, and the same command sends what is missing."""
    lines: list[str] = []
    with started(outputs, folder) as process:
        tracker = open_tracker(RunSpec(LOCAL, outputs, folder, "tried", "run"), lines.append, process.open_run)
        tracker.metrics({"loss": 1.0, "bad\nname": 1.0}, 1)
        assert until(lambda: not tracker.unsent, 30)
        assert only_run(outputs).data.metrics == {"loss": 1.0}
        assert "tracking: rejected metrics 'bad\\nname'" in lines[0]
        os.kill(process._process.pid, signal.SIGKILL)
        tracker.metrics({"loss": 0.5}, 2)
        tracker.status("FINISHED")
        began = time.monotonic()
        assert (tracker.close(1), time.monotonic() - began < 3) == (2, True)
        assert "the helper process for MLflow ended" in lines[1]
    assert not is_locked(folder)
    assert sync.main([str(folder)]) == 0
    assert [point.value for point in client(outputs).get_metric_history(str(tracker.run_id), "loss")] == [1.0, 0.5]


@pytest.mark.parametrize("interval", [0.3, 10])
def test_the_machine_is_measured_while_a_run_works_and_never_by_who_sends_later(
    interval: float, outputs: Path, folder: Path, monkeypatch: Patch
) -> None:
    """At the end of a short run, too; the processor, which works all the while, in every point."""
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", str(interval))
    name = "system/cpu_utilization_percentage"
    with started(outputs, folder) as process:
        spec = RunSpec(LOCAL, outputs, folder, "tried", "run", is_measured=True)
        tracker = open_tracker(spec, print, process.open_run)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            pass
        tracker.status("FINISHED")
        assert tracker.close(30) == 0
    measured = client(outputs).get_metric_history(str(tracker.run_id), name)
    assert [point.step for point in measured] == list(range(len(measured)))
    assert len(measured) == 1 if interval == 10 else len(measured) > 3
    assert all(point.value > 0 for point in measured), measured
    assert sync.main([str(folder), "--again"]) == 0
    assert len(client(outputs).get_metric_history(str(tracker.run_id), name)) == len(measured)


def test_the_machine_is_not_measured_for_a_job_that_was_killed(outputs: Path, folder: Path, monkeypatch: Patch) -> None:
    """By the sweep that serves it: tried again, it would have two monitors."""
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    others = threading.enumerate()  # a run that another test has left unfinished may still be measured
    connection = serve(Store(LOCAL, outputs))
    assert connection is not None
    served = StoreClient(connection)
    tracker = open_tracker(RunSpec(LOCAL, outputs, folder, "tried", "run", is_measured=True), print, served.open_run)

    def is_measured() -> bool:
        own = [thread for thread in threading.enumerate() if thread not in others]
        return any(thread.name == "SystemMetricsMonitor" for thread in own)

    assert until(is_measured, 10)
    tracker._sender.close()
    served.close()
    assert until(lambda: not is_measured(), 10)


def test_none_is_started_where_it_gains_nothing(outputs: Path, folder: Path, monkeypatch: Patch) -> None:
    """Under `tracking=off`, for a store of one's own, and where MLflow is imported already."""
    begun: list[Store] = []
    monkeypatch.setattr(store_process, "StoreProcess", lambda store, folder, lock: begun.append(store))
    with locked(folder) as lock:
        store_process.start(Store(LOCAL, outputs), folder, lock)
        monkeypatch.delitem(sys.modules, "mlflow")
        for settings in (TrackingSettings(kind="off"), TrackingSettings(_target_="mine.Run"), LOCAL):
            store_process.start(Store(settings, outputs), folder, lock)
    assert [store.settings for store in begun] == [LOCAL]
    assert store_process.serve(Store(TrackingSettings(kind="off"), outputs)) is None


ALONE = """
import sys
from pipeline.api import run_experiment
run_experiment(sys.argv[1:])
sys.exit("mlflow" in sys.modules or "sqlalchemy" in sys.modules)
"""


def test_a_process_that_trains_never_imports_mlflow(outputs: Path) -> None:
    done = commands.run_alone(ALONE, *SMALL, *TRAINED, f"outputs={outputs}")
    assert done.returncode == 0, done.stdout + done.stderr
    _, [run] = tracked(outputs)
    assert run.info.status == "FINISHED"
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(outputs) in str(process.info["cmdline"])]
