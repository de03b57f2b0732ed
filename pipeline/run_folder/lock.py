"""Locks of run folders, by which only one process works in each, and whether they hold between hosts."""

import fcntl
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.paths import shorter
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


MOUNTS = Path("/proc/self/mountinfo")

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


@dataclass(frozen=True)
class Mount:
    """kind: the file system's type, such as `nfs4`; source: a device or an address; options: the file system's."""

    place: Path
    kind: str
    source: str
    options: frozenset[str]


def mount_of(folder: Path, mountinfo: str) -> Mount | None:
    """Returns the mount that `folder`, an absolute path without links, is on; None where none is listed.

    Args:
        mountinfo: the text of /proc/self/mountinfo. Source: proc_pid_mountinfo(5).
    """
    mount: Mount | None = None
    for line in mountinfo.splitlines():
        own, separator, of_kind = line.partition(" - ")
        fields, kind = own.split(" "), of_kind.split(" ")
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        place = Path(_unescaped(fields[4]))
        if folder.is_relative_to(place) and (mount is None or place.is_relative_to(mount.place)):
            mount = Mount(place, kind[0], _unescaped(kind[1]), frozenset(kind[2].split(",")))
    return mount


def local_locks(folder: Path, mountinfo: str | None = None) -> str | None:
    """Returns the reason why `flock` below `folder` certainly does not hold between hosts; None where it may.

    Args:
        mountinfo: the text of /proc/self/mountinfo; None: it is read, and without it nothing is known.
    """
    if mountinfo is None:
        try:
            mountinfo = MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return None
    mount = mount_of(folder.resolve(), mountinfo)
    if mount is None:
        return None
    name = mount.kind.removeprefix("fuse.")
    program = mount.source if mount.kind == "fuse" else name
    if mount.kind.startswith("fuse") and program in WITHOUT_LOCKS:
        return f"{mount.place} is mounted by {program}"
    wrong = _OPTIONS.get(name, frozenset()) & mount.options
    return f"{mount.place} is {mount.kind} mounted with {', '.join(sorted(wrong))}" if wrong else None


def _unescaped(text: str) -> str:
    """Returns a field of mountinfo, in which the kernel writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
