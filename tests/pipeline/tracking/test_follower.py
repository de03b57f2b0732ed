"""The process that follows a command's runs: it sends their journals, also after a kill, and always ends."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import psutil
import pytest

from pipeline import redaction
from pipeline.commands import sync
from pipeline.config.schemas import TrackingSettings
from pipeline.runs.journal import Journal
from pipeline.runs.lock import is_locked, locked
from pipeline.runs.summary import Summary
from pipeline.system.signals import until
from pipeline.tracking import tracker as tracker_module
from pipeline.tracking.follower import OUTLIVES_SECONDS, FollowedCommand, Follower, follow, is_followed
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec, StoredRun
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from tests import commands, following
from tests.pipeline.experiments import SMALL, TRAINED, Patch, Printed, tracked
from tests.pipeline.tracking import killed
from tests.pipeline.tracking.journals import LOCAL, client, only_run, steps

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_a_process(monkeypatch: Patch) -> None:
    """Run followers in forked processes in these tests, and fail soon if a follower never opens its run."""
    monkeypatch.setattr(Follower, "_start", following.start_process)
    monkeypatch.setattr("pipeline.tracking.follower.subprocess", following.BY_SERVER)
    monkeypatch.setattr(tracker_module, "OPEN_SECONDS", 60.0)


@pytest.fixture
def as_for_users(monkeypatch: Patch) -> None:
    """Start followers as commands of users do."""
    monkeypatch.setattr("pipeline.tracking.follower.subprocess", subprocess)


@pytest.fixture
def folder(outputs: Path) -> Path:
    folder = outputs / "runs" / "tried" / "run"
    folder.mkdir(parents=True)
    return folder


def spec_of(outputs: Path, folder: Path, settings: TrackingSettings = LOCAL, is_measured: bool = False) -> RunSpec:
    return RunSpec(settings, outputs, folder, "tried", "run", is_measured=is_measured)


@contextmanager
def started(outputs: Path, folder: Path, settings: TrackingSettings = LOCAL) -> Iterator[Follower]:
    with locked(folder), closing(Follower(settings)) as follower:
        follower.follow(folder, Store(settings, outputs))
        yield follower


def pid_of(follower: Follower) -> int:
    assert follower._process is not None
    return follower._process.pid


def left_by_a_killed_run(
    outputs: Path, folder: Path, is_shared: bool = False, seconds: float = OUTLIVES_SECONDS, is_forked: bool = True
) -> psutil.Process:
    """Return the follower of a run that was killed. It was suspended before it could send a metric.

    Args:
        outputs: Where the run is recorded.
        folder: The folder of the run.
        is_shared: Whether the run shares its lock with a supervisor.
        seconds: How long the follower continues.
        is_forked: Whether both processes are forked, not started as for users.
    """
    words = [str(outputs), str(folder), str(is_shared), str(seconds)]
    if is_forked:
        run = commands.run(*words, module=killed.__name__)
    else:
        command = [sys.executable, "-m", killed.__name__, *words]
        run = subprocess.run(command, cwd=commands.ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr
    return psutil.Process(int(run.stdout))


def test_a_killed_run_is_ended_and_the_rest_of_its_journal_is_sent(
    outputs: Path, folder: Path, capsys: Printed
) -> None:
    """No other command sends it in the meantime, or again afterwards."""
    process = left_by_a_killed_run(outputs, folder, is_forked=False)
    assert is_followed(folder)
    assert sync.main([str(folder)]) == 0
    assert "in use by a process, which sends its records itself" in capsys.readouterr().out
    process.resume()
    assert until(lambda: not is_followed(folder), 60)
    run = only_run(outputs)
    assert run.info.status == "FAILED"
    assert [point.value for point in client(outputs).get_metric_history(run.info.run_id, "train/loss")] == [0.5]
    assert run.data.tags["error"] == "its process was killed or did not respond"
    summary = Summary.read(folder)
    assert (summary.status, Journal(folder).run_id) == ("FAILED", run.info.run_id)


def test_it_ends_soon_if_its_run_was_killed_and_the_store_accepts_nothing(outputs: Path, folder: Path) -> None:
    process = left_by_a_killed_run(outputs, folder, seconds=2)
    with closing(sqlite3.connect(outputs / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        process.resume()
        assert until(lambda: not is_followed(folder), OUTLIVES_SECONDS)
    assert sync.main([str(folder)]) == 0
    assert steps(outputs, "train/loss") == [1]
    assert Summary.read(folder).status == only_run(outputs).info.status == "FAILED"


def test_a_supervisor_that_shares_the_lock_ends_the_run_itself(outputs: Path, folder: Path) -> None:
    with locked(folder, shared=True):
        process = left_by_a_killed_run(outputs, folder, is_shared=True, seconds=2)
        process.resume()
        process.wait(60)
    assert Summary.read(folder).status == only_run(outputs).info.status == "RUNNING"


def test_the_next_command_on_a_killed_run_takes_over_at_once(outputs: Path, folder: Path) -> None:
    """The follower of the killed command leaves as soon as another session begins; nothing is sent twice."""
    process = left_by_a_killed_run(outputs, folder)
    with started(outputs, folder) as follower:
        tracker = Tracker(spec_of(outputs, folder), print, follower.ended)
        process.resume()
        began = time.monotonic()
        tracker.begin({})
        tracker.metrics({"train/loss": 0.5}, 1)
        tracker.metrics({"train/loss": 0.25}, 2)
        tracker.status("FINISHED")
        assert tracker.close(30) == 0
        assert time.monotonic() - began < OUTLIVES_SECONDS
    assert until(lambda: not process.is_running(), OUTLIVES_SECONDS)
    run = only_run(outputs)
    assert (run.info.status, steps(outputs, "train/loss")) == ("FINISHED", [1, 2])


def test_a_store_that_cannot_be_opened_is_reported(outputs: Path, folder: Path) -> None:
    (outputs / "mlflow.db").write_text("no database")
    said = r"tracking=local cannot be used \(.*file is not a database.*Try: tracking=off"
    with started(outputs, folder) as follower, pytest.raises(UserError, match=said):
        Tracker(spec_of(outputs, folder), print, follower.ended).begin({})


@pytest.mark.parametrize(("code", "said"), [
    ("raise RuntimeError('Could not determine home directory.')", "RuntimeError: Could not determine home directory."),
    ("import os\nos.write(2, b'INFO begins\\nFatal: token=geheim12\\n')\nos._exit(3)", "ended: Fatal: token="),
    ("import os\nos._exit(4)", "ended with exit code 4"),
    ("import os\nos.kill(os.getpid(), 9)", "ended by SIGKILL"),
])  # fmt: skip
@pytest.mark.usefixtures("as_for_users")
def test_a_process_that_dies_reports_why(
    code: str, said: str, outputs: Path, folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "dying.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = TrackingSettings(kind="local", _target_="dying.Store")
    with started(outputs, folder, settings) as follower, pytest.raises(UserError) as caught:
        Tracker(spec_of(outputs, folder, settings), print, follower.ended).begin({})
    assert said in caught.value.problem
    assert "geheim12" not in str(caught.value)
    assert (caught.value.expected, caught.value.fix) == ("a database or server that can be opened", "tracking=off")


def test_a_store_that_does_not_respond_at_first_is_reported_in_time(
    outputs: Path, folder: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(tracker_module, "OPEN_SECONDS", 0.3)
    with started(outputs, folder) as follower:
        os.kill(pid_of(follower), signal.SIGSTOP)
        with pytest.raises(UserError, match=r"tracking=local cannot be used \(no response after 0\.3 s\)"):
            Tracker(spec_of(outputs, folder), print, follower.ended).begin({})


@pytest.mark.usefixtures("as_for_users")
def test_secrets_are_masked_in_the_follower_too(
    outputs: Path, folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(redaction, "learned", {"swordfish-12"})
    (tmp_path / "telling.py").write_text(
        "from pipeline.tracking.stored_run import StoredRun\n"
        "class Store(StoredRun):\n"
        "    def open(self, run_id):\n"
        "        raise RuntimeError('no entry with swordfish-12')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = TrackingSettings(kind="local", _target_="telling.Store")
    with started(outputs, folder, settings) as follower:
        with pytest.raises(UserError, match=r"no entry with \*\*\*"):
            Tracker(spec_of(outputs, folder, settings), print, follower.ended).begin({})
        command = psutil.Process(pid_of(follower)).cmdline()
    assert "swordfish-12" not in " ".join(command)


@pytest.mark.usefixtures("as_for_users")
def test_live_metrics_and_a_process_that_dies(outputs: Path, folder: Path) -> None:
    """Training continues without the process, and the same command sends the missing records."""
    lines: list[str] = []
    with started(outputs, folder) as follower:
        tracker = Tracker(spec_of(outputs, folder), lines.append, follower.ended)
        tracker.begin({})
        tracker.metrics({"loss": 1.0, "bad\nname": 1.0}, 1)
        assert until(lambda: not tracker.unsent, 30)
        assert only_run(outputs).data.metrics == {"loss": 1.0}
        os.kill(pid_of(follower), signal.SIGKILL)
        assert until(lambda: follower.ended() is not None, 5)
        tracker.metrics({"loss": 0.5}, 2)
        tracker.status("FINISHED")
        began = time.monotonic()
        assert (tracker.close(1), time.monotonic() - began < 3) == (2, True)
        assert "tracking: rejected metrics 'bad\\nname'" in lines[0]
        assert "the helper process for tracking ended by SIGKILL" in lines[1]
    assert not is_locked(folder)
    run_id = str(tracker.run_id)
    assert sync.main([str(folder)]) == 0
    assert [point.value for point in client(outputs).get_metric_history(run_id, "loss")] == [1.0, 0.5]


def test_a_follower_that_died_is_replaced_for_the_next_job(outputs: Path, folder: Path, monkeypatch: Patch) -> None:
    """The new one also follows the runs of the old one."""
    monkeypatch.setattr("pipeline.tracking.follower.REVIVE_SECONDS", 0.0)
    with started(outputs, folder) as follower:
        first = Tracker(spec_of(outputs, folder), print)
        first.begin({})
        os.kill(pid_of(follower), signal.SIGKILL)
        assert until(lambda: follower.ended() is not None, 5)
        follower.follow(folder.with_name("next"), Store(LOCAL, outputs))
        for number, tracker in enumerate((first, Tracker(spec_of(outputs, folder.with_name("next")), print))):
            if number:
                tracker.begin({})
            tracker.status("FINISHED")
            assert tracker.close(30) == 0


@pytest.mark.parametrize(("interval", "seconds"), [(0.3, 2.0), (10, 0.5)])
def test_the_machine_is_measured_only_while_a_run_works(
    interval: float, seconds: float, outputs: Path, folder: Path, monkeypatch: Patch
) -> None:
    """The end of a short run is measured, too, and every point has a value for the processor."""
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", str(interval))
    name = "system/cpu_utilization_percentage"
    with started(outputs, folder) as follower:
        tracker = Tracker(spec_of(outputs, folder, is_measured=True), print, follower.ended)
        tracker.begin({})
        end = time.monotonic() + seconds
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


def test_the_machine_is_measured_once_for_a_job_that_is_tried_again(
    outputs: Path, folder: Path, monkeypatch: Patch
) -> None:
    """The monitor of the attempt that was killed ends when the next one begins."""
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    with started(outputs, folder) as follower:
        for _ in range(2):
            tracker = Tracker(spec_of(outputs, folder, is_measured=True), print, follower.ended)
            tracker.begin({})
            time.sleep(1)
        tracker.status("FINISHED")
        assert tracker.close(30) == 0
    measured = client(outputs).get_metric_history(str(tracker.run_id), "system/cpu_utilization_percentage")
    steps_of = [point.step for point in measured]
    assert len(steps_of) > 3
    assert len(steps_of) - len(set(steps_of)) <= 2  # both may measure once while the first one ends


def test_no_process_is_started_if_nothing_is_tracked(outputs: Path, folder: Path) -> None:
    settings = TrackingSettings(kind="off")
    with closing(Follower(settings)) as follower:
        follower.follow(folder, Store(settings, outputs))
        assert follower._process is None
        tracker = Tracker(spec_of(outputs, folder, settings), print, follower.ended)
        tracker.begin({})
        assert (tracker.is_on, tracker.close(1)) == (False, 0)


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


def test_a_run_that_failed_is_followed_when_its_command_tries_it_again(outputs: Path, folder: Path) -> None:
    """As a local cluster that has lost a member, also within a sweep."""
    with started(outputs, folder) as follower:
        for status in ("FAILED", "FINISHED"):
            tracker = Tracker(spec_of(outputs, folder), print, follower.ended)
            tracker.begin({})
            tracker.status(status)
            assert tracker.close(30) == 0
    assert only_run(outputs).info.status == "FINISHED"


class Noted(StoredRun):
    """Write the steps of metrics into a file. Without a file, the store does not respond."""

    def open(self, run_id: str | None) -> None:
        self.run_id = run_id or "noted"

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        path = self.spec.outputs / self.spec.settings.options["file"]
        if not path.exists():
            raise ConnectionError
        with path.open("a") as file:
            file.write(f"{step} ")


def noted(outputs: Path, name: str) -> TrackingSettings:
    return TrackingSettings(_target_=f"{__name__}.Noted", options={"file": name}, uri=f"file:{name}")


@pytest.mark.parametrize("kind", ["off", "another store"])
def test_the_follower_of_a_killed_command_leaves_the_next_session_to_others(
    kind: str, outputs: Path, folder: Path
) -> None:
    """Whatever store that has: its records go there, and only there."""
    first, command = noted(outputs, "first"), FollowedCommand()
    thread = Thread(target=follow, args=(folder, Store(first, outputs), command, ""), daemon=True)
    thread.start()
    tracker = Tracker(spec_of(outputs, folder, first), print)
    tracker.begin({})
    tracker.metrics({"loss": 1.0}, 1)  # the store is away: there is no file
    with locked(folder):  # as of the next command
        command.has_ended.set()
        second = TrackingSettings(kind="off") if kind == "off" else noted(outputs, "second")
        with closing(Follower(second)) as follower:
            follower.follow(folder, Store(second, outputs))
            again = Tracker(spec_of(outputs, folder, second), print, follower.ended)
            (outputs / "first").touch()
            (outputs / "second").touch()
            again.begin({})
            again.metrics({"loss": 0.5}, 2)
            again.status("FINISHED")
            assert again.close(30) == 0
        thread.join(10)
        assert not thread.is_alive()
    assert "2" not in (outputs / "first").read_text()
    assert (outputs / "second").read_text() == ("" if kind == "off" else "1 2 ")


def test_one_that_dies_is_started_again_while_jobs_run(outputs: Path, folder: Path, monkeypatch: Patch) -> None:
    """A job that waits for it goes on, as the command that watches the jobs looks after it."""
    monkeypatch.setattr("pipeline.tracking.follower.REVIVE_SECONDS", 0.0)
    with started(outputs, folder) as follower:
        tracker = Tracker(spec_of(outputs, folder), print)
        tracker.begin({})
        os.kill(pid_of(follower), signal.SIGKILL)
        assert until(lambda: follower.ended() is not None, 5)
        tracker.metrics({"loss": 1.0}, 1)
        assert follower.revive()
        assert not follower.revive()
        assert until(lambda: not tracker.unsent, 30)


def test_a_run_that_was_killed_before_its_session_has_its_end_in_the_store(outputs: Path, folder: Path) -> None:
    """It was resumed: its summary said RUNNING already, and its journal had no new session yet."""
    with started(outputs, folder) as follower:
        tracker = Tracker(spec_of(outputs, folder), print, follower.ended)
        tracker.begin({})
        tracker.status("KILLED")
        assert tracker.close(30) == 0
    Summary(None, "RUNNING", "tried", folder, {}).write(folder)
    command = FollowedCommand()
    command.has_ended.set()
    given = (folder, Store(LOCAL, outputs), command, Journal(folder).header.session)
    thread = Thread(target=follow, args=given, daemon=True)
    thread.start()
    thread.join(30)
    command.is_done.set()
    assert not thread.is_alive(), "the follower has not noticed that nothing remains to be done"
    assert Journal(folder).is_closed
    assert only_run(outputs).info.status == Summary.read(folder).status == "FAILED"
