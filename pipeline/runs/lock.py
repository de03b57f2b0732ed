"""Locks of run folders and of files to write, by which only one process works on each."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.paths import LOCK, shorter
from pipeline.system.signals import until
from stages.errors import UserError
from stages.settings.places import appendable, regular_file

PATIENCE_SECONDS = 12.0
"""Seconds to wait for a process that is being ended to save its state; its lock ends with it."""


class LockedError(UserError):
    """Another process works in the folder of a run or a sweep."""

    def __init__(self, folder: Path) -> None:
        problem = f"another process is using {shorter(folder)}"
        super().__init__(problem, "that process to end, or a new run", "resume=never")


@contextmanager
def locked(folder: Path, patience: float | None = None, shared: bool = False) -> Iterator[IO[str]]:
    """Lock `folder` for other processes until the block or this process ends, however it does.

    A process writes nothing of a run whose lock it does not hold, and trusts nothing that it read before.

    Args:
        patience: Seconds to wait for a process that holds the lock; None: PATIENCE_SECONDS.
        shared: With this process's supervisor; see `share`.

    Yields:
        The lock, as an open file.

    Raises:
        LockedError: If that process keeps it.
    """
    with appendable(folder / LOCK).open("a+") as file:
        if not until(lambda: _is_taken(file, shared), PATIENCE_SECONDS if patience is None else patience):
            raise LockedError(folder)
        yield file


@contextmanager
def output_locked(path: Path) -> Iterator[None]:
    """Lock the file `path`, which this process will write, for other processes that would write it, too.

    Raises:
        UserError: If another process writes it, or its folder cannot be written.
    """
    lock = path.with_name(f".{path.name}{LOCK}")
    try:
        file = lock.open("a")
    except OSError as error:
        raise UserError(
            f"--output={path} cannot be written ({error.strerror})", "a file in a folder that you can write to"
        ) from error
    with file:
        if not _is_taken(file, shared=False) or not lock.exists():  # the second: removed by the process before
            raise UserError(f"another process is writing {path}", "a different file, or that process to end")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def share(lock: IO[str]) -> None:
    """Share a lock with the processes that this one supervises, which survive it for seconds.

    Raises:
        LockedError: If another process has taken it, on a file system that gives it up in between.
    """
    if not _is_taken(lock, shared=True):
        raise LockedError(Path(lock.name).parent)


def _is_taken(lock: IO[str], shared: bool) -> bool:
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(folder: Path) -> bool:
    """Return whether a process works in `folder`, without creating a file."""
    try:
        with regular_file(folder / LOCK).open(
            "r+" if os.access(folder / LOCK, os.W_OK) else "r"
        ) as file:  # NFS wants r+
            return not _is_taken(file, shared=False)
    except OSError:  # never locked
        return False
