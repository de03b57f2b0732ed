"""The connections between the process of a job and the process of its sweep."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from pipeline.exit_codes import DONE
from pipeline.system import signals


@dataclass
class Turn:
    """The turn of a sweep's job to train: it may start while the job before it is evaluated and exported."""

    connection: Connection | None = None
    """The connection to the sweep's process; None if no other job runs, so this one does not have to wait."""
    limit: float | None = None
    """The setting `job_timeout_seconds`."""
    waited: float = 0.0
    """Seconds that the job waited for the previous job to end."""
    has_come: bool = False
    """Whether the job may train."""

    @property
    def is_awaited(self) -> bool:
        """Whether the job must wait before it trains."""
        return self.connection is not None and not self.has_come

    def wait(self) -> None:
        """Wait for the turn if it has not come yet. The job's time limit begins when it comes."""
        if not self.is_awaited:
            return
        began = time.monotonic()
        try:
            came = signals.until(self._came)
        finally:
            self.waited = time.monotonic() - began
        self.has_come = True
        if self.limit is not None:
            signals.time_out(came + self.limit, self.limit)

    def _came(self) -> float:
        """Return when the turn came, in seconds of `time.monotonic()`; 0 if it has not come yet."""
        assert self.connection is not None
        with suppress(EOFError, OSError):  # the sweep was killed, which ends its jobs
            return float(self.connection.recv()) if self.connection.poll() else 0.0
        return 0.0

    def has_trained(self) -> None:
        """Let the next job start and wait for its turn."""
        self._notify_sweep(None)

    def has_finished(self) -> None:
        """Let the next job train: only the upload of this one remains."""
        self._notify_sweep(DONE)

    def _notify_sweep(self, code: int | None) -> None:
        if self.connection is not None:
            with suppress(OSError):
                self.connection.send(code)


@dataclass(frozen=True)
class Link:
    """The connections of a job to its sweep. By default there are none, as for a single run."""

    turn: Turn = field(default_factory=Turn)
    is_followed: bool = False
    """Whether the process that started this one sends the records to MLflow."""
