"""Sends a journal to the store, in a thread, so that training waits for no store."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from pipeline.redaction import redact
from pipeline.system.pulse import beat
from pipeline.system.signals import Interrupted, stopping
from pipeline.tracking.journal import Entry, Journal
from pipeline.tracking.stored_run import StoredRun

STOPPED_SECONDS = 4.0
"""Seconds that the end of a run that was stopped, and is to end soon, waits for the store."""

FINISHED_SECONDS = 20.0
"""Seconds that a run that was not stopped waits for a store that does not answer."""

LONGEST_SECONDS = 600.0
"""Seconds that such a run waits for a store that answers, but slowly."""

RETRY_SECONDS = 2.0
TOLD_AFTER_SECONDS = 3.0
TOLD_EVERY_SECONDS = 15.0


class Sender:
    """Sends what `journal` has and the store has not, in order, and again where the store does not answer.

    Args:
        warn: gets a line when the store goes away, when it is back, and for every entry that it refuses.

    Attributes:
        trouble: why the store takes nothing at the moment.
        refused: entries, and values of entries, that the store will never take, and why.
    """

    def __init__(self, run: StoredRun, journal: Journal, warn: Callable[[str], None]) -> None:
        self.trouble: str | None = None
        self.refused: list[str] = []
        self._last_answer = time.monotonic()
        self._run = run
        self._journal = journal
        self._warn = warn
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._work, daemon=True, name="tracking").start()

    def notify(self) -> None:
        """Wake the thread, or who waits for it."""
        with self._changed:
            self._changed.notify_all()

    def flush(self, log: Callable[[str], None]) -> str | None:
        """Wait until the store has everything; a signal ends the wait. Return why it has not, None where it has."""
        with suppress(Interrupted), stopping() as stop:
            return self.wait(FINISHED_SECONDS, LONGEST_SECONDS, log, lambda: stop.requested)
        return "it was stopped while it waited"

    def wait(
        self,
        seconds: float,
        longest: float,
        log: Callable[[str], None] = lambda line: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> str | None:
        """Wait until the store has everything; return why it has not, or None where it has.

        Args:
            seconds: since the store last answered. longest: seconds in all.
        """
        began = self._last_answer = time.monotonic()
        say_at = began + TOLD_AFTER_SECONDS
        self.notify()
        while self._journal.unsent:
            with self._changed:
                self._changed.wait(0.1)
            beat()
            now = time.monotonic()
            if stopped():
                return "it was stopped while it waited"
            if now - began > longest or (self.trouble is not None and now - self._last_answer > seconds):
                return self.trouble or f"the store is too slow: not done after {longest:.0f} s"
            if now > say_at:
                say_at = now + TOLD_EVERY_SECONDS
                left = self._journal.unsent
                log(f"sending {left} entries to the store, {longest:.0f} s at most (Ctrl-C leaves them for later)")
        return None

    def close(self) -> None:
        """End the thread: no entry is begun afterwards."""
        self._closed = True
        self.notify()

    def _work(self) -> None:
        while not self._closed:
            has_work = bool(self._journal.unsent)
            if not (has_work and self._send()):
                with self._changed:
                    if not self._closed and (has_work or not self._journal.unsent):
                        self._changed.wait(RETRY_SECONDS if has_work else None)

    def _send(self) -> bool:
        """Send the next entry; return whether it is done with."""
        try:
            self._journal.flush()
            self._try(self._journal.entries[self._journal.sent])
            self._journal.mark_sent(self._journal.sent + 1)
        except Exception as error:  # whatever it is, training continues
            reason = _reason(error)
            if self.trouble is None:
                self._warn(f"tracking: the store does not take what is sent ({reason}); it is kept and sent again")
            self.trouble = reason
            return False
        if self.trouble is not None:
            self.trouble = None
            self._warn("tracking: the store is back")
        self._last_answer = time.monotonic()
        self.notify()
        return True

    def _try(self, entry: Entry) -> None:
        """Send an entry, each of its values alone where the store refuses them: one must not take the others along."""
        try:
            self._run.send(entry)
        except Exception as error:
            if not self._run.refuses(error):
                raise
            values = entry.arguments.get("values", {})
            if len(values) > 1:
                for name, value in values.items():
                    self._try(replace(entry, arguments={**entry.arguments, "values": {name: value}}))
                return
            self.refused.append(f"{entry} ({_reason(error)})")
            self._warn(f"tracking: the store refuses {self.refused[-1]}")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(redact(str(error))).split())[:200]}"
