"""Files and folders that are written whole or not at all. Imports no TensorFlow: the framework writes by it, too."""

import csv
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

PARTIAL = ".partial-"
"""Prefix of a file or folder that is still being written. Its suffix stays, as some writers go by it."""


def atomic_write(path: Path, content: str | bytes | Callable[[Path], object], durable: bool = True) -> None:
    """Replaces the file or the folder `path`: killed at any moment, it leaves the old content or the new.

    A folder cannot replace another, so an old one is removed first, once the new one is whole.

    Args:
        content: text, for UTF-8, in which a lone surrogate becomes `\\udcff`; bytes; or a function that makes the file
            or the folder at a given path.
        durable: survives a power failure once this returns; costs one or two milliseconds.

    Raises:
        OSError: where the disk is full, with the file's name. The old content stays, and no part of the new.
    """
    thread = threading.current_thread()
    number = "" if thread is threading.main_thread() else f"{thread.native_id}-"  # two threads may write the same file
    partial = path.with_name(f"{PARTIAL}{number}{path.name}")
    try:
        remove(partial)  # of a process that was killed
        if isinstance(content, str):
            partial.write_text(content, encoding="utf-8", errors="backslashreplace")
        elif isinstance(content, bytes):
            partial.write_bytes(content)
        else:
            content(partial)
        if durable:
            for part in (partial, *partial.rglob("*")):
                fsync(part)
        if path.is_dir():
            shutil.rmtree(path)
        partial.replace(path)
    except BaseException as error:
        remove(partial)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # of a full disk, which no write names
        raise
    if durable:
        fsync(path.parent)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Replaces the file `path` by a table, its header first, as `atomic_write` does; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    atomic_write(path, text.getvalue().encode(errors="surrogateescape"))


def fsync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
