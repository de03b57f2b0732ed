"""Sends a journal to the store, in a thread, so that training waits for no store."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from pipeline.redaction import redact
from pipeline.system.pulse import beat
from pipeline.system.streams import no_room
from pipeline.tracking.journal import Entry, Journal, names_of
from pipeline.tracking.stored_run import StoredRun
from pipeline.tracking.tracker import Patience
from stages.errors import UserError

RETRY_SECONDS = 2.0
TOLD_AFTER_SECONDS = 3.0
TOLD_EVERY_SECONDS = 15.0


class Sender:
    """Sends what `journal` has and the store has not, in order, and again where the store does not answer.

    Args:
        note_run: notes in the journal which run of the store it belongs to, now that the store has lost the former.
        warn: gets a line when the store goes away, when it is back, and for every entry that it refuses.

    Attributes:
        trouble: why the store takes nothing at the moment. full: the same, where its disk takes no more.
    """

    def __init__(
        self, run: StoredRun, journal: Journal, note_run: Callable[[], None], warn: Callable[[str], None]
    ) -> None:
        self.trouble: str | None = None
        self.full: UserError | None = None
        self._last_answer = time.monotonic()
        self._run = run
        self._journal = journal
        self._note_run = note_run
        self._warn = warn
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="tracking")
        self._thread.start()

    def notify(self) -> None:
        """Wake the thread, or who waits for it."""
        with self._changed:
            self._changed.notify_all()

    def flush(self, patience: Patience) -> str | None:
        """Wait until the store has everything; return why it has not, or None where it has.

        A request that is under way is waited for, as MLflow limits each of them.
        """
        began = self._last_answer = time.monotonic()
        self.full = None  # it is tried once more
        say_at = began + TOLD_AFTER_SECONDS
        self.notify()
        while self._journal.unsent:
            with self._changed:
                self._changed.wait(0.1)
            beat()
            now = time.monotonic()
            if patience.stopped():
                return "it was stopped while it waited"
            if self.full is not None:
                return self.full.problem
            if self.trouble is not None and now - self._last_answer > patience.seconds:
                return self.trouble
            if now - began > patience.longest:
                return self.trouble or f"the store is too slow: not done after {patience.longest:.0f} s"
            if now > say_at:
                say_at = now + TOLD_EVERY_SECONDS
                patience.log(
                    f"sending {self._journal.unsent} entries to the store, {patience.longest:.0f} s at most "
                    "(Ctrl-C leaves them to `python -m pipeline.sync`)"
                )
        return None

    def close(self) -> None:
        """End the thread: no entry is begun afterwards."""
        self._closed = True
        self.notify()
        self._thread.join(0.1)

    def _work(self) -> None:
        while not self._closed:
            has_work = bool(self._journal.unsent)
            if not (has_work and self._send()):
                with self._changed:
                    if not self._closed and (has_work or not self._journal.unsent):
                        self._changed.wait(RETRY_SECONDS if has_work else None)

    def _send(self) -> bool:
        """Send the next entry; return whether it is done with."""
        entry = self._journal.entries[self._journal.sent]
        try:
            self._journal.flush()
            refused = self._refusal(entry)
            if self.trouble is not None:
                self._warn("tracking: the store is back")
            self.trouble = self.full = None
            self._last_answer = time.monotonic()
            self._journal.mark_sent(refused)
        except Exception as error:  # whatever it is, training continues
            return self._replaced() or self._troubled(error)
        self.notify()
        return True

    def _refusal(self, entry: Entry) -> str | None:
        """Send an entry; return what of it the store will never take, and why; None where it has all of it."""
        try:
            self._run.send(entry)
            return None
        except Exception as error:
            if not self._run.refuses(error) or self._run.is_lost():
                raise
            values = entry.arguments.get("values", {})
            if len(values) > 1:  # one that is invalid must not take the others with it
                parts = [{name: value} for name, value in values.items()]
                refused = [
                    self._refusal(replace(entry, arguments={**entry.arguments, "values": part})) for part in parts
                ]
                return "; ".join(filter(None, refused)) or None
            refusal = f"{names_of(entry)} ({_reason(error)})"
            self._warn(f"tracking: the store refuses {refusal}")
            return refusal

    def _replaced(self) -> bool:
        """Begin the run again where the store no longer has it: all of the journal is sent there."""
        try:
            if not self._run.is_lost():
                return False
            lost = self._run.run_id
            self._run.reopen(lost)
            self._note_run()
        except Exception as error:
            return self._troubled(error)
        name = "the same run" if self._run.run_id == lost else f"run {self._run.run_id}"
        self._warn(
            f"tracking: the store no longer had the run {lost} (deleted, or the store was replaced): all "
            f"{len(self._journal.entries)} entries are sent again, as {name}"
        )
        return True

    def _troubled(self, error: Exception) -> bool:
        self.full = no_room(error)
        if self.trouble is None:
            self._warn(f"tracking: the store does not take what is sent ({_reason(error)}); it is kept and sent again")
        self.trouble = _reason(error)
        return False


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(redact(str(error))).split())[:200]}"
