"""Locks of run folders, by which only one process works in each, and whether they hold between hosts."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from pipeline.paths import shorter
from pipeline.system.signals import pause
from stages.errors import UserError

PATIENCE_SECONDS = 12.0
"""Seconds to wait for a process that is being ended to save its state; its lock ends with it."""


LOCK = ".lock"


class LockedError(UserError):
    """Another process works in the folder of a run or a sweep."""


@contextmanager
def locked(folder: Path, patience: float | None = None, shared: bool = False) -> Iterator[IO[str]]:
    """Locks `folder` for other processes until the block or this process ends, however it does.

    A process writes nothing of a run whose lock it does not hold, and trusts nothing that it read before.

    Args:
        patience: seconds to wait for a process that holds the lock; None: PATIENCE_SECONDS.
        shared: with this process's supervisor; see `share`.

    Yields:
        The lock, as an open file.

    Raises:
        LockedError: where that process keeps it.
    """
    deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)
    with (folder / LOCK).open("a+") as file:
        while True:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise LockedError(
                        f"another process works on {shorter(folder)}",
                        "to wait for its end, or a new run",
                        "resume=never",
                    ) from error
                pause(0.2)
        yield file


def share(lock: IO[str]) -> None:
    """Share a lock with the processes that this one supervises, which survive it for seconds."""
    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)


def warn_of_local_locks(folder: Path, warn: Callable[[str], None]) -> None:
    """Warns where `folder` is on a file system whose locks do not hold between hosts, as far as its mount says so."""
    reason = local_locks(folder)
    if reason is not None:
        warn(f"{reason}: its locks hold on one host alone. Start runs in {shorter(folder)} from this host only")


def is_locked(folder: Path) -> bool:
    """Returns whether a process works in `folder`, without creating a file."""
    try:
        with (folder / LOCK).open("r+" if os.access(folder / LOCK, os.W_OK) else "r") as file:  # NFS wants r+
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never locked
        return False
    return False


WITHOUT_LOCKS = frozenset({"s3fs", "gcsfuse", "goofys", "mountpoint-s3", "blobfuse", "blobfuse2", "rclone", "sshfs"})
"""Programs that mount object stores or other hosts' folders by FUSE, and keep `flock` to this host."""

_OPTIONS = {
    "nfs": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "nfs4": frozenset({"local_lock=all", "local_lock=flock"}),
    "lustre": frozenset({"localflock"}),
    "cifs": frozenset({"nobrl"}),
    "smb3": frozenset({"nobrl"}),
}
"""Options by which the locks of a file system stay on this host. Sources: nfs(5), mount.lustre(8), mount.cifs(8)."""


def local_locks(folder: Path) -> str | None:
    """Returns the reason why `flock` below `folder` certainly does not hold between hosts; None where it may."""
    place = folder.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    if not mounts:
        return None
    mount = max(reversed(mounts), key=lambda mount: len(Path(mount.mountpoint).parts))  # the last of equals covers them
    name = mount.fstype.removeprefix("fuse.")
    program = mount.device if mount.fstype == "fuse" else name
    if mount.fstype.startswith("fuse") and program in WITHOUT_LOCKS:
        return f"{mount.mountpoint} is mounted by {program}"
    local = _OPTIONS.get(name, frozenset()) & set(mount.opts.split(","))
    return f"{mount.mountpoint} is {mount.fstype} mounted with {', '.join(sorted(local))}" if local else None
