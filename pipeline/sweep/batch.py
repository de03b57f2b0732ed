"""Runs a batch of a sweep's jobs: queued, retried, shown as they end."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.config.sweep_settings import SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import DONE, STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.planning.job import Job
from pipeline.sweep.display import Display
from pipeline.sweep.places import Place
from pipeline.sweep.scheduler import Scheduler
from pipeline.system import signals
from pipeline.tracking.health import server_answers
from stages.errors import UserError

SERVER_PATIENCE_SECONDS = 600.0
"""Seconds that a sweep waits for a tracking server that went away; a job that begins without it is refused."""


def run_batch(
    jobs: Iterable[Job],
    display: Display,
    settings: SweepSettings,
    places: Sequence[Place],
    on_end: Callable[[Job, int], None],
) -> None:
    """Runs jobs, again those that died as often as `settings` say, and shows each as it ends.

    Args:
        on_end: called with a job and its exit code when it has ended for good.

    Raises:
        Interrupted: after a signal, when all have ended.
    """
    queue = Queue(jobs, settings.retries, lambda job: wait_for_server(job.experiment, display.console))
    began: dict[Path | None, float] = {}

    def started(job: Job) -> None:
        began[job.folder] = time.monotonic()

    def ended(job: Job, code: int) -> None:
        assert job.folder is not None
        again = queue.again(job, code)
        display.ended(job.folder, code, time.monotonic() - began[job.folder], again)
        if not again:
            on_end(job, code)

    with display.console.live(display.table):
        Scheduler(queue, display.console, list(places), started, ended, display.poll).run()


def wait_for_server(experiment: Experiment, console: Console) -> None:
    """Waits for a tracking server that went away since the sweep began: a job cannot begin without it."""
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            server_answers(experiment)
            return
        except UserError as error:
            console.warn(f"{error.problem}; the next job waits for it")
            signals.pause(10)


FINAL = (DONE, WRONG_CONFIGURATION, TIMED_OUT, *STOPPED)
"""Exit codes after which a job is not run again: the same would happen, or the user wants it to end."""


class Queue:
    """An iterator over jobs that may have more after it had none: one that died or failed is put in again."""

    def __init__(self, jobs: Iterable[Job], retries: int, before: Callable[[Job], None] = lambda job: None) -> None:
        """Takes the jobs, each only when it is asked for.

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
        """Puts a job that has ended with `code` in again, if it is to be, and returns whether it was."""
        if code in FINAL or not self._left[job.folder]:
            return False
        self._left[job.folder] -= 1
        self._again.append(job)
        return True
