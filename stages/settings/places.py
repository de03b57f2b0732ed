"""Look up paths as users type them, without raising for impossible ones."""

# ruff: noqa: PTH111, PTH112, PTH113
# For a name that is too long, `os.path` returns False, and `Path` raises.

import errno
import hashlib
import os
import stat
from functools import lru_cache
from pathlib import Path


def resolved(text: str) -> Path:
    """Return the absolute path of `text`. The home of an unknown user (`~name`) is not expanded."""
    return Path(os.path.realpath(os.path.expanduser(text)))


def is_folder(text: str) -> bool:
    """Return whether the path is an existing folder."""
    return os.path.isdir(os.path.expanduser(text))


def is_file_or_folder(text: str) -> bool:
    """Return whether the path is an existing file or folder."""
    path = os.path.expanduser(text)
    return os.path.isfile(path) or os.path.isdir(path)


def regular_file(path: Path) -> Path:
    """Return `path` if it is a regular file. Reading a FIFO may wait forever, and a device may have no end.

    Raises:
        OSError: If it is missing, or not a regular file or a link to one.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def appendable(path: Path) -> Path:
    """Return `path` if it is a regular file or does not exist, so appending to it does not wait for a reader.

    Raises:
        OSError: If it exists and is not a regular file.
    """
    return regular_file(path) if path.exists() else path


def regular_folder(folder: Path) -> Path:
    """Return `folder` if it contains only regular files and folders; see `regular_file`.

    Raises:
        OSError: If it contains anything else.
    """
    for path in folder.rglob("*"):
        if not path.is_dir():
            regular_file(path)
    return folder


def content_digest(folder: str) -> str:
    """Return 32 hexadecimal digits that change with the files in a folder and their names."""
    root = Path(folder).expanduser()
    files = {path: path.stat() for path in sorted(root.rglob("*")) if path.is_file()}
    return _digest_of(root, tuple((path, status.st_size, status.st_mtime_ns) for path, status in files.items()))


@lru_cache
def _digest_of(root: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    """Return the digest of files. They are read again if their sizes or times have changed."""
    digest = hashlib.blake2b(digest_size=16)
    for path, *_ in files:
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(root)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
