"""The handle of a run that was started somewhere: in this process or others of the machine, by Slurm or by Ray."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pipeline.decide.job import Job
from pipeline.runs.folder import RunFolder
from pipeline.system.signals import Request


class Handle(ABC):
    """A run that was started somewhere.

    Attributes:
        job: What it runs.
        folder: The run's folder.
        started: When it began to work, in seconds of `time.monotonic()`.
        exit_code: The exit code; None while it runs.
    """

    def __init__(self, job: Job) -> None:
        assert job.folder is not None
        self.job = job
        self.folder: RunFolder = job.folder
        self.started = time.monotonic()
        self.exit_code: int | None = None

    @abstractmethod
    def poll(self) -> int | None:
        """Return the exit code, or None while it runs. Call this every POLL_SECONDS.

        If its processes have ended without ending the run, this ends the run.
        """

    @abstractmethod
    def stop(self, request: Request, count: int = 1) -> None:
        """Ask it to save and end, as `count` signals do. Call this repeatedly until `poll` returns its exit code."""

    @property
    def events(self) -> Sequence[Any]:
        """Objects for `multiprocessing.connection.wait`: one is ready when `poll` may return a code."""
        return ()

    def has_left(self) -> bool:
        """Return whether all its processes have ended. A job that has finished may still upload its records."""
        return self.exit_code is not None

    # Jobs that overlap: see Turn. By default a job trains at once, and the next job starts after its end.

    def train(self) -> None:  # noqa: B027  most have nothing to do
        """Let it train, if it waits for its turn."""

    def makes_room(self) -> bool:
        """Return whether the next job may already start in its place: this one has trained, and both fit in memory."""
        return False


class Ended(Handle):
    """A run that has ended when it is returned, such as one in this process."""

    def __init__(self, job: Job, exit_code: int) -> None:
        super().__init__(job)
        self._ended_with = exit_code

    def poll(self) -> int:
        self.exit_code = self._ended_with
        return self.exit_code

    def stop(self, request: Request, count: int = 1) -> None:
        """Do nothing: it has ended."""
