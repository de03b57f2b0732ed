"""Locks of run folders: no two processes work in one."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.paths import shorter
from pipeline.system.signals import pause
from stages.errors import UserError

PATIENCE_SECONDS = 12.0
"""Seconds that a process which is being ended needs to save its state; its lock ends with it."""


LOCK = ".lock"


class LockedError(UserError):
    """Another process works in the folder of a run or a sweep."""


@contextmanager
def locked(folder: Path, patience: float | None = None) -> Iterator[None]:
    """Keeps other processes off `folder`, until the block or the process is over, however it ends.

    Args:
        patience: seconds to wait for a process that is on it; None: PATIENCE_SECONDS.

    Raises:
        LockedError: where it stays on it.
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


def is_locked(folder: Path) -> bool:
    """Returns whether a process works in `folder`; leaves no file behind."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never locked
        return False
    return False
