"""The jobs of a sweep, several at a time, each in a process of its own."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
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

Running = JobProcess | RemoteJob


def _ignore(*_: object) -> None:
    """Do nothing of what happens to a job."""


@dataclass
class Scheduler:
    """Runs each job in a process of its own, as many at a time as there are slots.

    The next job is taken from `jobs` only when a slot is free, after `on_end` of the job that freed it: a search
    decides by the results so far. One that died or failed is run again after the others. Jobs whose engine runs them
    elsewhere are started together.
    """

    jobs: Iterator[Job]  # each with a folder of its own; asked again, while others run, after it had none
    console: Console
    free: list[Slot]
    retries: int = 0  # times that each job is run again
    on_end: Callable[[Job, int, float, bool], None] = _ignore  # a job, its exit code and seconds, whether it runs again
    on_poll: Callable[[Sequence[Running]], None] = _ignore  # about every POLL_SECONDS; may `stop` any

    def __post_init__(self) -> None:
        self._running: dict[Running, Slot] = {}
        self._again = deque[Job]()
        self._left: defaultdict[Path | None, int] = defaultdict(lambda: self.retries)

    def run(self) -> None:
        """Return when all jobs have ended; whatever ends it, no process is left running.

        Raises:
            Interrupted: after a signal, when all processes have saved and ended, and `on_end` was called for each.
        """
        try:
            while self._fill():
                signals.check()
                self._wait()
                self.on_poll(list(self._running))
            signals.check()
        except BaseException:
            self._stop_all(signals.requested() or signal_request(SIGTERM))
            raise

    def _fill(self) -> bool:
        """Start jobs in the slots that are free; return whether any job runs."""
        while True:
            elsewhere: list[Job] = []
            while len(self.free) > len(elsewhere) and (job := self._next()) is not None:
                if job.experiment.cluster.submits_jobs:
                    elsewhere.append(job)
                else:
                    slot = self.free.pop(0)
                    self._running[JobProcess(job, self.console, slot)] = slot
            if not elsewhere or self._start_elsewhere(elsewhere):
                return bool(self._running)

    def _next(self) -> Job | None:
        """Return the next job, once its tracking server answers; None where there is none for now."""
        signals.check()
        job = next(self.jobs, None) or (self._again.popleft() if self._again else None)
        if job is not None:
            wait_for_server(job.experiment, self.console)
        return job

    def _start_elsewhere(self, jobs: Sequence[Job]) -> bool:
        """Start jobs on their engine, all at once; return whether it takes them."""
        try:
            started = engine_of(jobs[0].experiment).start(jobs, self.console)
        except UserError as error:
            self.console.error(str(error))
            for job in jobs:
                self.on_end(job, WRONG_CONFIGURATION, 0.0, False)
            return False
        self._running |= {remote: self.free.pop(0) for remote in started}
        return True

    def _wait(self) -> None:
        """Wait for the end of a process, POLL_SECONDS at most, and tell of those that have ended."""
        wait([process.sentinel for process in self._running if isinstance(process, JobProcess)], POLL_SECONDS)
        pulse.beat()
        for process in list(self._running):
            code = process.poll()
            if code is not None:
                self.free.append(self._running.pop(process))
                again = code not in FINAL and self._left[process.job.folder] > 0
                if again:
                    self._left[process.job.folder] -= 1
                    self._again.append(process.job)
                self.on_end(process.job, code, time.monotonic() - process.started, again)

    def _stop_all(self, request: Request) -> None:
        """Have all processes save and end, and wait for them."""
        with signals.supervising():
            while self._running:
                for process in self._running:
                    process.stop(request, max(signals.times_requested(), 1))
                self._wait()


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
