"""The queue of a sweep: runs several jobs at a time, each on its own devices, and repeats those that failed."""

import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.decide.decision import decide
from pipeline.decide.job import Job
from pipeline.exit_codes import DONE, FAILED, STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.launch.forked import Forked
from pipeline.launch.handle import Handle
from pipeline.launch.launcher import launcher_of
from pipeline.launch.slots import Slot
from pipeline.launch.supervise import supervise
from pipeline.runs.folder import LOG, RunFolder
from pipeline.system import signals
from pipeline.tracking.follower import Follower
from pipeline.tracking.store import check_server
from stages.errors import UserError
from stages.settings.places import regular_file


def refusal_in(run: RunFolder) -> str | None:
    """Return why a job was refused before its run began, according to its log; None if the log has no reason."""
    with suppress(OSError):
        lines = regular_file(run.path / LOG).read_text(errors="replace").splitlines()
        return next((text for line in reversed(lines) if (text := line.partition(" error: ")[2])), None)
    return None


SERVER_PATIENCE_SECONDS = 600.0
"""Seconds that a sweep waits for a tracking server that has stopped responding. After that, jobs are refused."""

FINAL = (DONE, WRONG_CONFIGURATION, TIMED_OUT, *STOPPED)
"""Exit codes after which a job does not run again: it would end in the same way, or the user stopped it."""


@dataclass
class Scheduler:
    """Runs jobs, as many at a time as there are slots.

    The next job is taken only when a slot is free, after `on_end` for the job that freed it, because a search decides
    by the results so far. Jobs that died or failed run again after the others.
    """

    take: Callable[[], Job | None]
    """Returns the next job, which has its own folder; None if there is none now. Called again while other jobs run."""
    console: Console
    """Prints why the next job has to wait."""
    follower: Follower
    """Sends the records of jobs that run on this machine."""
    free: list[Slot]
    """The slots."""
    on_end: Callable[[Job, int, float, bool], None]
    """Receives a job that has ended, its exit code, its seconds, and whether it will run again."""
    on_poll: Callable[[Sequence[Handle]], None]
    """Receives the jobs that run, about every POLL_SECONDS. It may stop some."""
    retries: int = 0
    """The number of times that each job may run again."""
    overlaps: bool = False
    """Whether a job may begin while the one before is evaluated and exported; it trains after the end of that one."""

    def __post_init__(self) -> None:
        self._handles: list[Handle] = []  # includes jobs that have finished and still upload
        self._running: dict[Handle, Slot] = {}
        self._again = deque[Job]()
        self._left: defaultdict[RunFolder, int] = defaultdict(lambda: self.retries)

    def run(self) -> None:
        """Run jobs until there are none left. No process is still running when this returns or raises.

        Raises:
            Interrupted: After a signal, when all processes have saved and ended, and `on_end` was called for each.
        """
        supervise(self._handles, self._ended, self._look)
        signals.check()

    def _look(self) -> None:
        self.follower.revive()
        self._fill()
        self.on_poll(list(self._running))

    def _fill(self) -> None:
        """Start jobs in the slots that are free."""
        while (slot := self._slot()) is not None and (job := self._next()) is not None:
            elsewhere = job.experiment.cluster.submits_jobs
            try:
                launcher = launcher_of(job.experiment) if elsewhere else Forked(slot, self.follower)
                handle = launcher.start(decide(job), self.console)
            except Exception as error:  # concerns only this job; the others run
                self._refuse(job, error)
                continue
            self._handles.append(handle)
            self._running[handle] = slot
            if self.free:
                self.free.pop(0)
                handle.train()

    def _refuse(self, job: Job, error: Exception) -> None:
        """Report a job that cannot start. The reason is in its log, for `refusal_in`."""
        assert job.folder is not None
        job.folder.path.mkdir(parents=True, exist_ok=True)
        console = Console(log=job.folder.path / LOG)
        is_refused = isinstance(error, UserError)
        console.error(str(error) if is_refused else "".join(traceback.format_exception(error)))
        console.close()
        self.on_end(job, WRONG_CONFIGURATION if is_refused else FAILED, 0.0, False)

    def _slot(self) -> Slot | None:
        """Return the slot for the next job: a free one, or one whose job has trained, if both fit in memory."""
        if self.free or not self.overlaps or len(self._running) != 1:
            return self.free[0] if self.free else None
        [(running, slot)] = self._running.items()
        return slot if running.makes_room() else None

    def _release(self, slot: Slot) -> None:
        """Let the job train that waits for `slot`. If there is none, the slot is free."""
        if not self.overlaps or not self._running:
            self.free.append(slot)
        for running in self._running if self.overlaps else ():
            running.train()

    def _next(self) -> Job | None:
        """Return the next job, once its tracking server responds; None if there is none now."""
        signals.check()
        job = self.take() or (self._again.popleft() if self._again else None)
        if job is not None:
            wait_for_server(job.experiment, self.console)
        return job

    def _ended(self, handle: Handle, code: int) -> None:
        """Free the slot of a job that has ended, and report it."""
        self._release(self._running.pop(handle))
        again = code not in FINAL and self._left[handle.folder] > 0
        if again:
            self._left[handle.folder] -= 1
            self._again.append(handle.job)
        self.on_end(handle.job, code, time.monotonic() - handle.started, again)


def wait_for_server(experiment: Experiment, console: Console) -> None:
    """Wait for a tracking server that has stopped responding, because no job can begin without it."""
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            check_server(experiment)
            return
        except UserError as error:
            console.warn(f"{error.problem}; the next job is waiting for it")
            signals.pause(10)
