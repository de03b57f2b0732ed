"""Runs one job of a sweep in a process of its own."""

import math
import sys
import time
from dataclasses import replace
from multiprocessing.connection import wait

from pipeline.run.child import POLL_SECONDS, code_of, enter, exit_code_of, pass_on
from pipeline.run.clock import process_started
from pipeline.run.console import Console
from pipeline.run.job import WRONG_CONFIGURATION, Job
from pipeline.run.launch import run_job
from pipeline.run.settle import LOST, end_lost
from pipeline.system import signals
from pipeline.system.processes import process_context, start
from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signals import TIMED_OUT

TIMEOUT_GRACE_SECONDS = 60.0
"""Seconds that a job may exceed `job_timeout_seconds` by, to save and end, before it is killed."""

BEFORE_RUN_SECONDS = 0.2
"""Before a job's run has begun nothing is lost: a signal need not wait for a safe place."""


def run_in_process(job: Job, console: Console) -> int:
    """Runs `job` in a process of its own and returns its exit code; a signal, or its time limit, ends it."""
    assert job.folder is not None
    context = process_context()
    shown = Pulse(context)
    process = start(context, _work, (job, shown))
    assert process.pid is not None
    hang_seconds = job.experiment.hang_seconds
    limit = job.experiment.job_timeout_seconds
    watch = Watch(shown, process.pid, hang_seconds) if hang_seconds is not None else None
    deadline = math.inf if limit is None else time.monotonic() + limit + TIMEOUT_GRACE_SECONDS
    reason, code = LOST, None
    while process.exitcode is None:
        wait([process.sentinel], POLL_SECONDS)
        if (request := signals.requested()) is not None:
            pass_on(process, shown)  # it is in a group of its own, so the terminal did not tell it
            code = request.exit_code
        elif process.exitcode is None and watch is not None and watch.hangs():
            reason = f"it gave no sign of life for {watch.silence():.0f} s, and was killed"
            process.kill()
        elif process.exitcode is None and time.monotonic() > deadline:
            reason, code = f"it did not end by job_timeout_seconds={limit:g}, and was killed", TIMED_OUT
            process.kill()
        elif watch is not None:
            watch.note()
        if reason is not LOST:
            process.join()
    process.join()
    with signals.ending(code):
        end_lost(job.folder, job.experiment, "FAILED" if code is None else "KILLED", console, reason)
    return exit_code_of(process) if code is None else code


def _work(job: Job, own: Pulse) -> None:
    enter(job, own)
    with signals.listening(owns_process=True), signals.interruptible(BEFORE_RUN_SECONDS):
        console = Console()
        own_job = replace(job, started=process_started())
        code = code_of(lambda: run_job(own_job, console), console, refused=WRONG_CONFIGURATION)
        signals.ended(code)
    sys.exit(code)
