"""The cache that runs share, `outputs/cache`: each entry a folder made once, whole or not at all, safe to delete."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from stages.errors import UserError
from stages.reporter import Reporter
from stages.safe_places import safe_place
from stages.storage.arrays import ArrayFolder, DamagedError, read_arrays, write_arrays
from stages.storage.atomic import PARTIAL, atomic_write, remove

POLL_SECONDS = 0.2

KEY = "entry"
"""The fact of an entry that is its own name."""


@dataclass(frozen=True)
class Contents:
    """Facts and arrays for an entry. mapped: names of arrays whose files `make` has written itself."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    mapped: Sequence[str] = ()


def cached(place: Path, make: Callable[[Path], Contents], reporter: Reporter) -> tuple[ArrayFolder, bool]:
    """Return the entry `place`, and whether this call made it, as none was there or it was not what had been written.

    Of several processes that need it at once, one makes it and the others wait. The entry is renamed to its place once
    it is whole; the next process removes the leftovers of a killed one.

    Args:
        make: returns facts and arrays. It gets the folder, for arrays that are too large to be returned.

    Raises:
        UserError: where the folder that runs share cannot be written, or is full.
    """
    _mark_used(place)
    with suppress(OSError, DamagedError):
        return _read(place), False

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, reporter):
            _mark_used(place)
            try:
                return _read(place), False
            except FileNotFoundError:
                pass
            except DamagedError as error:
                reporter.warn(f"{place} is not what was written ({error}), and is made again")
                remove(place)
            return _made(place, make), True
    except OSError as error:
        raise UserError(
            f"{place.parent} cannot take what runs share ({error.strerror or error})",
            "a folder of yours with room for it",
            "outputs=<another folder>",
        ) from error


def _read(place: Path) -> ArrayFolder:
    """Return the entry `place`, which bears the name that it was made under."""
    entry = read_arrays(place)
    if entry.facts.get(KEY) != place.name:
        raise DamagedError("it was made under another name")
    return entry


def _made(place: Path, make: Callable[[Path], Contents]) -> ArrayFolder:
    made: list[Contents] = []

    def write(folder: Path) -> None:
        folder.mkdir()
        made.append(make(folder))
        write_arrays(folder, {**made[0].facts, KEY: place.name}, made[0].arrays, made[0].mapped)

    atomic_write(place, write, durable=False)  # what a power failure damages is noticed, and made again
    [contents] = made
    mapped = {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in contents.mapped}
    return ArrayFolder(place, contents.facts, {**contents.arrays, **mapped})


def discard(entry: ArrayFolder) -> None:
    """Remove an entry, so that the next process that needs it makes it again; who has it open keeps it."""
    aside = entry.path.with_name(f"{PARTIAL}{os.getpid()}-{entry.path.name}")
    with suppress(OSError):
        entry.path.rename(aside)
        remove(aside)


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
        has_reported = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_reported:
                    reporter.log(f"waits for another run that prepares {place.name}")
                has_reported = True
                time.sleep(POLL_SECONDS)
                safe_place()
        yield
