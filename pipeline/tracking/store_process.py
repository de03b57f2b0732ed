"""Processes that talk to a run's store for it, so that MLflow is imported, and its database opened, beside TensorFlow.

A job of a sweep asks the sweep's own process. A run by itself starts one, which holds the lock of the run's folder,
too, and outlives it for seconds: where the run was killed, it marks the run, sends what the journal holds, and ends.
Until then no other command works on the run.
"""

import fcntl
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import IO, Any

from pipeline import redaction
from pipeline.config.schemas import MLFLOW_RUN
from pipeline.console import Console
from pipeline.exit_codes import FAILED
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import Entry
from pipeline.system.environment import imports_kept
from pipeline.system.signals import STOPS, beat
from pipeline.tracking.pending import LOST, end_and_send
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import Answer, RunSpec, StoredRun, open_run, reason, unusable
from stages.errors import UserError
from stages.targets import import_target

OUTLIVES_SECONDS = 10.0
"""Seconds after which it ends where the process that trains has: fewer than another command waits for the lock."""

OPEN_SECONDS = 300.0
"""Limit of the wait for the store to be opened, which takes a minute where a database is made on a slow disk."""

BEAT_SECONDS = 1.0


class StoreClient(StoredRun):
    """The store of a run, as its process sees it: the one at the other end of `connection` talks to MLflow."""

    def __init__(self, connection: Connection) -> None:
        self.notes = []
        self._lock = threading.Lock()
        self._connection = connection

    def open_run(self, spec: RunSpec, run_id: str | None) -> StoredRun:
        """Open the run of `spec`; see `open_run`."""
        try:
            opened = self._ask((spec, run_id), OPEN_SECONDS)
        except ConnectionError as error:
            raise unusable(spec.settings, str(error)) from error
        if isinstance(opened, UserError):
            raise opened
        self.run_id, self.open_with, self.links = opened
        return self

    def deliver(self, entry: Entry) -> Answer:
        """Send an entry; see `StoredRun`."""
        try:
            answer: Answer = self._ask(entry)
        except ConnectionError as error:
            return Answer(trouble=reason(error))
        self.notes = answer.notes or self.notes
        return answer

    def close(self) -> None:
        """End the connection; what has not been sent is sent later."""
        self._connection.close()

    def _ask(self, request: object, seconds: float = math.inf) -> Any:
        deadline = time.monotonic() + seconds
        with self._lock:
            try:
                self._connection.send(request)
                while time.monotonic() < deadline:
                    if self._connection.poll(BEAT_SECONDS):
                        return self._connection.recv()
                    beat()  # the sweep that serves it may be suspended
            except (EOFError, OSError) as error:
                raise ConnectionError(f"the helper process for MLflow ended{self._last_words()}") from error
            raise ConnectionError(f"no response after {seconds:g} s")

    def _last_words(self) -> str:
        """Return how the process at the other end has ended, after a colon, if that is known."""
        return ""


class StoreProcess(StoreClient):
    """A process that serves one run. Secrets reach it by a pipe alone."""

    def __init__(self, store: Store, folder: Path, lock: IO[str]) -> None:
        """Start it. `lock`: of `folder`, which this process holds."""
        connection, other = Pipe()
        super().__init__(connection)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process; a pipe would fill up
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(other.fileno()), str(lock.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=(other.fileno(), lock.fileno()),
            start_new_session=True,  # no signal of the terminal reaches it
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        other.close()
        connection.send((os.getpid(), store, folder, redaction.learned))

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
        super().close()

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired, OSError, ValueError):
            code = self._process.wait(timeout=5)
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4096))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            return f": {redaction.redact(lines[-1])}" if lines and code > 0 else f" {ended}"
        return ""


def start(store: Store, folder: Path, lock: IO[str]) -> StoreProcess | None:
    """Start the process of a run that MLflow is to track; None where it is not, or MLflow is imported already."""
    return StoreProcess(store, folder, lock) if _is_served(store) and "mlflow" not in sys.modules else None


def serve(store: Store) -> Connection | None:
    """Return a connection for the `StoreClient` of a job, which a thread of this process, the sweep's, serves.

    MLflow and its database are open here already. None where the job is not to be tracked by MLflow.
    """
    if not _is_served(store):
        return None
    own, other = Pipe()
    register_after_fork(own, Connection.close)  # a job that is forked from this process would keep it open
    threading.Thread(target=_answer, args=(own,), daemon=True, name="store").start()
    return other


def _is_served(store: Store) -> bool:
    return store.settings.kind != "off" and store.settings._target_ == MLFLOW_RUN


def _answer(connection: Connection) -> None:
    """Open the run that the `StoreClient` at the other end names, and send its entries, until that end is closed."""
    with connection, suppress(EOFError, OSError):
        spec, run_id = connection.recv()
        try:
            run = open_run(spec, run_id)
        except Exception as error:  # importing or opening a store can fail in any way, and the user is to see how
            connection.send(error if isinstance(error, UserError) else unusable(spec.settings, reason(error)))
            connection.recv()  # nothing comes before it is closed
            return
        with closing(run):
            connection.send((run.run_id, run.open_with, run.links))
            while True:
                connection.send(run.deliver(connection.recv()))


def main(connection: Connection, lock: int) -> None:
    """Serve the process at the other end until it ends, and end its run where it has not."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    parent, store, folder, secrets = connection.recv()
    redaction.learned.update(secrets)
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    with suppress(Exception), imports_kept():  # `open` says what is wrong
        import_target(store.settings._target_)
        store.client()
    _answer(connection)
    with suppress(OSError, UserError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else it is shared with a supervisor, which does the same
        end_and_send(RunFolder(folder), store, FAILED, LOST, Console())


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(OUTLIVES_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
    os._exit(0)
