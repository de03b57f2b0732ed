"""Signs of life: what hangs is told from what computes, and from what waits and says so."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.console import Console
from pipeline.exit_codes import TIMED_OUT
from pipeline.run.child import leave
from pipeline.system.processes import LocalProcess
from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signals import until
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

LIMIT = 1.0


def asleep(pulse: Pulse) -> None:
    time.sleep(60)


def busy(pulse: Pulse) -> None:
    while True:
        pass


def alive(pulse: Pulse) -> None:
    while True:
        time.sleep(0.1)
        pulse.beat()


def ended(pulse: Pulse, log: Path) -> None:
    """As a job whose run has closed its console."""
    console = Console(log)
    console.close()
    leave(lambda: TIMED_OUT, console)


def test_a_job_ends_with_the_exit_code_of_its_run(tmp_path: Path) -> None:
    process = LocalProcess(ended, (tmp_path / "pipeline.log",))
    process.join()
    assert process.poll() == TIMED_OUT


def test_what_neither_computes_nor_reaches_a_safe_place_hangs() -> None:
    processes = [LocalProcess(target, ()) for target in (asleep, busy, alive)]
    try:
        time.sleep(4)  # until they have imported what they need
        watches = [Watch(process._watch._pulse, process.pid, LIMIT) for process in processes]
        hung: set[int] = set()

        def note() -> None:
            for number, watch in enumerate(watches):
                if watch.hangs():
                    hung.add(number)

        until(note, 3 * LIMIT)
        assert hung == {0}
        processes[2].signal(signal.SIGSTOP)
        until(note, 3 * LIMIT)
        assert hung == {0, 2}
    finally:
        for process in processes:
            process.kill()


SCRIPT = """
import sys, threading, time
from pipeline.exit_codes import FAILED
from pipeline.system import pulse, signals
from pipeline.system.pulse import watching_itself
from pipeline.system.signals import Interrupted

code = 0
last_words = signals.on_forced_exit(lambda request: print("by force", request.reason, flush=True))
with signals.listening(owns_process=True), last_words:
    try:
        with signals.uninterrupted(), watching_itself(3.0):
            print("begun", flush=True)
            {body}
    except Interrupted as interrupted:
        print("heard", interrupted, flush=True)
        code = interrupted.exit_code
    signals.ended(code)
sys.exit(code)
"""
STEPS = """for _ in range(3):
                pulse.beat(); signals.check()
                for _ in range(5): time.sleep(0.5)"""
PYTHON = "with signals.interruptible(): time.sleep(600)"
NATIVE = "threading.Lock().acquire() and (lock := threading.Lock()).acquire() and lock.acquire()"
COMPUTES = """end = time.monotonic() + 6
            while time.monotonic() < end: pass"""


def test_a_process_that_nobody_watches_ends_itself_where_it_hangs_and_only_there() -> None:
    """One that was suspended does not hang. All at once, as each needs seconds and no core."""

    def started(body: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", SCRIPT.format(body=body)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    suspended, *others = map(started, (STEPS, STEPS, COMPUTES, PYTHON, NATIVE))
    assert suspended.stdout is not None
    assert suspended.stdout.readline() == "begun\n"
    time.sleep(1.3)  # the step has a second left
    os.kill(suspended.pid, signal.SIGSTOP)
    time.sleep(6.5)
    os.kill(suspended.pid, signal.SIGCONT)
    for process, code, last in zip(others, (0, 0, 1, 1), ("begun", "begun", "heard itself", "by force"), strict=True):
        printed = process.communicate(timeout=60)[0].splitlines()
        assert process.returncode == code, printed
        assert printed[-1].startswith(last)
        assert len(printed) == (2 if code else 1), printed
    assert suspended.wait(60) == 0, suspended.stdout.read()
