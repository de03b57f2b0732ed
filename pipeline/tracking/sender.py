"""Sends a journal to the store, in a thread, so that training waits for no store."""

import threading
from collections.abc import Callable

from mlflow.exceptions import MlflowException, RestException

from pipeline.secrets import redact
from pipeline.tracking.journal import Journal
from pipeline.tracking.mlflow_run import MlflowRun

RETRY_SECONDS = 2.0
TOO_LARGE = 413


class Sender:
    """Sends what `journal` has and the store has not, in order, for as long as it takes.

    Args:
        warn: is told once that the store has gone and once that it is back, and of every entry that it refuses.
    """

    def __init__(self, run: MlflowRun, journal: Journal, warn: Callable[[str], None]) -> None:
        self.trouble: str | None = None
        self._run, self._journal, self._warn = run, journal, warn
        self._changed = threading.Condition()
        self._closing = self._given_up = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="tracking")
        self._thread.start()

    def notify(self) -> None:
        """Tells it that there is a new entry."""
        with self._changed:
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Waits until all is sent, `seconds` at most; no entry is begun afterwards."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        self._given_up = True

    def _work(self) -> None:
        while not self._given_up:
            with self._changed:
                if not self._journal.unsent:
                    if self._closing:
                        return
                    self._changed.wait()
                    continue
            if not self._send():
                with self._changed:
                    self._changed.wait(RETRY_SECONDS)

    def _send(self) -> bool:
        """Sends one entry and returns whether it is done with."""
        entry = self._journal.entries[self._journal.sent]
        try:
            getattr(self._run, entry.call)(**entry.given)
        except Exception as error:  # whatever it is, training goes on
            reason = f"{type(error).__name__}: {' '.join(str(redact(str(error))).split())[:200]}"
            if not _is_refusal(error):
                if self.trouble is None:
                    self._warn(f"tracking: the store does not take what is sent ({reason}); it is kept and sent again")
                self.trouble = reason
                return False
            self._warn(f"tracking: the store refuses {entry.call} ({reason})")
        if self.trouble is not None:
            self.trouble = None
            self._warn("tracking: the store is back")
        try:
            self._journal.mark_sent()
        except OSError as error:  # it may be sent again, which changes nothing
            self.trouble = str(error)
        return True


def _is_refusal(error: Exception) -> bool:
    """Returns whether sending it again could not help."""
    if isinstance(error, RestException) and error.get_http_status_code() == TOO_LARGE:
        return True
    if isinstance(error, MlflowException):
        return error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
    return isinstance(error, (FileNotFoundError, PermissionError))
