"""Signals and closed outputs end a run within ten seconds, whenever they arrive, and nothing is lost."""

import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.exit_codes import STOPPED
from pipeline.runs.summary import Summary
from pipeline.system import signals
from pipeline.system.signals import STOPS, Interrupted
from tests import commands
from tests.conftest import ROOT
from tests.pipeline.experiments import LONG

pytestmark = pytest.mark.slow


def busy(reporter: Any, dataset: Any, strategy: Any, settings: Mapping[str, Any]) -> None:
    """Stand in for a custom stage that does not reach a safe place."""
    reporter.log("looping")
    while True:
        time.sleep(0.05)  # leaves the core to other tests


Process = commands.Command | subprocess.Popen[str]


@contextmanager
def running(
    outputs: Path, *given: str, is_forked: bool = True, ignored: signal.Signals | None = None
) -> Iterator[Process]:
    """Run the command; in a process that begins with it for signals that come, or are `ignored`, from the first on."""
    words = (*LONG, *given, f"outputs={outputs}")
    process: Process
    if is_forked:
        process = commands.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    else:
        command = [sys.executable, "-m", "pipeline", *words]
        ignore = (lambda: signal.signal(ignored, signal.SIG_IGN)) if ignored else None
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=ROOT, text=True, preexec_fn=ignore, **pipes)
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: Process, pattern: str) -> None:
    assert process.stdout is not None
    assert any(re.search(pattern, line) for line in iter(process.stdout.readline, "")), pattern


def end(process: Process, outputs: Path, code: int) -> Summary:
    """Wait for the end of `process`; return its run, after checking that it is KILLED in MLflow as well."""
    began = time.monotonic()
    assert process.wait(300) == code
    assert time.monotonic() - began < commands.HEARD_SECONDS
    assert process.stderr is not None
    assert not re.search("Traceback|BrokenPipe|SystemExit", process.stderr.read())
    run = Summary.read(max(outputs.glob("runs/*/*/summary.json")).parent)
    assert run.status == "KILLED"
    signals.until(lambda: statuses(outputs) == ["KILLED"], 20)  # if it was ended by force, its follower does that
    assert statuses(outputs) == ["KILLED"]
    return run


def statuses(outputs: Path) -> list[str]:
    with sqlite3.connect(outputs / "mlflow.db") as store:
        return [status for (status,) in store.execute("select status from runs")]


def has_checkpoint(run: Summary) -> bool:
    return any(run.folder.glob("checkpoints/step-*.npz"))


def test_a_hangup_and_a_closed_output_save_and_the_same_command_resumes(outputs: Path) -> None:
    with running(outputs) as process:
        wait_for(process, r"epoch +2/")
        process.send_signal(signal.SIGHUP)
        first = end(process, outputs, 129)
    assert first.error == "stopped by SIGHUP"
    assert has_checkpoint(first)
    with running(outputs) as process:
        wait_for(process, "resuming training after step")
        assert process.stdout is not None
        process.stdout.close()  # as `| head` does
        second = end(process, outputs, 141)
    assert (second.folder, second.run_id) == (first.folder, first.run_id)
    assert "standard output" in (second.error or "")
    assert second.resumed_from_step is not None


def test_nohup_is_respected_and_a_second_signal_is_not_lost(outputs: Path) -> None:
    """Neither a hangup nor a closed console stops it. Two SIGINTs 0.4 s apart stop it like a single one."""
    with running(outputs, is_forked=False, ignored=signal.SIGHUP) as process:
        wait_for(process, r"epoch +2/")
        process.send_signal(signal.SIGHUP)
        wait_for(process, r"epoch +9/")
        assert process.stdout is not None
        process.stdout.close()
        time.sleep(2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
        end(process, outputs, 130)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_stage_without_a_safe_place_is_ended_by_force_and_its_run_marked(count: int, outputs: Path) -> None:
    """It ends after RUN_SECONDS, SECOND_SECONDS or at once. The run is also recorded after a second or third signal."""
    limits = (signals.RUN_SECONDS, signals.SECOND_SECONDS, 0.0)
    with running(outputs, f"model._target_={__name__}.busy") as process:
        wait_for(process, "looping")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)[:count]:
            process.send_signal(number)
            time.sleep(0.3)
        began = time.monotonic()
        run = end(process, outputs, 143)
        assert time.monotonic() - began < limits[count - 1] + signals.FORCED_EXIT_SECONDS + 1
    assert run.error == "forcibly stopped by SIGTERM"


def test_a_signal_at_any_moment_ends_the_command(outputs: Path, tmp_path: Path) -> None:
    """From the first import to training, the exit code is the documented one, and no run stays RUNNING."""
    moments = random.Random(1)
    for index, latest in enumerate((0.4, 5.0)):
        place = tmp_path / f"at-{index}"
        shutil.copytree(outputs, place)
        number = moments.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        moment = moments.uniform(latest / 2, latest)
        with running(place, is_forked=False) as process:
            assert isinstance(process, subprocess.Popen)
            time.sleep(moment)
            process.send_signal(number)
            began = time.monotonic()
            printed, errors = process.communicate(timeout=60)
            taken = time.monotonic() - began
        told = f"{signal.Signals(number).name} after {moment:.2f} s: exit code {process.returncode}\n{printed}{errors}"
        assert (process.returncode, "Traceback" in errors) == (128 + number, False), told
        assert taken < commands.HEARD_SECONDS, told
        assert set(statuses(place)) <= {"KILLED"}, told


@pytest.fixture
def listening() -> Iterator[None]:
    with signals.listening():
        yield


def heard(count: int = 1) -> None:
    deadline = time.monotonic() + 5
    while signals.times_requested() < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.smoke
def test_every_signal_counts_once_and_the_first_gives_the_exit_code(listening: None) -> None:
    """Handlers do not raise; safe places do."""
    with signals.supervising():
        for count, number in enumerate((signal.SIGHUP, signal.SIGINT, signal.SIGINT), 1):
            signal.raise_signal(number)
            signal.raise_signal(number)  # at the same time: `timeout` sends it to the process, and to its group
            heard(count)
            time.sleep(0.4)
            assert signals.times_requested() == count
    with pytest.raises(Interrupted) as stopped:
        signals.check()
    assert stopped.value.exit_code == 129


def test_a_signal_does_not_interrupt_code_between_safe_places_or_while_it_is_deferred(listening: None) -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.3)
    with signals.ending():
        signals.check()
    with contextlib.suppress(Interrupted), signals.stopping() as stop:
        signals.check()
        assert stop.requested
        with pytest.raises(Interrupted), stop.nothing_to_keep():  # such as a function that is being traced
            signals.check()
        signals.check()
    with pytest.raises(Interrupted):
        signals.check()


def again(count: int) -> float:
    """Send a further signal; return the seconds until the process would be ended by force."""
    signal.raise_signal(STOPS[count - 1])
    heard(count)
    return signals._listener.deadline - time.monotonic()


@pytest.mark.parametrize(
    ("part", "limits"),
    [(lambda: signals.allow(5.0), (5.0, 4.0, 0.0)), (signals.ending, (8.0, 4.0, 0.0)),
     (signals.stopping, (300.0, 4.0, 0.0)), (signals.supervising, (330.0, 20.0, 20.0))],
)  # fmt: skip
def test_a_part_may_allow_itself_time_and_a_further_signal_shortens_it(
    part: Any, limits: Sequence[float], listening: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "end_by_force", lambda *_: None)
    signals._listener.owns_process = True  # as otherwise a second one may raise
    try:
        with contextlib.suppress(Interrupted), part():
            for count, seconds in enumerate(limits, 1):
                assert seconds - 1 < again(count) <= seconds
    finally:
        signals._listener.owns_process = False


def test_each_part_has_its_own_time(listening: None) -> None:
    """The end of a run keeps its time after saving, and code after saving does not get the time for saving."""
    with signals.allow(5.0):
        with contextlib.suppress(Interrupted), signals.stopping():
            assert again(1) > 290
        assert 4 < signals._listener.deadline - time.monotonic() <= 5
        with signals.ending():
            assert 7 < signals._listener.deadline - time.monotonic() <= 8


def test_in_a_notebook_a_second_signal_ends_code_without_a_safe_place(listening: None) -> None:
    """It does not interrupt the end of a run or the wait for other processes, and the process continues."""
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.3)
    for part in (signals.ending, signals.supervising):
        with part():
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    began = time.monotonic()
    with pytest.raises(Interrupted), signals.stopping():
        time.sleep(30)
    assert time.monotonic() - began < 5


FORCED = """
import sys, time
from pipeline.system import signals

def mark(request):
    print("marked:", request.reason, flush=True)

with signals.listening(owns_process=True), signals.allow(0.3):
    signals.on_forced_exit(mark)
    {ended}
    print("ready", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""


@pytest.mark.smoke
@pytest.mark.parametrize(("ended", "code", "marked"), [("", 143, "marked: SIGTERM"), ("signals.ended(3)", 3, "")])
def test_a_process_that_has_no_time_left_is_ended_with_its_run_marked_once(ended: str, code: int, marked: str) -> None:
    """Code that catches every exception cannot prevent it. A run whose outcome is recorded is not marked again."""
    script = FORCED.format(ended=f"{ended}; signals._listener.seconds = 0.3" if ended else "pass")
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(10) == code
        assert process.stdout.read().strip() == marked


def test_a_handler_that_native_code_has_replaced_is_restored(listening: None) -> None:
    """TensorFlow replaces the handler of SIGTERM when it joins a cluster."""
    import ctypes

    libc = ctypes.CDLL(None)
    nothing = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    libc.signal(signal.SIGTERM, nothing)
    signals.check()
    signal.raise_signal(signal.SIGTERM)
    heard()


def test_a_time_limit_is_a_stop_with_its_own_exit_code(listening: None) -> None:
    signals.time_out(time.monotonic() + 0.3, 0.3)
    with pytest.raises(Interrupted, match=r"job_timeout_seconds=0\.3") as stopped:
        signals.pause(30)
    assert stopped.value.exit_code == 124 not in STOPPED  # a sweep's other jobs run


def test_the_event_loop_of_a_notebook_is_notified_of_signals_again() -> None:
    ends = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(ends[1])
    with signals.listening():
        pass
    assert signal.set_wakeup_fd(before) == ends[1]


def test_signals_of_a_forked_process_do_not_reach_its_parent(listening: None) -> None:
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    time.sleep(0.5)
    assert signals.requested() is None
