"""A process of a run that talks to its store: MLflow is imported, and its database opened, beside TensorFlow's import.

It holds the lock of the run's folder with the process that trains, and outlives that one for seconds: where it was
killed, it marks the run, sends what the journal holds, and ends. Until then no other command works on the run.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from pipeline import redaction
from pipeline.config.schemas import MLFLOW_RUN
from pipeline.console import Console
from pipeline.run_folder.pending import LOST, end_run
from pipeline.system.environment import imports_kept
from pipeline.system.signals import STOPS
from pipeline.tracking.journal import Entry
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import Answer, RunSpec, Target, failed, open_run, unusable
from pipeline.tracking.system_metrics import Sampler, sampler
from stages.errors import UserError
from stages.targets import import_target

OUTLIVES_SECONDS = 10.0
"""Seconds after which it ends where the process that trains has: fewer than another command waits for the lock."""

OPEN_SECONDS = 300.0
"""Limit of the wait for the store to be opened, which takes a minute where a database is made on a slow disk."""


class StoreProcess:
    """The process, as the one that trains sees it. Secrets reach it by a pipe alone.

    Attributes:
        run_id, open_with, notes: see `StoredRun`; once it has opened the run.
    """

    run_id = ""
    open_with = ""
    notes: Sequence[str] = ()

    def __init__(self, store: Store, folder: Path, lock: IO[str]) -> None:
        """Start it. `lock`: of `folder`, which this process holds."""
        self._turn = threading.Lock()
        self._connection, other = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(other.fileno()), str(lock.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(other.fileno(), lock.fileno()),
            start_new_session=True,  # no signal of the terminal reaches it
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        other.close()
        self._connection.send((os.getpid(), store, folder, redaction.learned))

    def open(self, spec: RunSpec, run_id: str | None) -> Target:
        """Open the run of `spec`; see `open_run`."""
        try:
            opened = self._ask("open", spec, run_id, seconds=OPEN_SECONDS)
        except ConnectionError as error:
            raise unusable(spec.settings, str(error)) from error
        if isinstance(opened[0], UserError):
            raise opened[0]
        self.run_id, self.open_with = opened
        return self

    def deliver(self, entry: Entry) -> Answer:
        """Send an entry; see `StoredRun`."""
        try:
            answer: Answer = self._ask("deliver", entry)
        except ConnectionError as error:
            return failed(error)
        self.notes = answer.notes or self.notes
        return answer

    def sample(self) -> dict[str, float]:
        """Return the use of the machine; see `sampler`."""
        values: dict[str, float] = self._ask("sample")
        return values

    def close(self) -> None:
        """End the process, whatever it does; what it has not sent is sent later."""
        self._process.kill()
        self._process.wait()

    def _ask(self, *request: Any, seconds: float | None = None) -> Any:
        with self._turn:
            try:
                self._connection.send(request)
                if self._connection.poll(seconds):
                    return self._connection.recv()
            except (EOFError, OSError) as error:
                raise ConnectionError("the process that talks to it has ended") from error
            raise ConnectionError(f"no answer after {seconds:g} s")


def start(store: Store, folder: Path, lock: IO[str]) -> StoreProcess | None:
    """Start the process of a run that is to be tracked by MLflow; None where it is not, or MLflow is imported already.

    That it is in a sweep's jobs, which are forked from a process that has imported it.
    """
    is_needed = store.settings.kind != "off" and store.settings._target_ == MLFLOW_RUN and "mlflow" not in sys.modules
    return StoreProcess(store, folder, lock) if is_needed else None


class _Served:
    """Answers to the process that trains, by the names of `StoreProcess`."""

    def __init__(self, store: Store) -> None:
        self._sampler: Sampler | None = None
        with suppress(Exception), imports_kept():  # `open` says what is wrong
            import_target(store.settings._target_)
            store.client()

    def open(self, spec: RunSpec, run_id: str | None) -> tuple[UserError] | tuple[str, str]:
        try:
            self._run = open_run(spec, run_id)
        except UserError as error:
            return (error,)
        return self._run.run_id, self._run.open_with

    def deliver(self, entry: Entry) -> Answer:
        return self._run.deliver(entry)

    def sample(self) -> dict[str, float]:
        self._sampler = self._sampler or sampler()  # half a second that no stage waits for
        return self._sampler()


def main(connection: Connection, lock: int) -> None:
    """Serve the process at the other end until it ends, and end its run where it has not."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    parent, store, folder, secrets = connection.recv()
    redaction.learned.update(secrets)
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    served = _Served(store)
    with suppress(EOFError, OSError):
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(served, name)(*arguments))
    with suppress(OSError, UserError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else it is shared with a supervisor, which does the same
        end_run(folder, store, "FAILED", LOST, Console())


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(OUTLIVES_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
    os._exit(0)
