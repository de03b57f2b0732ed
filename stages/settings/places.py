"""Paths as users type them, looked up without an error where they are impossible."""

import errno
import hashlib
import stat
from functools import lru_cache
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


def content_digest(folder: str) -> str:
    """Returns 32 hexadecimal digits that change with the files in a folder and their names."""
    root = regular_folder(Path(folder).expanduser())
    files = {path: path.stat() for path in sorted(root.rglob("*")) if path.is_file()}
    return _digest_of(root, tuple((path, status.st_size, status.st_mtime_ns) for path, status in files.items()))


@lru_cache
def _digest_of(root: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    """Returns the digest of files, read again where their sizes or times have changed."""
    digest = hashlib.blake2b(digest_size=16)
    for path, *_ in files:
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(root)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
