"""Followers in threads: hundreds of runs in one process need not import MLflow in as many others."""

import io
from pathlib import Path
from typing import Any

from pipeline.tracking.follower import FollowedCommand, Follower, Threads
from pipeline.tracking.store import Store

start_process = Follower._start


class InThreads:
    """In place of the follower's process, of the connection to it, and of its errors."""

    def __init__(self) -> None:
        self._command = FollowedCommand()
        self._threads = Threads(self._command)

    def send(self, request: tuple[Path, Store, str, Any]) -> None:
        """Follow a run."""
        self._threads.start(*request[:3])

    def poll(self) -> None:
        """Report that it works."""

    def kill(self) -> None:
        """Send nothing more."""
        self._command.is_done.set()

    def wait(self) -> None:
        """Wait for the entries that are being sent."""
        self._threads.join(30)

    def close(self) -> None:
        """Do nothing."""


def start_threads(follower: Any) -> None:
    """Replaces `Follower._start`."""
    follower._process = follower._connection = InThreads()
    follower._errors = io.BytesIO()
