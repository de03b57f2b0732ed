"""The cache of arrays and facts that runs share, `outputs/cache`. Each entry is created once, and atomically.

An entry is a folder of `.npy` files, which are memory-mapped, and a file `facts.json` with the entry's key, the digests
of the files and a checksum. A changed entry is created again. The cache can be deleted at any time.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.errors import UserError
from stages.reporter import Reporter, safe_place
from stages.storage.atomic import atomic_write, remove

FACTS = "facts.json"

DIGESTED_BYTES = 2**30
"""Maximum size of a file whose whole content is digested, in a second or two. Of larger files, size and header are."""

HEADER_BYTES = 128
"""Size of the header of an .npy file with up to four dimensions."""


@dataclass(frozen=True)
class Contents:
    """The contents of an entry."""

    facts: Mapping[str, Any]
    """Values that JSON can represent."""
    arrays: Mapping[str, np.ndarray]
    """Arrays without Python objects. Those read from an entry are memory-mapped and read-only."""


def new_array(path: Path | None, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array to fill, mapped from a new .npy file, or in memory without a path.

    The space on the disk is allocated at once, so a full disk is an error here. Later it would kill the process.
    """
    if path is None:
        return np.empty(shape, dtype)
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def load_mapped(path: Path) -> np.ndarray:
    """Return the array of an .npy file, memory-mapped."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


POLL_SECONDS = 0.2


def cached(place: Path, make: Callable[[Path], Contents], reporter: Reporter) -> tuple[Contents, bool]:
    """Return the contents of the entry `place`, and whether this call has created it.

    If several processes need the entry at the same time, one creates it and the others wait. A complete entry is
    renamed to its place; the next process removes the leftovers of a killed one.

    Args:
        place: The folder of the entry.
        make: Returns the contents. It receives a folder in which it may write arrays that are too large for memory,
            such as `images.npy`; these are not written again.
        reporter: Reports a damaged entry, and waiting.

    Raises:
        UserError: If the folder that runs share cannot be written, or is full.
    """
    with suppress(Exception):
        return _read(place), False

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, reporter):
            try:
                return _read(place), False
            except Exception as error:  # a damaged file can hold anything
                if os.path.lexists(place):
                    reporter.warn(f"the cache entry {place} is damaged and will be created again ({error})")
                    remove(place)
            atomic_write(place, lambda folder: _write(folder, place.name, make))
            return _read(place), True
    except OSError as error:
        raise UserError(
            f"the cache {place.parent} cannot be written ({error.strerror or error})",
            "a writable folder on a disk with free space",
            "outputs=<another folder>",
        ) from error


def _read(place: Path) -> Contents:
    content = json.loads((place / FACTS).read_bytes())
    if content.pop("checksum") != _checksum(content):
        raise ValueError(f"the checksum of {FACTS} does not match")
    key = content.get("key", "an entry of an earlier version")
    if key != place.name:  # two entries with the same shapes may have been swapped
        raise ValueError(f"it belongs to {key}")
    for name, digest in content["digests"].items():
        if _digest(place / f"{name}.npy") != digest:
            raise ValueError(f"the size or the digest of {name}.npy does not match")
    arrays = {name: load_mapped(place / f"{name}.npy") for name in content["digests"]}
    with suppress(OSError):  # the entry may belong to another user
        os.utime(place)  # `python -m pipeline clean` uses this as the time of last use
    return Contents(content["facts"], arrays)


def _write(folder: Path, key: str, make: Callable[[Path], Contents]) -> None:
    folder.mkdir()
    contents = make(folder)
    for name, array in contents.arrays.items():
        path = folder / f"{name}.npy"
        if not path.exists():
            np.save(path, array, allow_pickle=False)
    digests = {name: _digest(folder / f"{name}.npy") for name in contents.arrays}
    content = {"key": key, "facts": contents.facts, "digests": digests}
    (folder / FACTS).write_text(json.dumps({**content, "checksum": _checksum(content)}))


def _digest(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        is_small = size <= DIGESTED_BYTES
        digest = hashlib.file_digest(file, "sha256") if is_small else hashlib.sha256(file.read(HEADER_BYTES))
    digest.update(str(size).encode())
    return digest.hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def _locked(place: Path, reporter: Reporter) -> Iterator[None]:
    """Hold the lock of an entry during the block. It is released if the process ends in any way."""
    with place.with_name(f".{place.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                reporter.doing(f"waiting for another run to prepare {place.name}")
                time.sleep(POLL_SECONDS)
                safe_place()
        yield
