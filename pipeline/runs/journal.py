"""The journal of a run: everything that it has recorded, one line of JSON per entry.

Only the process that holds the lock of the run writes the journal. A follower (`pipeline.tracking.follower`) reads it,
sends the entries to the store, and notes next to it how far it has come. So nothing is lost while the store is not
available, a resumed run records nothing twice, and a store that was lost can be filled again: sending an entry twice
changes nothing. The journal contains no secrets, as every text is redacted before it is written.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from pipeline.paths import LOCK
from pipeline.records import OpenRecord, read_json, typed, typed_parts
from stages.settings.places import appendable, regular_file
from stages.storage.atomic import atomic_write, fsync

NAME = "tracking.jsonl"
SENT = "tracking.sent"
"""The file of the follower, with what it has sent."""

FOLLOWED = "tracking.lock"
"""The file by which only one process at a time sends the records of a run."""

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


@dataclass(kw_only=True)
class Header(OpenRecord):
    """The beginning of a session: how it is to be tracked. Each process that works on a run begins one."""

    session: str = ""
    """Different for each session; empty in the journals of earlier versions."""
    experiment: str | None = None
    name: str | None = None
    """The name of the run in the store."""
    parent: str | None = None
    """The id of the sweep's tracked run, for a job of a sweep."""
    kind: str | None = None
    """`local`, `server` or `off`."""
    uri: str | None = None
    """The address of the store, without a password."""
    target: str | None = None
    """The class that records the run in the store."""
    place: str | None = None
    """See `place_of`."""
    is_measured: bool = False
    """Whether the use of the machine is recorded while the run works."""
    has_jobs: bool = False
    """Whether it is the run of a sweep."""
    run_id: str | None = None
    """The id of the run in the store, in the journals of earlier versions; now the follower has it."""


@dataclass(kw_only=True)
class Upload(OpenRecord):
    """The progress of a follower, and what came of the entries that it has sent."""

    sent: int = 0
    """Number of entries, from the first, that are done with."""
    session: str = ""
    """The last session for which the run was opened in the store."""
    run_id: str | None = None
    links: list[list[str]] = field(default_factory=list)
    """Labels and texts of lines that show where to see the run."""
    error: list[str] | None = None
    """Problem, expected and fix, if the run could not be opened."""
    trouble: str | None = None
    """The reason why the store accepts nothing at the moment."""
    rejected: list[str] = field(default_factory=list)
    """Entries, and values of entries, that the store will never accept, and why."""
    notes: list[str] = field(default_factory=list)
    """Lines for the user, such as the version that a model was registered as."""


class Journal:
    """The journal in a folder.

    Attributes:
        folder: The folder.
        header: The last header.
        entries: All entries.
        damaged: Number of lines that could not be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header = Header()
        self.entries: list[Entry] = []
        self.damaged = 0
        self._unwritten: list[str] = []
        self._read_bytes = 0
        self.read_more(is_growing=False)

    @property
    def has_begun(self) -> bool:
        """Whether a session has begun."""
        return self.header != Header()

    @property
    def is_own(self) -> bool:
        """Whether this user's own command began it, here: not a copy of a folder, and not another user's."""
        place = self.header.place
        return place is not None and place == place_of(self.folder)

    @property
    def upload(self) -> Upload:
        """The progress of the follower, as its file says now. If that cannot be read, everything is sent again."""
        try:
            content = read_json(self.folder / SENT)
            # Earlier versions had only the count there, and the id in the journal.
            upload = Upload(sent=content) if type(content) is int else typed(content, Upload, SENT)
        except (OSError, ValueError):
            upload = Upload()
        upload.run_id = upload.run_id or self.header.run_id
        return upload if 0 <= upload.sent <= len(self.entries) else dataclasses.replace(upload, sent=0)

    @property
    def run_id(self) -> str | None:
        """The id of the run in the store; None if it has not been opened there."""
        return self.upload.run_id

    @property
    def is_tracked(self) -> bool:
        """Whether the run is, or was, to be recorded in a store."""
        return self.header.kind not in (None, "off") or self.run_id is not None

    @property
    def unsent(self) -> int:
        """The number of entries that the store lacks."""
        return len(self.entries) - self.upload.sent

    @property
    def status(self) -> str | None:
        """The last status that was recorded."""
        return next((entry.arguments["status"] for entry in reversed(self.entries) if entry.call == "status"), None)

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended and the store has all of it."""
        return not self.unsent and self.status in ENDED

    def begin(self, header: Header) -> None:
        """Begin a session.

        Raises:
            OSError: If it cannot be written.
        """
        self.header = header
        self._write({"store": header.as_mapping()})

    def add(self, call: str, arguments: Mapping[str, Any]) -> None:
        """Add an entry.

        Raises:
            OSError: If it cannot be written. It is kept in memory then, and written with the next one.
        """
        self.entries.append(Entry(call, arguments))
        self._write({"call": call, "given": dict(arguments)})

    def write_upload(self, upload: Upload) -> None:
        """Note what has been sent. Only the process that has the follower's lock does so.

        Raises:
            OSError: If it cannot be written.
        """
        atomic_write(self.folder / SENT, json.dumps(upload.as_mapping()), durable=False)

    def send_again(self) -> None:
        """Have everything sent again."""
        self.write_upload(dataclasses.replace(self.upload, sent=0))

    def forget_upload(self) -> None:
        """Delete the note of what has been sent."""
        with suppress(OSError):
            (self.folder / SENT).unlink(missing_ok=True)

    @property
    def is_written(self) -> bool:
        """Whether the file has everything that was added here."""
        return not self._unwritten

    def flush(self) -> None:
        """Flush to disk what has been added: an entry is on the disk before it is sent."""
        with suppress(OSError):  # deleted, or on a lost disk: it is sent all the same
            fsync(self.folder / NAME)

    def read_more(self, is_growing: bool = True) -> bool:
        """Read what has been added to the file since the last call; return whether there was anything.

        Args:
            is_growing: Whether another process may be writing the last line at this moment, so that it is left for
                the next call if it is not complete.
        """
        try:
            path = regular_file(self.folder / NAME)
            if path.stat().st_size <= self._read_bytes:
                return False
            with path.open("rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
        except OSError:
            return False
        lines = content.split(b"\n")
        if is_growing and not _is_whole(lines[-1]):
            lines.pop()
            content = content[: max(content.rfind(b"\n"), 0)]
        self._read_bytes += len(content)
        for line in filter(None, (line.strip(b"\0 \r") for line in lines)):
            self._take(line)
        return bool(lines)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append the line, and those that could not be written before, each after an end of line.

        So a line that a crash or a full disk has cut does not damage the next one.
        """
        self._unwritten.append(f"\n{json.dumps(line)}")
        with appendable(self.folder / NAME).open("a") as file:
            file.write("".join(self._unwritten))
        self._unwritten.clear()

    def _take(self, line: bytes) -> None:
        try:
            values = typed(json.loads(line), dict[str, Any], "")
            if "store" in values:
                self.header = typed(values["store"], Header, "store")
            else:
                self.entries.append(_entry(values["call"], values["given"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            self.damaged += 1
            self.entries.append(Entry("tags", {"values": {}}))  # in its place, so that `sent` counts the same


def _is_whole(line: bytes) -> bool:
    """Return whether the last line of a file that grows is complete: no beginning of a JSON object is one itself."""
    try:
        json.loads(line or b"{}")
    except (ValueError, RecursionError):
        return False
    return True


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
