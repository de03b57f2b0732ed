"""Runs a batch of a sweep's jobs: queued, retried, shown as they end."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.config.sweep_settings import SweepSettings
from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.sweep.display import Display
from pipeline.sweep.job_queue import Queue
from pipeline.sweep.places import Place
from pipeline.sweep.scheduler import run_jobs
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
        run_jobs(queue, display.console, places=places, on_start=started, on_end=ended, on_poll=display.poll)


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
