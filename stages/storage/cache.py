"""What runs share under `outputs/cache`: each entry a folder made once, whole or not at all, and safe to delete."""

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
    """Where the folder that runs share takes nothing more."""


def made_once(place: Path, make: Callable[[Path], None], reporter: Reporter) -> bool:
    """Has `make` fill the folder `place`, unless it is there; returns whether it had to.

    Of several processes that want it at once, one makes it and the others wait. `make` is given another path for the
    folder, which gets its name once all of it is on the disk. The next process removes what a killed one leaves behind.

    Raises:
        NoRoomError: where it cannot be kept.
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
    """Notes that this process uses an entry, until it ends: `pipeline.clean` removes none that is in use, and asks
    when one last was. Where the folder cannot be written, nobody can remove anything from it either."""
    with suppress(OSError):
        file = _used.get(place)
        if file is None:
            file = _used[place] = place.with_name(f".{place.name}.use").open("a")
            fcntl.flock(file, fcntl.LOCK_SH)  # waits for an entry that is being removed
        os.utime(file.name)


@contextmanager
def _locked(place: Path, reporter: Reporter) -> Iterator[None]:
    """Holds the entry's lock, which goes with the process that has it, however it ends."""
    with place.with_name(f".{place.name}.lock").open("w") as file:
        said = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    reporter.say(f"waits for another run that prepares {place.name}")
                said = True
                time.sleep(POLL_SECONDS)
                safe_place()
        yield
