"""Signals and closed outputs: heard within ten seconds, whenever they come, and nothing is lost."""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.exit_codes import STOPPED
from pipeline.runs.summary import Summary
from pipeline.system import signals
from pipeline.system.signals import Interrupted
from tests import commands
from tests.conftest import ROOT
from tests.pipeline.experiments import LONG

pytestmark = pytest.mark.slow


def busy(reporter: Any, dataset: Any, strategy: Any, settings: Mapping[str, Any]) -> None:
    """Is a stage of the user's own that reaches no safe place."""
    reporter.log("looping")
    while True:
        pass


def deaf(reporter: Any, dataset: Any, strategy: Any, settings: Mapping[str, Any]) -> None:
    """Catches whatever is raised in it."""
    reporter.log("looping")
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.1)


Process = commands.Command | subprocess.Popen[str]


@contextmanager
def running(
    outputs: Path, *given: str, is_forked: bool = True, ignored: signal.Signals | None = None
) -> Iterator[Process]:
    """Runs the command; in a process that begins with it for signals that come, or are `ignored`, from the first on."""
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
    """Waits for the end of `process` and returns its run, which is KILLED in MLflow, too."""
    began = time.monotonic()
    assert process.wait(300) == code
    assert time.monotonic() - began < commands.HEARD_SECONDS
    assert process.stderr is not None
    assert not re.search("Traceback|BrokenPipe|SystemExit", process.stderr.read())
    run = Summary.read(max(outputs.glob("runs/*/*/summary.json")).parent)
    assert (run.status, statuses(outputs)) == ("KILLED", ["KILLED"])
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
    """Neither a hangup nor the console's end stops it; two SIGINTs 0.4 s apart do, as one would."""
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


@pytest.mark.parametrize("stage", ["busy", "deaf"])
def test_a_stage_that_reaches_no_safe_place_is_ended_and_its_run_marked(stage: str, outputs: Path) -> None:
    with running(outputs, f"model._target_={__name__}.{stage}") as process:
        wait_for(process, "looping")
        process.send_signal(signal.SIGTERM)
        if stage == "busy":
            wait_for(process, "^run ")
            process.send_signal(signal.SIGINT)  # a second one does not cost the record
        run = end(process, outputs, 143)
    assert "stopped by SIGTERM" in (run.error or "")


def test_a_signal_at_any_moment_is_heard(outputs: Path, tmp_path: Path) -> None:
    """From the first import to training: the contract's exit code, and no run that is RUNNING."""
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
    """No handler raises; a safe place does."""
    for count, number in enumerate((signal.SIGHUP, signal.SIGINT, signal.SIGINT), 1):
        signal.raise_signal(number)
        signal.raise_signal(number)  # at the same time: `timeout` sends it to the process, and to its group
        heard(count)
        time.sleep(0.4)
        assert signals.times_requested() == count
    with pytest.raises(Interrupted) as stopped:
        signals.check()
    assert stopped.value.exit_code == 129


class Swallows:
    """Its destructor runs where an exception cannot be raised."""

    def __del__(self) -> None:
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            pass


def test_an_interruption_that_falls_into_a_destructor_is_repeated(listening: None) -> None:
    def work() -> None:
        Swallows()
        while True:
            time.sleep(10)

    signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted), signals.interruptible(grace=0.2):
        work()


def test_only_code_of_stages_is_interrupted(listening: None) -> None:
    signal.raise_signal(signal.SIGINT)
    with signals.interruptible(grace=0.0), signals.uninterrupted():
        time.sleep(1.5)
    with signals.ending():
        time.sleep(1.5)
        signals.check()
    with contextlib.suppress(Interrupted), signals.stopping() as stop:
        time.sleep(1.5)
        signals.check()
        assert stop.requested
        with pytest.raises(Interrupted), stop.nothing_to_keep():  # such as a function that is being traced
            time.sleep(30)


def test_a_second_signal_interrupts_training(listening: None) -> None:
    signal.raise_signal(signal.SIGINT)
    heard()
    threading.Timer(0.4, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(Interrupted), signals.stopping():
        time.sleep(30)


def test_a_handler_that_native_code_has_replaced_is_put_back(listening: None) -> None:
    """As TensorFlow does with SIGTERM when it joins a cluster."""
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


def test_the_event_loop_of_a_notebook_hears_of_signals_again() -> None:
    ends = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(ends[1])
    with signals.listening():
        pass
    assert signal.set_wakeup_fd(before) == ends[1]


def test_a_forked_process_does_not_tell_its_parent_of_its_signals(listening: None) -> None:
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    time.sleep(0.5)
    assert signals.requested() is None
