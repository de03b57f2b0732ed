"""What a run has recorded, in its folder: each entry a line, and how many of them the store has.

The journal is there so that nothing is lost when the store is away, and so that a run that is continued records
nothing twice. It holds no secrets: what is written to it is redacted before.
"""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME, SENT = "tracking.jsonl", "tracking.sent"


@dataclass(frozen=True)
class Entry:
    """`call`: a method of `MlflowRun`; `given`: its arguments, as JSON can hold them."""

    call: str
    given: Mapping[str, Any]


class Journal:
    """The journal in `folder`. `store`: the run's id, and the kind and address of the store that has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: dict[str, str | None] = {}
        self.entries: list[Entry] = []
        self.sent = 0
        self._lines: list[str] = []
        self._read()

    @property
    def run_id(self) -> str | None:
        return self.store.get("run_id")

    @property
    def unsent(self) -> int:
        return len(self.entries) - self.sent

    def begin(self, store: Mapping[str, str | None]) -> None:
        """Notes in which run of which store all of it belongs."""
        self.store = dict(store)
        self._lines.append(json.dumps({"store": self.store}))
        self._write()

    def add(self, call: str, given: Mapping[str, Any]) -> None:
        """Adds an entry.

        Raises:
            OSError: where it cannot be written; it is kept in memory then, and written with the next one.
        """
        self._lines.append(json.dumps({"call": call, "given": given}))
        self.entries.append(Entry(call, given))
        self._write()

    def mark_sent(self) -> None:
        """Notes that the store has one more entry."""
        self.sent += 1
        partial = self.folder / f".{SENT}.partial"
        partial.write_text(str(self.sent))
        partial.replace(self.folder / SENT)

    def _write(self) -> None:
        """Writes the lines that are not in the file yet, all or none of them."""
        with (self.folder / NAME).open("ab", buffering=0) as file:
            before, content = file.tell(), "".join(f"{line}\n" for line in self._lines).encode()
            try:
                if file.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(before)
                raise
        self._lines.clear()

    def _read(self) -> None:
        path = self.folder / NAME
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # the process died while it wrote the last line
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for line in map(json.loads, whole.decode().splitlines()):
            if "store" in line:
                self.store = line["store"]
            else:
                self.entries.append(Entry(line["call"], line["given"]))
        try:
            self.sent = min(int((self.folder / SENT).read_text()), len(self.entries))
        except (OSError, ValueError):  # what is sent twice stays one
            self.sent = 0
