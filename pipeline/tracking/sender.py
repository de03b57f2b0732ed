"""Sends a journal to the store, in a thread, so that training waits for no store."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from pipeline.redaction import redact
from pipeline.system.pulse import beat
from pipeline.tracking.journal import Entry, Journal, names_of
from pipeline.tracking.stored_run import StoredRun
from pipeline.tracking.tracker import Patience

RETRY_SECONDS = 2.0
TOLD_AFTER_SECONDS = 3.0
TOLD_EVERY_SECONDS = 15.0
POLL_SECONDS = 0.1
SLOWEST_ANSWERS = 3.0
"""Limit of the next answer, as a multiple of the slowest one so far."""

LONGEST_REQUEST_SECONDS = 45.0
"""Limit of one request: MLflow's own (30 s, set in `pipeline.system.environment`) and one retry."""

MOST_RESENT = 3
"""Limit on sending the whole journal again to a store that lacks part of it."""


class Sender:
    """Sends what `journal` has and the store has not, in order, for as long as it takes.

    A run that the store no longer has is begun again there, and filled with all that the journal has.

    Args:
        note_run: notes in the journal which run of the store it belongs to, now that this has changed.
        warn: gets a line when the store goes away, when it is back, and for every entry that it refuses.
    """

    def __init__(
        self, run: StoredRun, journal: Journal, note_run: Callable[[], None], warn: Callable[[str], None]
    ) -> None:
        self.trouble: str | None = None
        self._run = run
        self._journal = journal
        self._note_run = note_run
        self._warn = warn
        self._changed = threading.Condition()
        self._idle = threading.Event()
        self._closing = self._given_up = False
        self._verified = self._resent = 0  # entries; times
        self._thread = threading.Thread(target=self._work, daemon=True, name="tracking")
        self._thread.start()

    def notify(self) -> None:
        """Tells it that there is a new entry."""
        with self._changed:
            self._idle.clear()
            self._changed.notify()

    def flush(self, patience: Patience) -> str | None:
        """Waits until the store has everything; returns why it has not, or None where it has."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        began = time.monotonic()
        say_at = began + TOLD_AFTER_SECONDS
        while not self._idle.wait(POLL_SECONDS):
            beat()
            now = time.monotonic()
            answers = self._run.answers
            quiet = max(patience.seconds, SLOWEST_ANSWERS * answers.slowest) + self._run.allowance
            if patience.limit is None:
                quiet = patience.seconds
            elif self.trouble is None:  # a request is under way, and may yet be answered
                quiet = max(quiet, LONGEST_REQUEST_SECONDS)
            if patience.stopped():
                return "it was stopped while it waited"
            if now - max(began, answers.last) > quiet:
                return self.trouble or f"the store has not answered for {quiet:.0f} s"
            if now - began > patience.longest:
                return self.trouble or f"the store is too slow: not done after {patience.longest:.0f} s"
            if now > say_at:
                say_at = now + TOLD_EVERY_SECONDS
                patience.log(
                    f"sending {self._journal.unsent} entries to the store, {_time(patience.longest)} at most "
                    "(Ctrl-C leaves them to `python -m pipeline.sync`)"
                )
        return None

    def close(self) -> None:
        """Ends it: no entry is begun afterwards."""
        with self._changed:
            self._given_up = True
            self._changed.notify()
        self._thread.join(POLL_SECONDS)

    def _work(self) -> None:
        while not self._given_up:
            with self._changed:
                if not self._journal.unsent and (not self._closing or self._verified == len(self._journal.entries)):
                    if self._closing:
                        self._idle.set()
                    self._changed.wait()
                    continue
            if not (self._send() if self._journal.unsent else self._verify()):
                with self._changed:
                    if not self._given_up:
                        self._changed.wait(RETRY_SECONDS)

    def _send(self) -> bool:
        """Sends one entry and returns whether it is done with."""
        entry = self._journal.entries[self._journal.sent]
        refused: str | None = None
        try:
            self._journal.flush()
            self._run.send(entry)
        except Exception as error:  # whatever it is, training continues
            try:
                if self._run.may_be_lost(self._run.refuses(error)):
                    return self._replace()
                refused = self._refusal(entry, error)
            except Exception as second:
                return self._troubled(second)
        if self.trouble is not None:
            self.trouble = None
            self._warn("tracking: the store is back")
        try:
            self._journal.mark_sent(refused)
        except OSError as error:  # it may be sent again, which changes nothing
            self.trouble = str(error)
        return True

    def _refusal(self, entry: Entry, error: Exception) -> str | None:
        """Returns what of an entry the store will never take, and why; raises `error` where it may yet."""
        if not self._run.refuses(error):
            raise error
        refused = []
        values = entry.arguments.get("values", {})
        for name in values if len(values) > 1 else ():  # one that is invalid must not take the others with it
            part = replace(entry, arguments={**entry.arguments, "values": {name: values[name]}})
            try:
                self._run.send(part)
            except Exception as alone:
                if not self._run.refuses(alone):
                    raise
                refused.append(f"{names_of(part)} ({_reason(alone)})")
        if len(values) <= 1:
            refused.append(f"{names_of(entry)} ({_reason(error)})")
        for refusal in refused:
            self._warn(f"tracking: the store refuses {refusal}")
        return "; ".join(refused) or None

    def _troubled(self, error: Exception) -> bool:
        reason = _reason(error)
        if self.trouble is None:
            self._warn(f"tracking: the store does not take what is sent ({reason}); it is kept and sent again")
        self.trouble = reason
        return False

    def _verify(self) -> bool:
        """Sends again what the store has lost meanwhile; returns False where it could not be asked."""
        count = len(self._journal.entries)
        try:
            if not self._run.is_there():
                return self._replace()
            if self._resent < MOST_RESENT and self._run.lacks(self._journal.taken):
                self._resent += 1
                self._warn("tracking: the store no longer has everything; what it misses is sent again")
                self._run.known = self._run.recorded()
                self._journal.restart()
                return True
        except Exception as error:
            return self._troubled(error)
        self._verified = count
        return True

    def _replace(self) -> bool:
        """Begins the run again in a store that no longer has it, and has all of the journal sent there."""
        lost = self._run.run_id
        self._run.reopen(lost)
        self._run.known = None if self._run.is_new else self._run.recorded()
        self._note_run()
        name = "the same run" if self._run.run_id == lost else f"run {self._run.run_id}"
        self._warn(
            f"tracking: the store no longer had the run {lost} (deleted, or the store was replaced): all "
            f"{len(self._journal.entries)} entries are sent again, as {name}"
        )
        return True


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(redact(str(error))).split())[:200]}"
