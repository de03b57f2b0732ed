"""The journal of a run: every entry that it has recorded, in its folder, and how many of them the store has.

Nothing is lost while the store is away, a resumed run records nothing twice, and a lost store can be filled
again. Each line carries a number and a checksum; a line that is damaged is skipped, and where anything is missing the
store is asked what it has (`trusted`). It holds no secrets: what is written to it is redacted before.
"""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.system.sealed import seal, unseal
from stages.storage.atomic import atomic_write, fsync

NAME = "tracking.jsonl"
SENT = "tracking.sent"
DAMAGED = f"damaged-{NAME}"
ENDED = ("FINISHED", "FAILED", "KILLED")
LONGEST_LINE_BYTES = 64 * 2**20
CALLS = ("params", "tags", "forget", "metrics", "artifact", "text", "dataset", "model", "register", "status")
"""Methods of `pipeline.tracking.stored_run.StoredRun` that a journal may name; a line with another one is damaged."""

DURABLE = ("status",)
"""Calls that are on the disk before the run continues; the others are within moments, off the training thread."""


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
    trusted: whether nothing is missing, neither lines nor the count of those sent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: dict[str, str | None] = {}
        self.entries: list[Entry] = []
        self.sent = self.damaged = 0
        self.refused: dict[int, str] = {}
        self.trusted = True
        self._lines: list[str] = []
        self._written: list[dict[str, Any]] = []
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
    def taken(self) -> list[Entry]:
        """The entries that the store should have."""
        return [entry for number, entry in enumerate(self.entries[: self.sent]) if number not in self.refused]

    @property
    def status(self) -> str | None:
        """The last status that was recorded."""
        return next((entry.arguments["status"] for entry in reversed(self.entries) if entry.call == "status"), None)

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended and the store has all of it."""
        return self.trusted and not self.unsent and self.status in ENDED

    def begin(self, store: Mapping[str, str | None]) -> None:
        """Notes in which run of which store everything belongs: all that came before, too."""
        with self._lock:
            self.store = dict(store)
            self._append({"store": self.store})
            self.restart()
            self._write(durable=True)

    def restart(self) -> None:
        """Makes every entry one that is yet to be sent."""
        with self._lock:
            self.sent = 0
            self.refused = {}
            self.trusted = True
            self._write_sent()

    def add(self, call: str, arguments: Mapping[str, Any]) -> None:
        """Adds an entry.

        Raises:
            OSError: where it cannot be written; it is kept in memory then, and written with the next one.
        """
        with self._lock:
            self._append({"call": call, "given": dict(arguments)})
            self.entries.append(Entry(call, arguments))
            self._write(durable=call in DURABLE)

    def mark_sent(self, refused: str | None = None) -> None:
        """Notes that one more entry is done with: the store has it, or refuses it for good, for that reason."""
        with self._lock:
            if refused is not None:
                self.refused[self.sent] = refused
            self.sent += 1
            self._write_sent()

    def flush(self) -> None:
        """Has what was added on the disk before it returns."""
        if not self._synced:
            self._synced = True
            with suppress(OSError):  # deleted, or on a lost disk: the store is sent to all the same
                fsync(self.folder / NAME)

    def repair(self) -> None:
        """Replaces a damaged file by one with the lines that are whole, and keeps it beside."""
        with self._lock:
            if self.damaged:
                if (self.folder / NAME).exists():
                    shutil.copyfile(self.folder / NAME, self.folder / DAMAGED)
                for number, line in enumerate(self._written):
                    line["number"] = number
                atomic_write(self.folder / NAME, "".join(f"{seal(line)}\n" for line in self._written))

    def _append(self, line: dict[str, Any]) -> None:
        plain = json.loads(json.dumps({"number": len(self._written), **line}))
        self._written.append(plain)
        self._lines.append(seal(plain))

    def _write(self, durable: bool) -> None:
        """Writes the lines that are not in the file yet, all or none of them."""
        path = self.folder / NAME
        is_new = not path.exists()
        lines = [seal(line) for line in self._written] if is_new else self._lines  # all, where it was deleted
        with path.open("a+b", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            content = "".join(f"{line}\n" for line in lines).encode()
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
        if is_new:
            fsync(self.folder)
        self._synced = durable
        self._lines.clear()

    def _write_sent(self) -> None:
        atomic_write(self.folder / SENT, seal({"sent": self.sent, "refused": self.refused}), durable=False)

    def _read(self) -> None:
        lines: dict[int, dict[str, Any]] = {}
        for raw in _raw_lines(self.folder / NAME):
            try:
                line = unseal(raw)
                if not isinstance(line["store"] if "store" in line else line["given"], dict):
                    raise ValueError("it holds no names")
                if "store" not in line and line["call"] not in CALLS:
                    raise ValueError(f"there is no call {line['call']}")
                if lines.setdefault(int(line["number"]), line) != line:
                    raise ValueError("another line has its number")
            except (ValueError, TypeError, KeyError):
                self.damaged += 1
        self._written = [lines[number] for number in sorted(lines)]
        for line in self._written:
            if "store" in line:
                self.store = line["store"]
            else:
                self.entries.append(Entry(line["call"], line["given"]))
        gap = bool(lines) and max(lines) != len(lines) - 1
        self.damaged += gap
        self.trusted = not self.damaged and self._read_sent()

    def _read_sent(self) -> bool:
        """Reads how many are sent; returns whether that can be believed."""
        path = self.folder / SENT
        try:
            values = unseal(path.read_bytes())
            sent = int(values["sent"])
            refused = {int(number): str(why) for number, why in values["refused"].items()}
        except FileNotFoundError:
            return not self._written
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return False
        if sent > len(self.entries):
            return False
        self.sent = sent
        self.refused = refused
        return True


def names_of(entry: Entry) -> str:
    """Returns what a user would call an entry: `metrics train/loss, …`, `artifact summary.json`."""
    arguments = entry.arguments
    names = list(arguments.get("values", {})) or [
        arguments.get("path") or arguments.get("name") or arguments.get("status") or ""
    ]
    return f"{entry.call} {', '.join(map(repr, names[:3]))}{', …' if len(names) > 3 else ''}"


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file that may hold anything: without what a crash puts around them, the longest cut."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        read: Callable[[], bytes] = lambda: file.readline(LONGEST_LINE_BYTES)  # noqa: E731
        for raw in iter(read, b""):
            line = raw.removeprefix(b"\xef\xbb\xbf").strip(b"\0 \r\n")
            if line or b"\0" in raw:
                yield line
