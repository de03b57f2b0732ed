"""The jobs of a sweep, several at a time, each in a process of its own."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from signal import SIGTERM

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.exit_codes import DONE, STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.planning.job import Job
from pipeline.run.child import POLL_SECONDS
from pipeline.run.engine import RemoteJob, engine_of
from pipeline.sweep.process import JobProcess
from pipeline.sweep.slots import Slot
from pipeline.system import pulse, signals
from pipeline.system.signal_listener import Request, signal_request
from pipeline.tracking.store import server_answers
from stages.errors import UserError

SERVER_PATIENCE_SECONDS = 600.0
"""Seconds that a sweep waits for a tracking server that went away; a job that begins without it is refused."""

FINAL = (DONE, WRONG_CONFIGURATION, TIMED_OUT, *STOPPED)
"""Exit codes after which a job is not run again: the same would happen, or the user wants it to end."""


class Queue:
    """An iterator over jobs that may have more after it had none: one that died or failed is put in again."""

    def __init__(self, jobs: Iterable[Job], retries: int, before: Callable[[Job], None] = lambda job: None) -> None:
        """Take the jobs, each only when it is asked for.

        Args:
            retries: how many times each is run again. before: called with a job before it is handed out.
        """
        self._jobs = iter(jobs)
        self._again = deque[Job]()
        self._left: defaultdict[Path | None, int] = defaultdict(lambda: retries)
        self._before = before

    def __iter__(self) -> "Queue":
        return self

    def __next__(self) -> Job:
        job = next(self._jobs, None)
        if job is None:
            if not self._again:
                raise StopIteration
            job = self._again.popleft()
        self._before(job)
        return job

    def again(self, job: Job, code: int) -> bool:
        """Put a job that has ended with `code` in again, if it is to be; return whether it was."""
        if code in FINAL or not self._left[job.folder]:
            return False
        self._left[job.folder] -= 1
        self._again.append(job)
        return True


def wait_for_server(experiment: Experiment, console: Console) -> None:
    """Wait for a tracking server that went away since the sweep began: a job cannot begin without it."""
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            server_answers(experiment)
            return
        except UserError as error:
            console.warn(f"{error.problem}; the next job waits for it")
            signals.pause(10)


def _ignore(*_: object) -> None:
    """Do nothing of what happens to a job."""


@dataclass
class Scheduler:
    """Runs each job in a process of its own, as many at a time as there are slots.

    The next job is taken from `jobs` only when a slot is free, after `on_end` of the job that freed it: a search
    decides by the results so far. Jobs whose engine runs them elsewhere are started together.
    """

    jobs: Iterator[Job]  # each with a folder of its own; asked again, while others run, after it had none
    console: Console
    free: list[Slot]
    on_start: Callable[[Job], None] = _ignore  # called before a job's process is started
    on_end: Callable[[Job, int], None] = _ignore  # called with a job and its exit code
    on_poll: Callable[[Sequence[JobProcess | RemoteJob]], None] = _ignore  # about every POLL_SECONDS; may `stop` any

    def __post_init__(self) -> None:
        self._running: list[JobProcess | RemoteJob] = []
        self._slots: dict[RemoteJob, Slot] = {}

    def run(self) -> None:
        """Return when all jobs have ended; whatever ends it, no process is left running.

        Raises:
            Interrupted: after a signal, when all processes have saved and ended, and `on_end` was called for each.
        """
        try:
            while self._fill():
                signals.check()
                self._wait()
                self.on_poll(self._running)
            signals.check()
        except BaseException:
            self._stop_all(signals.requested() or signal_request(SIGTERM))
            raise

    def _fill(self) -> bool:
        """Start jobs in the slots that are free; return whether any job runs."""
        while self._start_next():
            pass
        return bool(self._running)

    def _start_next(self) -> bool:
        """Start jobs in the slots that are free; return whether their engine refused them, and others may run."""
        elsewhere: list[Job] = []
        while len(self.free) > len(elsewhere):
            signals.check()
            job = next(self.jobs, None)
            if job is None:
                break
            if job.experiment.cluster.submits_jobs:
                elsewhere.append(job)
            else:
                self.on_start(job)
                self._running.append(JobProcess(job, self.console, self.free.pop(0)))
        return bool(elsewhere) and not self._start_elsewhere(elsewhere)

    def _start_elsewhere(self, jobs: Sequence[Job]) -> bool:
        """Start jobs on their engine, all at once; return whether it takes them."""
        for job in jobs:
            self.on_start(job)
        try:
            started = engine_of(jobs[0].experiment).start(jobs, self.console)
        except UserError as error:
            self.console.error(str(error))
            for job in jobs:
                self.on_end(job, WRONG_CONFIGURATION)
            return False
        for remote in started:
            self._running.append(remote)
            self._slots[remote] = self.free.pop(0)
        return True

    def _wait(self) -> None:
        """Wait for the end of a process, POLL_SECONDS at most, and tell of those that have ended."""
        wait([process.sentinel for process in self._running if isinstance(process, JobProcess)], POLL_SECONDS)
        pulse.beat()
        for process in list(self._running):
            code = process.poll()
            if code is not None:
                self._running.remove(process)
                self.free.append(process.slot if isinstance(process, JobProcess) else self._slots.pop(process))
                self.on_end(process.job, code)

    def _stop_all(self, request: Request) -> None:
        """Have all processes save and end, and wait for them."""
        with signals.supervising():
            while self._running:
                for process in self._running:
                    process.stop(request, max(signals.times_requested(), 1))
                self._wait()
