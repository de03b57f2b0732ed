"""The cache that runs share, `outputs/cache`: each entry a folder made once, whole or not at all, safe to delete."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from stages.errors import UserError
from stages.reporter import Reporter
from stages.safe_places import safe_place
from stages.storage.atomic import atomic_write

POLL_SECONDS = 0.2


class NoRoomError(UserError):
    """The folder that runs share cannot be written, or is full."""


def made_once(place: Path, make: Callable[[Path], None], reporter: Reporter) -> bool:
    """Has `make` fill the folder `place` unless it exists; returns whether it did.

    Of several processes that need it at once, one makes it and the others wait. `make` gets another path for the
    folder, which is renamed once all of it is on the disk. The next process removes the leftovers of a killed one.

    Raises:
        NoRoomError: where it cannot be written.
    """
    _mark_used(place)
    if place.is_dir():
        return False
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, reporter):
            if place.is_dir():
                return False
            _mark_used(place)
            atomic_write(place, make)
    except OSError as error:
        raise NoRoomError(
            f"{place.parent} cannot take what runs share ({error.strerror or error})",
            "a folder of yours with room for it",
            "outputs=<another folder>",
        ) from error
    return True


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
