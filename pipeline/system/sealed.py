"""JSON that carries a check of itself, and files that are written whole or not at all."""

import json
import os
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECK = "check"


def seal(values: Mapping[str, Any]) -> str:
    """Returns `values` as one line of JSON with a checksum of the rest under `check`."""
    return json.dumps({CHECK: _checksum(values), **values})


def unseal(text: str | bytes) -> dict[str, Any]:
    """Returns what `seal` was given.

    Raises:
        ValueError: where a single character has changed.
    """
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict) or values.pop(CHECK, None) != _checksum(values):
        raise ValueError("its checksum is wrong")
    return values


def write_whole(path: Path, text: str, durable: bool = True) -> None:
    """Replaces the contents of `path`: after a crash at any moment it holds the old text or the new one.

    Args:
        durable: whether it outlasts a power failure once this returns, for one or two milliseconds.
    """
    partial = path.with_name(f".{path.name}.{threading.get_ident()}.partial")  # another thread may mark the run
    try:
        with partial.open("w") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(values: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(values).encode()):08x}"
