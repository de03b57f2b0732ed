"""Locks of run folders, by which only one process works in each."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.paths import shorter
from pipeline.system.mounts import local_locks
from pipeline.system.signals import pause
from stages.errors import UserError

PATIENCE_SECONDS = 12.0
"""Seconds to wait for a process that is being ended to save its state; its lock ends with it."""


LOCK = ".lock"


class LockedError(UserError):
    """Another process works in the folder of a run or a sweep."""


@contextmanager
def locked(folder: Path, patience: float | None = None) -> Iterator[None]:
    """Locks `folder` for other processes until the block or this process ends, however it does.

    Args:
        patience: seconds to wait for a process that holds the lock; None: PATIENCE_SECONDS.

    Raises:
        LockedError: where that process keeps it.
    """
    deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)
    with (folder / LOCK).open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise LockedError(
                        f"another process works on {shorter(folder)}",
                        "to wait for its end, or a new run",
                        "resume=never",
                    ) from error
                pause(0.2)
        yield


def warn_of_local_locks(folder: Path, warn: Callable[[str], None]) -> None:
    """Warns where `folder` is on a file system whose locks do not hold between hosts, as far as its mount says so."""
    reason = local_locks(folder)
    if reason is not None:
        warn(f"{reason}: its locks hold on one host alone. Start runs in {shorter(folder)} from this host only")


def is_locked(folder: Path) -> bool:
    """Returns whether a process works in `folder`, without creating a file."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never locked
        return False
    return False
