"""The journal of a run: every entry that it has recorded, a line of JSON each, and how many of them the store has.

Nothing is lost while the store is away, a resumed run records nothing twice, and a lost store can be filled again: an
entry that is sent twice changes nothing. It holds no secrets: what is written to it is redacted before.
"""

import errno
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.settings.places import regular_file
from stages.storage.atomic import atomic_write, fsync

NAME = "tracking.jsonl"
SENT = "tracking.sent"
ENDED = ("FINISHED", "FAILED", "KILLED")
CALLS = ("params", "tags", "forget", "metrics", "artifact", "text", "dataset", "model", "register", "status")
"""Methods of `pipeline.tracking.stored_run.StoredRun` that a journal may name; a line with another one is damaged."""


@dataclass(frozen=True)
class Entry:
    """call: one of CALLS; arguments: as JSON can hold them."""

    call: str
    arguments: Mapping[str, Any]


class Journal:
    """The journal in `folder`.

    store: the run's id, experiment and name, and the kind and address of the store.
    sent: how many entries, from the first, are done with; refused: why, by the number of the entry, the store will
    never take it. damaged: how many lines were skipped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: dict[str, str | None] = {}
        self.entries: list[Entry] = []
        self.sent = self.damaged = 0
        self.refused: dict[int, str] = {}
        self._unwritten: list[str] = []
        self._synced = True
        self._lock = threading.RLock()
        self._read()

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
            self.restart()
            self._write({"store": self.store}, durable=True)

    def restart(self) -> None:
        """Make every entry one that is yet to be sent."""
        with self._lock:
            self.sent, self.refused = 0, {}
            self._write_sent()

    def add(self, call: str, arguments: Mapping[str, Any]) -> None:
        """Add an entry; a status is on the disk before this returns, others before they are sent.

        Raises:
            OSError: where it cannot be written; it is kept in memory then, and written with the next one.
        """
        with self._lock:
            self.entries.append(Entry(call, arguments))
            self._write({"call": call, "given": dict(arguments)}, durable=call == "status")

    def mark_sent(self, refused: str | None = None) -> None:
        """Note that one more entry is done with: the store has it, or refuses it for good, for that reason."""
        with self._lock:
            if refused is not None:
                self.refused[self.sent] = refused
            self.sent += 1
            self._write_sent()

    def flush(self) -> None:
        """Flush to disk."""
        if not self._synced:
            self._synced = True
            with suppress(OSError):  # deleted, or on a lost disk: the store is sent to all the same
                fsync(self.folder / NAME)

    def _write(self, line: Mapping[str, Any], durable: bool) -> None:
        """Append the line, and those that could not be written before: all or none of them."""
        self._unwritten.append(json.dumps(line) + "\n")
        content = "".join(self._unwritten).encode()
        with (self.folder / NAME).open("a+b", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            if before and os.pread(file.fileno(), 1, before - 1) != b"\n":  # a line that a crash has cut at its end
                content = b"\n" + content
            try:
                if file.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(before)
                raise
            if durable:
                os.fsync(file.fileno())
        self._synced = durable
        self._unwritten.clear()

    def _write_sent(self) -> None:
        atomic_write(self.folder / SENT, json.dumps({"sent": self.sent, "refused": self.refused}), durable=False)

    def _read(self) -> None:
        try:
            lines = regular_file(self.folder / NAME).read_bytes().split(b"\n")
        except OSError:
            return
        for line in filter(None, (line.strip(b"\0 \r") for line in lines)):
            try:
                values = json.loads(line)
                if "store" in values:
                    self.store = dict(values["store"])
                elif values["call"] in CALLS:
                    self.entries.append(Entry(values["call"], dict(values["given"])))
                else:
                    raise ValueError(f"there is no call {values['call']}")
            except (ValueError, TypeError, KeyError, RecursionError):
                self.damaged += 1
                self.entries.append(Entry("tags", {"values": {}}))  # in its place, so that `sent` counts the same
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # else all is sent again
            values = json.loads(regular_file(self.folder / SENT).read_text())
            self.refused = {int(number): str(why) for number, why in values["refused"].items()}
            self.sent = int(values["sent"]) if 0 <= int(values["sent"]) <= len(self.entries) else 0


def names_of(entry: Entry) -> str:
    """Return what a user would call an entry: `metrics train/loss, …`, `artifact summary.json`."""
    arguments = entry.arguments
    names = list(arguments.get("values", {})) or [
        arguments.get("path") or arguments.get("name") or arguments.get("status") or ""
    ]
    return f"{entry.call} {', '.join(map(repr, names[:3]))}{', …' if len(names) > 3 else ''}"
