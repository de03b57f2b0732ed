"""The journal of a run: every entry that it has recorded, a line of JSON each, and how many of them the store has.

Nothing is lost while the store is away, a resumed run records nothing twice, and a lost store can be filled again: an
entry that is sent twice changes nothing. It holds no secrets: what is written to it is redacted before.
"""

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from pipeline.paths import LOCK
from pipeline.records import read_json, typed, typed_parts
from stages.settings.places import appendable, regular_file
from stages.storage.atomic import atomic_write, fsync

NAME = "tracking.jsonl"
SENT = "tracking.sent"
ENDED = ("FINISHED", "FAILED", "KILLED")
_TEXTS = dict[str, str]
CALLS: Mapping[str, Mapping[str, Any]] = {
    "params": {"values": _TEXTS},
    "tags": {"values": _TEXTS},
    "metrics": {"values": dict[str, float], "step": int, "time": int},
    "artifact": {"path": str, "folder": str},
    "text": {"content": str, "name": str},
    "dataset": {"name": str, "digest": str, "sizes": dict[str, int]},
    "model": {
        "path": str,
        "image_shape": list[Any],
        "class_names": list[Any],
        "columns": _TEXTS | None,
        "answers": _TEXTS | None,
    },
    "view": {
        "name": str,
        "settings": list[str],
        "metrics": list[str],
        "is_lower_better": bool,
        "combinations": list[str] | None,
    },
    "register": {"name": str, "alias": str | None, "promote_if": str, "confidence": float},
    "status": {"status": str, "time": int},
}
"""Methods of `pipeline.tracking.stored_run.StoredRun` that a journal may name, with the types of their arguments.

A line with another one is damaged.
"""


@dataclass(frozen=True)
class Entry:
    """call: one of CALLS; arguments: as JSON can hold them."""

    call: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        """Return what a user would call it: `metrics 'train/loss'`, `artifact 'summary.json'`."""
        given = self.arguments
        names = list(given.get("values", {})) or [given.get("path") or given.get("name") or given.get("status") or ""]
        return f"{self.call} {', '.join(map(repr, names))}"


def place_of(folder: Path) -> str | None:
    """Return what tells the folder of a run from all copies of it; None where it is another user's, or has no lock.

    That is the inode and the time of change of its lock: the system sets both, and no archive or copy has the same.
    """
    with suppress(OSError):
        lock = (folder / LOCK).stat()
        if lock.st_uid == os.getuid():
            return f"{lock.st_ino}-{lock.st_ctime_ns}"
    return None


class Journal:
    """The journal in `folder`.

    store: the run's id, experiment and name, and the kind and address of the store.
    sent: how many entries, from the first, are done with. damaged: how many lines were skipped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: dict[str, str | None] = {}
        self.entries: list[Entry] = []
        self.sent = self.damaged = 0
        self._unwritten: list[str] = []
        self._flushed = 0
        self._lock = threading.RLock()
        with suppress(OSError):
            self._read(regular_file(folder / NAME).read_bytes())

    @property
    def is_own(self) -> bool:
        """Whether this user's own command began it, here: it is not in a copy of a folder, or in another user's."""
        place = self.store.get("place")
        return place is not None and place == place_of(self.folder)

    @property
    def run_id(self) -> str | None:
        return self.store.get("run_id")

    @property
    def unsent(self) -> int:
        return len(self.entries) - self.sent

    @property
    def status(self) -> str | None:
        """The last status that was recorded."""
        return next((entry.arguments["status"] for entry in reversed(self.entries) if entry.call == "status"), None)

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended and the store has all of it."""
        return not self.unsent and self.status in ENDED

    def begin(self, store: Mapping[str, str | None]) -> None:
        """Note in which run of which store everything belongs: all that came before is sent there, too."""
        with self._lock:
            self.store = dict(store)
            self.mark_sent(0)
            self._write({"store": self.store})

    def add(self, call: str, arguments: Mapping[str, Any]) -> None:
        """Add an entry, which is on the disk before it is sent.

        Raises:
            OSError: where it cannot be written; it is kept in memory then, and written with the next one.
        """
        with self._lock:
            self.entries.append(Entry(call, arguments))
            self._write({"call": call, "given": dict(arguments)})

    def mark_sent(self, count: int) -> None:
        """Note how many entries, from the first, are done with."""
        with self._lock:
            atomic_write(self.folder / SENT, json.dumps(count), durable=False)
            self.sent = count  # last: the process may end as soon as nothing is unsent

    def flush(self) -> None:
        """Flush to disk what has been added since the last time."""
        if self._flushed == (count := len(self.entries)):
            return
        self._flushed = count
        with suppress(OSError):  # deleted, or on a lost disk: the store is sent to all the same
            fsync(self.folder / NAME)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append the line, and those that could not be written before, each after an end of line.

        So one that a crash or a full disk has cut takes no other with it.
        """
        self._unwritten.append(f"\n{json.dumps(line)}")
        with appendable(self.folder / NAME).open("a") as file:
            file.write("".join(self._unwritten))
        self._unwritten.clear()

    def _read(self, content: bytes) -> None:
        for line in filter(None, (line.strip(b"\0 \r") for line in content.split(b"\n"))):
            try:
                values = typed(json.loads(line), dict[str, Any], "")
                if "store" in values:
                    self.store = typed(values["store"], dict[str, str | None], "store")
                else:
                    self.entries.append(_entry(values["call"], values["given"]))
            except (ValueError, TypeError, KeyError, RecursionError):
                self.damaged += 1
                self.entries.append(Entry("tags", {"values": {}}))  # in its place, so that `sent` counts the same
        with suppress(OSError, ValueError):  # else all is sent again
            count = typed(read_json(self.folder / SENT), int, SENT)
            self.sent = count if 0 <= count <= len(self.entries) else 0


def _entry(call: str, given: Any) -> Entry:
    """Return the entry of a line.

    Raises:
        ValueError, KeyError, TypeError: if there is no such call, or an argument is of another type.
    """
    kinds = CALLS[call]
    needed = {name for name, kind in kinds.items() if not isinstance(kind, UnionType)}
    if not needed <= dict(given).keys() <= kinds.keys():
        raise ValueError(f"{call} has other arguments")
    return Entry(call, typed_parts(given, kinds))
