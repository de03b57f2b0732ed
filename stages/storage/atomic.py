"""Write files and folders atomically. This module does not import TensorFlow, because the framework uses it, too."""

import csv
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

PARTIAL = ".partial-"
"""Prefix of a file or folder that is still being written. Its suffix is kept, because some writers depend on it."""


def atomic_write(path: Path, content: str | bytes | Callable[[Path], object], durable: bool = True) -> None:
    """Replace the file or the folder `path` atomically: if the process is killed, the old or the new content is there.

    A folder cannot replace another one, so an old folder is removed once the new one is complete.

    Args:
        path: The file or the folder.
        content: Text, which is encoded in UTF-8 (a lone surrogate becomes `\\udcff`); bytes; or a function that creates
            the file or the folder at the path that it receives.
        durable: Whether the content survives a power failure once this returns, which takes one or two milliseconds.

    Raises:
        OSError: If the disk is full, with the name of the file. The old content is unchanged then.
    """
    thread = threading.current_thread()
    number = "" if thread is threading.main_thread() else f"{thread.native_id}-"  # two threads may write the same file
    partial = path.with_name(f"{PARTIAL}{number}{path.name}")
    try:
        remove(partial)  # it may be left from a killed process
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
            error.filename = str(path)  # an error of a full disk does not name the file
        raise
    if durable:
        fsync(path.parent)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table to the CSV file `path` atomically, and create its folder. The first row is the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    atomic_write(path, text.getvalue().encode(errors="surrogateescape"))


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content; do nothing if it does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
