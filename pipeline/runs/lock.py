"""Locks on run folders and output files, so only one process works on each."""

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
"""Seconds to wait for a process that is being stopped to save its state and release its lock."""


class LockedError(UserError):
    """Another process works in the folder of a run or a sweep."""

    def __init__(self, folder: Path) -> None:
        problem = f"another process is using {shorter(folder)}"
        super().__init__(problem, "that process to end, or a new run", "resume=never")


@contextmanager
def locked(folder: Path, patience: float | None = None, shared: bool = False) -> Iterator[IO[str]]:
    """Lock `folder` for other processes until the block ends, or this process ends in any way.

    A process must not write files of a run without holding its lock, nor rely on what it read before locking.

    Args:
        folder: The folder of a run or a sweep.
        patience: Seconds to wait for a process that holds the lock; None means PATIENCE_SECONDS.
        shared: Whether to share the lock with this process's supervisor; see `share`.

    Yields:
        The lock, as an open file.

    Raises:
        LockedError: If another process keeps the lock.
    """
    with appendable(folder / LOCK).open("a+") as file:
        if not until(lambda: _try_lock(file, shared), PATIENCE_SECONDS if patience is None else patience):
            raise LockedError(folder)
        yield file


@contextmanager
def file_locked(path: Path) -> Iterator[bool]:
    """Lock the file `path` within the block, and create it if it is missing; yield False if it is already locked.

    Raises:
        OSError: If its folder was deleted, or it is not a file.
    """
    with appendable(path).open("a") as file:
        yield _try_lock(file, shared=False)


@contextmanager
def output_locked(path: Path) -> Iterator[None]:
    """Lock the output file `path`, so no other process writes it at the same time.

    Raises:
        UserError: If another process is writing it, or its folder is not writable.
    """
    lock = path.with_name(f".{path.name}{LOCK}")
    try:
        file = lock.open("a")
    except OSError as error:
        raise UserError(
            f"--output={path} cannot be written ({error.strerror})", "a file in a folder that you can write to"
        ) from error
    with file:
        if not _try_lock(file, shared=False) or not lock.exists():  # the previous process may have just removed it
            raise UserError(f"another process is writing {path}", "a different file, or that process to end")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def share(lock: IO[str]) -> None:
    """Share a lock with the processes that this one supervises, which may outlive it by some seconds.

    Raises:
        LockedError: If another process got the lock, on a file system that releases it before it is shared.
    """
    if not _try_lock(lock, shared=True):
        raise LockedError(Path(lock.name).parent)


def _try_lock(lock: IO[str], shared: bool) -> bool:
    """Lock the file without waiting; return whether this succeeded."""
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(folder: Path) -> bool:
    """Return whether a process has locked `folder`, without creating a file."""
    try:
        with regular_file(folder / LOCK).open(
            "r+" if os.access(folder / LOCK, os.W_OK) else "r"
        ) as file:  # NFS wants r+
            return not _try_lock(file, shared=False)
    except OSError:  # there is no lock file, so it was never locked
        return False
