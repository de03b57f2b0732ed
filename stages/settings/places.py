"""Paths as users type them, looked up without an error where they are impossible."""

# ruff: noqa: PTH111, PTH112, PTH113
# Of a name that is too long `os.path` says no, where `Path` raises.

import errno
import hashlib
import os
import stat
from functools import lru_cache
from pathlib import Path


def resolved(text: str) -> Path:
    """Absolute path of `text`; the home of nobody stays as it is typed."""
    return Path(os.path.realpath(os.path.expanduser(text)))


def is_folder(text: str) -> bool:
    """Whether the path is an existing folder."""
    return os.path.isdir(os.path.expanduser(text))


def is_file_or_folder(text: str) -> bool:
    """Whether the path is an existing file or folder."""
    path = os.path.expanduser(text)
    return os.path.isfile(path) or os.path.isdir(path)


def regular_file(path: Path) -> Path:
    """Return `path` where reading it comes to an end: a FIFO waits for ever, and a device never ends.

    Raises:
        OSError: where it is missing, or neither a file nor a link to one.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def appendable(path: Path) -> Path:
    """Return `path` if something can be written at its end without waiting for a reader, or if there is no such file.

    Raises:
        OSError: if it is something else than a file.
    """
    return regular_file(path) if path.exists() else path


def regular_folder(folder: Path) -> Path:
    """Return `folder` if all that is in it can be read to its end; see `regular_file`.

    Raises:
        OSError: if something in it is neither a file nor a folder.
    """
    for path in folder.rglob("*"):
        if not path.is_dir():
            regular_file(path)
    return folder


def content_digest(folder: str) -> str:
    """Returns 32 hexadecimal digits that change with the files in a folder and their names."""
    root = Path(folder).expanduser()
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
