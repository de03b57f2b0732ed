"""A process that nobody watches ends itself where it hangs, and only there."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

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
STEPS = """for _ in range(4):
                pulse.beat(); signals.check()
                for _ in range(5): time.sleep(0.5)"""
PYTHON = "with signals.interruptible(): time.sleep(600)"
NATIVE = "threading.Lock().acquire() and (lock := threading.Lock()).acquire() and lock.acquire()"
COMPUTES = """end = time.monotonic() + 6
            while time.monotonic() < end: pass"""


def started(body: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@pytest.mark.parametrize(
    ("body", "code", "last"),
    [(STEPS, 0, "begun"), (COMPUTES, 0, "begun"), (PYTHON, 1, "heard itself: "), (NATIVE, 1, "by force itself: ")],
    ids=["steps", "computes", "waits in Python", "waits in native code"],
)
def test_it_ends_one_way_where_it_hangs(body: str, code: int, last: str) -> None:
    process = started(body)
    printed = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == code
    assert printed[-1].startswith(last)
    assert len(printed) == (2 if code else 1), printed


def test_a_process_that_was_suspended_is_not_one_that_hangs() -> None:
    process = started(STEPS)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1.3)  # the step has a second left
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(8)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0, process.stdout.read()
