"""Folders of arrays and facts, and the cache of such folders that runs share, `outputs/cache`.

A folder is written once, and read only where every byte is the one that was written. `facts.json` holds the facts, and
of each array the size of its file and the digest of its bytes; one checksum covers it. An array too large to be read at
once is mapped: the digest is that of its header, and whoever reads its rows compares them with digests that are another
array of the folder. An entry of the cache is made once, whole or not at all, and safe to delete.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from stages.errors import UserError
from stages.reporter import Reporter, safe_place
from stages.storage.atomic import atomic_write, remove

FACTS = "facts.json"
HEADER_BYTES = 128
"""Of an .npy file, which its dtype and up to four dimensions fill."""


class DamagedError(ValueError):
    """A folder that is not what was written; the text says where."""


@dataclass(frozen=True)
class Contents:
    """Facts and arrays of a folder. Mapped arrays are read-only, and their rows have not been compared.

    mapped: names of arrays whose files are written already, for an entry of the cache to be made.
    path: the folder that they were read from; None: they are in none yet.
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    mapped: Sequence[str] = ()
    path: Path | None = None


def write_arrays(
    folder: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray], mapped: Sequence[str] = ()
) -> None:
    """Fill `folder`, which exists.

    Args:
        facts: what JSON holds.
        arrays: of any dtype without Python objects.
        mapped: arrays whose files, such as `images.npy`, are in the folder already.
    """
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    paths = {key: folder / f"{key}.npy" for key in (*arrays, *mapped)}
    files = {key: [key in mapped, path.stat().st_size, _digest(path, key in mapped)] for key, path in paths.items()}
    content = {"facts": dict(facts), "files": files}
    (folder / FACTS).write_text(json.dumps({**content, "checksum": _checksum(content)}))


def read_arrays(folder: Path) -> Contents:
    """Return the contents of `folder`.

    Raises:
        FileNotFoundError: where there is nothing.
        DamagedError: where a byte is another one, or it cannot be read.
    """
    folder.lstat()
    try:
        content = json.loads((folder / FACTS).read_bytes())
        if content.pop("checksum") != _checksum(content):
            raise ValueError(f"the checksum of {FACTS} does not fit")
        arrays = {key: _array(folder / f"{key}.npy", *facts) for key, facts in content["files"].items()}
        return Contents(content["facts"], arrays, path=folder)
    except Exception as error:  # a damaged file can hold anything
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _array(path: Path, is_mapped: bool, size: int, digest: str) -> np.ndarray:
    if path.stat().st_size != size or _digest(path, is_mapped) != digest:
        raise ValueError(f"the size or the checksum of {path.name} does not fit")
    return np.asarray(np.load(path, mmap_mode="r" if is_mapped else None, allow_pickle=False))


def _digest(path: Path, is_mapped: bool) -> str:
    """Return the digest of a file, or of its header."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(HEADER_BYTES)) if is_mapped else hashlib.file_digest(file, "sha256")
    return digest.hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def new_array(path: Path | None, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array to be filled, mapped from a new .npy file; in memory where there is no path.

    The file takes its place on the disk at once: a full disk is an error here, where later it would kill the process.
    """
    if path is None:
        return np.empty(shape, dtype)
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


POLL_SECONDS = 0.2


def cached(
    place: Path, make: Callable[[Path], Contents], reporter: Reporter, durable: bool = True
) -> tuple[Contents, bool]:
    """Return the entry `place`, and whether this call made it, as none was there or it was not what had been written.

    Of several processes that need it at once, one makes it and the others wait. The entry is renamed to its place once
    it is whole; the next process removes the leftovers of a killed one.

    Args:
        make: returns facts and arrays. It gets the folder, for arrays that are too large to be returned.
        durable: whether it survives a power failure; not needed where readers notice what one has damaged.

    Raises:
        UserError: where the folder that runs share cannot be written, or is full.
    """
    _mark_used(place)
    with suppress(OSError, DamagedError):
        return read_arrays(place), False

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, reporter):
            _mark_used(place)
            try:
                return read_arrays(place), False
            except FileNotFoundError:
                pass
            except DamagedError as error:
                reporter.warn(f"{place} is not what was written ({error}), and is made again")
                remove(place)
            return _made(place, make, durable), True
    except OSError as error:
        raise UserError(
            f"{place.parent} cannot take what runs share ({error.strerror or error})",
            "a folder of yours with room for it",
            "outputs=<another folder>",
        ) from error


def _made(place: Path, make: Callable[[Path], Contents], durable: bool) -> Contents:
    made: list[Contents] = []

    def write(folder: Path) -> None:
        folder.mkdir()
        made.append(make(folder))
        write_arrays(folder, made[0].facts, made[0].arrays, made[0].mapped)

    atomic_write(place, write, durable)
    [contents] = made
    mapped = {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in contents.mapped}
    return replace(contents, arrays={**contents.arrays, **mapped}, path=place)


_used: dict[Path, IO[str]] = {}


def _mark_used(place: Path) -> None:
    """Marks an entry as used by this process until it ends: `pipeline.clean` removes none in use, and shows when each
    last was. Where the folder cannot be written, nothing can be removed from it either."""
    with suppress(OSError):
        file = _used.get(place)
        if file is None:
            file = _used[place] = place.with_name(f".{place.name}.use").open("a+")
            # Waits for an entry that is being removed. Over NFS a shared lock needs a file that can be read.
            fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(file.name)


@contextmanager
def _locked(place: Path, reporter: Reporter) -> Iterator[None]:
    """Holds the entry's lock, which the end of its process releases, however it ends."""
    with place.with_name(f".{place.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                reporter.doing(f"waits for another run that prepares {place.name}")
                time.sleep(POLL_SECONDS)
                safe_place()
        yield
