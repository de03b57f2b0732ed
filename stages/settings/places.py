"""Paths as users type them, looked up without an error where they are impossible."""

import errno
import stat
from pathlib import Path


def resolved(text: str) -> Path | None:
    """Absolute path of `text`, or None where it is impossible: too long, or of an unknown user."""
    try:
        path = Path(text).expanduser().resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def is_folder(text: str) -> bool:
    """Whether the path is an existing folder."""
    path = resolved(text)
    return path is not None and path.is_dir()


def is_file_or_folder(text: str) -> bool:
    """Whether the path is an existing file or folder."""
    path = resolved(text)
    return path is not None and (path.is_file() or path.is_dir())


def regular_file(path: Path) -> Path:
    """Return `path` where reading it comes to an end: a FIFO waits for ever, and a device never ends.

    Raises:
        OSError: where it is missing, or neither a file nor a link to one.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def regular_folder(folder: Path) -> Path:
    """Return `folder` where every file below it is regular.

    Raises:
        OSError: for the first that is not.
    """
    for path in folder.rglob("*"):
        if not path.is_dir():
            regular_file(path)
    return folder
