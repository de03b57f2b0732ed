"""Processes that hang are ended, but not processes that compute, or that wait and have heartbeats."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.console import Console
from pipeline.execute.child import leave
from pipeline.exit_codes import HUNG, TIMED_OUT
from pipeline.system import signals
from pipeline.system.processes import LocalProcess, watch
from pipeline.system.signals import until
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def ended(log: Path) -> None:
    """Behave as a job whose run has closed its console."""
    console = Console(log)
    console.close()
    leave(lambda: TIMED_OUT, console)


def test_a_job_ends_with_the_exit_code_of_its_run(tmp_path: Path) -> None:
    process = LocalProcess(ended, (tmp_path / "pipeline.log",))
    process.join()
    assert process.end() == (TIMED_OUT, "")


LIMIT = 2.0


def alive(how: str) -> None:
    """Behave as a job that works, and then hangs or computes as `how` describes."""
    watch(LIMIT)
    for _ in range(10):  # more than a job has
        threading.Thread(target=until, args=(lambda: None,), daemon=True).start()
    if how == "holds Python's lock":
        ctypes.PyDLL(None).pause()
    if how == "computes with Python's lock":
        sum(range(10**12))
    while True:
        time.sleep(0.1)
        signals.beat()


def test_a_process_that_cannot_end_itself_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is suspended, or its native code waits while it holds Python's lock. A computing one is not killed."""
    monkeypatch.setattr("pipeline.system.processes.LOCKED_SECONDS", 0.5)
    monkeypatch.setattr("pipeline.system.processes.LONGEST_TICK_SECONDS", LIMIT + 1)
    ways = ("is alive", "holds Python's lock", "computes with Python's lock", "is suspended", "may hang")
    processes = [LocalProcess(alive, (how,), None if how == "may hang" else LIMIT) for how in ways]
    try:
        ended: dict[str, tuple[int, str] | None] = {}

        def look(count: int | None = None) -> bool:
            ended.update((how, end) for how, process in zip(ways, processes, strict=True) if (end := process.end()))
            return len(ended) == count

        def have_begun() -> bool:
            look()
            return all(process._ticks.value for process in (processes[0], *processes[3:]))

        assert until(have_begun, 60)
        assert not {"is alive", "is suspended"} & ended.keys()
        for process in processes[3:]:
            process.signal(signal.SIGSTOP)
        until(lambda: look(2), 4 * LIMIT)
        hung = (HUNG, "made no progress for hang_seconds")
        assert ended == {"holds Python's lock": hung, "is suspended": hung}
        processes[0].signal(signal.SIGSTOP)
        look()
        time.sleep(LIMIT + 1.5)  # as suspended itself, with its jobs
        look()
        processes[0].signal(signal.SIGCONT)
        until(look, 2 * LIMIT)
        assert ended == {"holds Python's lock": hung, "is suspended": hung}
    finally:
        for process in processes:
            process.kill()
            process.join()


SCRIPT = """
import sys, threading, time
from pipeline.system import signals
from pipeline.system.processes import watch

watch(3.0)
with signals.listening(owns_process=True):
    signals.on_forced_exit(lambda request: print("by force", request.reason, flush=True))
    print("begun", flush=True)
    {body}
"""
STEPS = """for _ in range(3):
        signals.check()
        for _ in range(5): time.sleep(0.5)"""
PYTHON = "time.sleep(600)"
NATIVE = "threading.Lock().acquire() and (lock := threading.Lock()).acquire() and lock.acquire()"
COMPUTES = """end = time.monotonic() + 6
    while time.monotonic() < end: pass"""


def test_a_process_ends_itself_only_if_it_hangs() -> None:
    """A process that was suspended does not hang. All run at once, because each waits for seconds and uses no CPU."""

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
    said = ("begun", "begun", "by force itself", "by force itself")
    for process, code, last in zip(others, (0, 0, HUNG, HUNG), said, strict=True):
        printed = process.communicate(timeout=60)[0].splitlines()
        assert process.returncode == code, printed
        assert printed[-1].startswith(last)
        assert len(printed) == (2 if code else 1), printed
    assert suspended.wait(60) == 0, suspended.stdout.read()
