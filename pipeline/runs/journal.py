"""The journal of a run: everything that it has recorded, one line of JSON per entry.

Only the process that holds the lock of the run writes the journal. A follower (`pipeline.tracking.follower`) reads it,
sends the entries to the store, and writes its progress to a file next to it. So nothing is lost while the store is not
available, and a resumed run records nothing twice. A store that was lost can be filled again, because sending an entry
twice changes nothing. The journal does not contain secrets, as every text is redacted before it is written.
"""

import dataclasses
import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from pipeline.paths import LOCK
from pipeline.records import OpenRecord, convert, convert_parts, read_json
from stages.settings.places import appendable, regular_file
from stages.storage.atomic import atomic_write, fsync

NAME = "tracking.jsonl"
SENT = "tracking.sent"
"""The file with the progress of the follower."""

FOLLOWED = "tracking.lock"
"""The lock file that ensures that only one process at a time sends the records of a run."""

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

A line with a different method counts as damaged.
"""


@dataclass(frozen=True)
class Entry:
    """A line of the journal: a call that records something."""

    call: str
    """One of `CALLS`."""
    arguments: Mapping[str, Any]
    """The arguments of the call, as JSON types."""

    def __str__(self) -> str:
        """Return a short description for users, such as `metrics 'train/loss'` or `artifact 'summary.json'`."""
        given = self.arguments
        names = list(given.get("values", {})) or [given.get("path") or given.get("name") or given.get("status") or ""]
        return f"{self.call} {', '.join(map(repr, names))}"


def place_of(folder: Path) -> str | None:
    """Return a text that identifies the folder of a run and differs for its copies.

    It consists of the inode and the change time of the lock file. The system sets both, so a copy or an unpacked
    archive has different ones. None if the folder belongs to another user or does not have a lock file.
    """
    with suppress(OSError):
        lock = (folder / LOCK).stat()
        if lock.st_uid == os.getuid():
            return f"{lock.st_ino}-{lock.st_ctime_ns}"
    return None


@dataclass(kw_only=True)
class Header(OpenRecord):
    """The first line of a session, for its follower. Each process that works on a run begins a session."""

    session: str = ""
    """The id of the session; empty in the journals of earlier versions."""
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
    """The id of the run in the store, in the journals of earlier versions. Now it is in the file of the follower."""


@dataclass(kw_only=True)
class Upload(OpenRecord):
    """The progress of a follower, and how the store responded."""

    sent: int = 0
    """Number of entries, counted from the first, that were sent or rejected."""
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

    def __init__(self, folder: Path, is_growing: bool = False) -> None:
        """Read the journal in `folder`; see `read_more` for `is_growing`."""
        self.folder = folder
        self.header = Header()
        self.entries: list[Entry] = []
        self.damaged = 0
        self._unwritten: list[str] = []
        self._read_bytes = 0
        self.read_more(is_growing)

    @property
    def has_begun(self) -> bool:
        """Whether a session has begun."""
        return self.header != Header()

    @property
    def is_own(self) -> bool:
        """Whether this user began the journal in this folder. False for copies and for folders of other users."""
        place = self.header.place
        return place is not None and place == place_of(self.folder)

    @property
    def upload(self) -> Upload:
        """The progress of the follower, read from its file. If it cannot be read, everything is sent again."""
        try:
            content = read_json(self.folder / SENT)
            # In earlier versions the file had only the count, and the journal had the id.
            upload = Upload(sent=content) if type(content) is int else convert(content, Upload, SENT)
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
        """Whether a store was chosen for the run now or in an earlier session."""
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
            OSError: If it cannot be written. It is then kept in memory and written with the next one.
        """
        self.entries.append(Entry(call, arguments))
        self._write({"call": call, "given": dict(arguments)})

    def write_upload(self, upload: Upload) -> None:
        """Write the progress of the follower. Only the process that has the follower's lock may call this.

        Raises:
            OSError: If it cannot be written.
        """
        atomic_write(self.folder / SENT, json.dumps(upload.as_mapping()), durable=False)

    def send_again(self) -> None:
        """Reset the progress, so everything is sent again."""
        self.write_upload(dataclasses.replace(self.upload, sent=0))

    def forget_upload(self) -> None:
        """Delete the file with the progress."""
        with suppress(OSError):
            (self.folder / SENT).unlink(missing_ok=True)

    @property
    def is_written(self) -> bool:
        """Whether the file has everything that was added here."""
        return not self._unwritten

    def flush(self) -> None:
        """Flush the added entries to disk. Call it before an entry is sent."""
        with suppress(OSError):  # the file was deleted, or its disk is gone; the entry is sent anyway
            fsync(self.folder / NAME)

    def read_more(self, is_growing: bool = True) -> bool:
        """Read the lines that were added to the file since the last call; return whether there were any.

        Args:
            is_growing: Whether another process may be writing the last line at this moment. If it is incomplete, it is
                then read by the next call.
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
        """Append the line, and earlier lines that could not be written. Each begins with a line break.

        So a line that was cut off by a crash or a full disk does not damage the next one.
        """
        self._unwritten.append(f"\n{json.dumps(line)}")
        content = "".join(self._unwritten).encode()
        with appendable(self.folder / NAME).open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if file.write(content) != len(content):  # a follower must not count lines that are written again later
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder / NAME))
        self._unwritten.clear()

    def _take(self, line: bytes) -> None:
        try:
            values = convert(json.loads(line), dict[str, Any], "")
            if "store" in values:
                self.header = convert(values["store"], Header, "store")
            else:
                self.entries.append(_entry(values["call"], values["given"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            self.damaged += 1
            self.entries.append(Entry("tags", {"values": {}}))  # a placeholder, so `sent` still counts correctly


def _is_whole(line: bytes) -> bool:
    """Return whether the last line of a growing file is complete. Part of a JSON object is never valid JSON."""
    try:
        json.loads(line or b"{}")
    except (ValueError, RecursionError):
        return False
    return True


def _entry(call: str, given: Any) -> Entry:
    """Return the entry of a line.

    Raises:
        ValueError, KeyError, TypeError: If the call does not exist, or an argument has a wrong type.
    """
    kinds = CALLS[call]
    needed = {name for name, kind in kinds.items() if not isinstance(kind, UnionType)}
    if not needed <= dict(given).keys() <= kinds.keys():
        raise ValueError(f"{call} has other arguments")
    return Entry(call, convert_parts(given, kinds))
