"""Runs jobs in separate processes, several at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from signal import SIGTERM

from pipeline.console import Console
from pipeline.exit_codes import WRONG_CONFIGURATION
from pipeline.planning.job import Job
from pipeline.run.child import POLL_SECONDS
from pipeline.run.engine import RemoteJob, engine_of
from pipeline.sweep.places import Place
from pipeline.sweep.process import JobProcess
from pipeline.system import pulse, signals
from pipeline.system.signal_listener import Request, signal_request
from stages.errors import UserError


def _ignore(*_: object) -> None:
    """Does nothing of what happens to a job."""


@dataclass
class Scheduler:
    """Runs each job in a process of its own, as many at a time as there are places.

    The next job is taken from `jobs` only when a place is free, after `on_end` of the job that freed it: a search
    decides by the results so far. Jobs whose engine runs them elsewhere are started together, as many as there are free
    places.

    jobs: each with a folder of its own; asked again, while others run, after it had none.
    free: the places without a job, of those that `places.deal_out` returns.
    on_start: called before a job's process is started. on_end: called with a job and its exit code.
    on_poll: called about every POLL_SECONDS with the processes that run; may `stop` any of them.
    """

    jobs: Iterator[Job]
    console: Console
    free: list[Place]
    on_start: Callable[[Job], None] = _ignore
    on_end: Callable[[Job, int], None] = _ignore
    on_poll: Callable[[Sequence[JobProcess | RemoteJob]], None] = _ignore

    def __post_init__(self) -> None:
        self._running: list[JobProcess | RemoteJob] = []
        self._places: dict[RemoteJob, Place] = {}

    def run(self) -> None:
        """Returns when all jobs have ended; whatever ends it, no process is left running.

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
        """Starts jobs in the places that are free, and returns whether any job runs."""
        while self._start_next():
            pass
        return bool(self._running)

    def _start_next(self) -> bool:
        """Starts jobs in the places that are free; returns whether their engine refused them, and others may run."""
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
        """Starts jobs on their engine, all at once; returns whether it takes them."""
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
            self._places[remote] = self.free.pop(0)
        return True

    def _wait(self) -> None:
        """Waits for the end of a process, POLL_SECONDS at most, and tells of those that have ended."""
        wait([process.sentinel for process in self._running if isinstance(process, JobProcess)], POLL_SECONDS)
        pulse.beat()
        for process in list(self._running):
            code = process.poll()
            if code is not None:
                self._running.remove(process)
                self.free.append(process.place if isinstance(process, JobProcess) else self._places.pop(process))
                self.on_end(process.job, code)

    def _stop_all(self, request: Request) -> None:
        """Has all processes save and end, and waits for them."""
        with signals.supervising():
            while self._running:
                for process in self._running:
                    process.stop(request, max(signals.times_requested(), 1))
                self._wait()
