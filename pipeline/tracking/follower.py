"""Follow journals: send their new entries to the store, in one process per command that the user typed.

The process imports MLflow and opens its database while TensorFlow is being imported. It follows the run of the command
(or the sweep and each of its jobs) and samples the use of the machine. It continues for some seconds after its command:
if the process of a run was killed, it ends the run and sends the rest of the journal.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import IO

from pipeline import redaction
from pipeline.config.schemas import TrackingSettings
from pipeline.runs.journal import ENDED, FOLLOWED, Journal, Upload
from pipeline.runs.lock import file_locked
from pipeline.system.environment import imports_kept
from pipeline.system.signals import STOPS, until
from pipeline.tracking.ending import end_without_process
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec, StoredRun, address_of, open_stored_run, reason, unusable
from stages.errors import UserError
from stages.targets import import_target

OUTLIVES_SECONDS = 15.0
"""Seconds that a follower continues after its command has ended. Jobs have less time to end by themselves."""

POLL_SECONDS = 0.05
ENDED_POLL_SECONDS = 0.5
REVIVE_SECONDS = 5.0
"""Shortest time between two starts of a process that dies."""

CLOSE_SECONDS = 1.0
RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class FollowedCommand:
    """The command whose runs are followed."""

    has_ended: threading.Event = field(default_factory=threading.Event)
    """Set when its process has ended, so its runs must be ended. Never set in the command's own process."""
    is_done: threading.Event = field(default_factory=threading.Event)
    """Set when nothing more has to be sent."""
    measures: bool = True
    """Whether the use of the machine is recorded."""


def follow(folder: Path, store: Store, command: FollowedCommand, after: str) -> None:
    """Send the entries that `store` lacks, until the run in `folder` has ended and the store has its whole journal.

    If the store does not respond, the entry is sent again later. An entry that the store rejects is noted and skipped.
    The progress is written to the folder, where the run and later commands read it (`Journal.upload`).

    Args:
        folder: The folder of a run or a sweep.
        store: Where it is recorded.
        command: The command that the run belongs to.
        after: The last session of the journal when the command began. The follower waits for the next one.
    """
    with suppress(OSError), _lock(folder, command), closing(Following(folder, store, command, after)) as following:
        while not (command.is_done.is_set() or following.is_over):
            if not following.step():
                command.is_done.wait(following.pause)


@contextmanager
def _lock(folder: Path, command: FollowedCommand) -> Iterator[None]:
    """Wait until no other process sends the records of the run, and prevent others from sending them in the block.

    The follower of an earlier command ends soon, so the wait is short.

    Raises:
        OSError: If the folder was deleted, or the command is done before the wait ends.
    """
    while not command.is_done.is_set():
        with file_locked(folder / FOLLOWED) as is_mine:
            if is_mine:
                yield
                return
        command.is_done.wait(POLL_SECONDS)
    raise InterruptedError


def is_followed(folder: Path) -> bool:
    """Return whether a process sends the records of the run in `folder` now."""
    with suppress(OSError), file_locked(folder / FOLLOWED) as is_mine:
        return not is_mine
    return False


class Following:
    """A journal, its store, and how much of it has been sent."""

    def __init__(self, folder: Path, store: Store, command: FollowedCommand, after: str) -> None:
        """See `follow`."""
        self._journal = Journal(folder, is_growing=True)
        self._upload = replace(self._journal.upload, error=None)
        self._store = store
        self._command = command
        self._session = after  # the last session that was opened
        self._run: StoredRun | None = None  # None before a session is opened, and if the store cannot be used
        self._retry_at = 0.0
        self._has_no_process = False

    @property
    def is_over(self) -> bool:
        """Whether nothing remains to be done: the store has all of a run that has ended, or it cannot be used.

        A run that has failed may be tried again in a new session while its command works. When the command has ended,
        a new session belongs to another command, which has its own follower.
        """
        journal, upload, has_ended = self._journal, self._upload, self._command.has_ended.is_set()
        has_all = upload.sent >= len(journal.entries)
        if self._has_new_session:
            return not self._is_same_store or (has_ended and self._run is not None)
        if self._run is None:
            has_nothing = has_all or not self._is_same_store
            return upload.error is not None or (self._has_no_process and has_nothing)
        return has_all and (journal.status == "FINISHED" or (has_ended and journal.status in ENDED))

    @property
    def _has_new_session(self) -> bool:
        return self._journal.header.session != self._session

    @property
    def _is_same_store(self) -> bool:
        """Whether the last session of the run is to be recorded in this store."""
        header, settings = self._journal.header, self._store.settings
        ours = settings.kind, settings._target_, address_of(settings)
        return (header.kind, header.target, header.uri) == ours

    @property
    def pause(self) -> float:
        """Seconds until the journal is read again. The pause is longer after a run has failed."""
        return POLL_SECONDS if self._journal.status not in ENDED else ENDED_POLL_SECONDS

    def step(self) -> bool:
        """Read new entries of the journal, and open the run or send an entry; return whether that was done."""
        if self._command.has_ended.is_set() and not self._has_no_process:
            self._has_no_process = end_without_process(self._journal.folder)
        if self._journal.read_more():
            self._retry_at = 0.0
        if self.is_over:
            return False
        if self._has_new_session or (self._run is None and self._has_no_process):
            if self._command.has_ended.is_set() and not self._has_no_process:
                return False  # until it is clear that no other command works on the run
            self._open()
            return True
        has_entry = self._run is not None and self._upload.sent < len(self._journal.entries)
        if not has_entry or time.monotonic() < self._retry_at:
            return False
        self._send_next()
        return self._upload.trouble is None

    def close(self) -> None:
        """End the background work of the store."""
        if self._run is not None:
            self._run.close()

    def _open(self) -> None:
        journal, store, before = self._journal, self._store, self._upload.run_id
        self.close()
        self._session = session = journal.header.session
        try:
            self._run = open_stored_run(run_spec(journal, store, self._command.measures), before)
        except Exception as error:  # importing or opening a store can fail in any way, and the user has to see why
            refusal = error if isinstance(error, UserError) else unusable(store.settings, reason(error))
            text = [refusal.problem, refusal.expected, refusal.fix]
            self._run = None
            self._upload = Upload(session=session, run_id=before, sent=self._upload.sent, error=text)
        else:
            sent = self._upload.sent if self._run.run_id == before else 0
            before_it = self._upload if self._upload.session == session else Upload()  # of a follower that has died
            self._upload = Upload(
                session=session,
                run_id=self._run.run_id,
                sent=sent,
                links=_links(self._run),
                rejected=before_it.rejected,
                notes=before_it.notes,
            )
        self._note()

    def _send_next(self) -> None:
        """Send the next entry, and write down the result."""
        assert self._run is not None
        self._journal.flush()
        delivery = self._run.send(self._journal.entries[self._upload.sent])
        has_changed = delivery.trouble is None or delivery.trouble != self._upload.trouble or delivery.refused
        self._upload.trouble = delivery.trouble
        self._upload.rejected += delivery.refused
        self._upload.notes = delivery.notes or self._upload.notes
        if delivery.trouble is None:
            self._upload.sent += 1
        else:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        if has_changed:
            self._note()

    def _note(self) -> None:
        """Write the progress to the folder."""
        try:
            self._journal.write_upload(self._upload)
        except OSError:  # the disk is full; without the file, the run notices it, and everything is sent again later
            self._journal.forget_upload()


def run_spec(journal: Journal, store: Store, is_measured: bool = False) -> RunSpec:
    """Return what `store` needs to know about the run of `journal`."""
    folder, header = journal.folder, journal.header
    return RunSpec(
        settings=store.settings,
        outputs=store.outputs,
        folder=folder,
        experiment=header.experiment or folder.parent.name,
        name=header.name or folder.name,
        parent=header.parent,
        is_measured=header.is_measured and is_measured,
        has_jobs=header.has_jobs,
    )


def _links(run: StoredRun) -> list[list[str]]:
    lines = [["" if number else "open", line] for number, line in enumerate(run.open_with.splitlines())]
    return [*lines, *(list(link) for link in run.links.items())]


@contextmanager
def followed_here(folder: Path, store: Store) -> Iterator[None]:
    """Follow the journal in `folder` in a thread within the block. The block must begin a session."""
    command = FollowedCommand(measures=False)
    given = (folder, store, command, Journal(folder).header.session)
    thread = threading.Thread(target=follow, args=given, daemon=True, name="follower")
    thread.start()
    try:
        yield
    finally:
        command.is_done.set()
        thread.join(CLOSE_SECONDS)


class Follower:
    """The process that follows the runs of this command. It gets secrets only through a pipe."""

    def __init__(self, settings: TrackingSettings | None = None) -> None:
        """Start the process, unless tracking is off, or `settings` is None: another process sends the records."""
        self._followed: dict[Path, tuple[Store, str]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        if settings is not None and settings.kind != "off":
            self._start()

    def follow(self, folder: Path, store: Store) -> None:
        """Follow the run in `folder` from its next session on. A missing folder is created."""
        folder.mkdir(parents=True, exist_ok=True)
        self._followed[folder] = store, Journal(folder).header.session
        self.revive()
        self._ask(folder)

    def revive(self) -> bool:
        """Restart the process if it has died, to send the pending records; return whether it was restarted.

        Call this periodically in a command that only watches its runs.
        """
        is_early = time.monotonic() - self._started < REVIVE_SECONDS
        if self.ended() is None or is_early:
            return False
        self.close()
        self._start()
        for folder in self._followed:
            journal = Journal(folder)
            if not (journal.is_closed and journal.status == "FINISHED"):
                self._ask(folder)
        return True

    def ended(self) -> str | None:
        """Return how the process ended, such as ` by SIGKILL`; None while it is running."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4096))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f" by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
        return f": {redaction.redact(lines[-1])}" if lines and code > 0 else how

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until the store has all records of the runs that have ended."""
        if self._process is not None and self.ended() is None:
            until(lambda: not any(is_incomplete(folder) for folder in self._followed), seconds)

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._errors.close()
            self._connection.close()

    def _ask(self, folder: Path) -> None:
        if self._process is not None:
            with suppress(OSError):  # it has died, and is started again later
                self._connection.send((folder, *self._followed[folder], redaction.learned))

    def _start(self) -> None:
        self._started = time.monotonic()
        self._connection, other = Pipe()
        register_after_fork(self._connection, Connection.close)  # else a forked job would keep it open
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process; a pipe would fill up
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(other.fileno()), str(os.getpid()), str(OUTLIVES_SECONDS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=(other.fileno(),),
            start_new_session=True,  # so it does not get the signals of the terminal
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        other.close()


def is_incomplete(folder: Path) -> bool:
    """Return whether the store misses records of a run that has ended."""
    journal = Journal(folder)
    return journal.status in ENDED and journal.unsent > 0


class Threads:
    """The threads of the follower's process, one per run."""

    def __init__(self, command: FollowedCommand) -> None:
        self._command = command
        self._threads: dict[Path, threading.Thread] = {}

    def start(self, folder: Path, store: Store, after: str) -> None:
        """Follow a run, unless a thread still does so because an earlier attempt has failed."""
        known = self._threads.get(folder)
        if known is None or not known.is_alive():
            given = (folder, store, self._command, after)
            self._threads[folder] = thread = threading.Thread(target=follow, args=given, daemon=True)
            thread.start()

    def join(self, seconds: float | None = None) -> None:
        """Wait until everything has been sent, or for `seconds` per run."""
        for thread in self._threads.values():
            thread.join(seconds)


def _warm_up(store: Store) -> None:
    """Import and open the store while the run is still being prepared."""
    with suppress(Exception), imports_kept():  # opening the run reports the error
        import_target(store.settings._target_)
        store.client()


def _die(given: threading.ExceptHookArgs) -> None:
    """End the process after an unexpected error; its command reports the last line of the traceback."""
    traceback.print_exception(given.exc_type, given.exc_value, given.exc_traceback)
    os._exit(1)


def main(connection: Connection, parent: int, seconds: float) -> None:
    """Follow the runs that the process at the other end requests, and continue for `seconds` after it has ended."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _die  # else the run would wait for records that the failed thread no longer sends
    command = FollowedCommand()
    threads, is_warm = Threads(command), False
    with suppress(EOFError, OSError):
        while os.getppid() == parent or connection.poll():
            if connection.poll(0.5):
                folder, store, after, secrets = connection.recv()
                redaction.learned.update(secrets)
                if not is_warm:
                    threading.Thread(target=_warm_up, args=(store,), daemon=True).start()
                    is_warm = True
                threads.start(folder, store, after)
    command.has_ended.set()
    threading.Timer(seconds, os._exit, (1,)).start()
    threads.join()


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]))
    os._exit(0)
