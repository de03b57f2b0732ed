"""What a run has recorded, in its folder: each entry a line, and how many of them the store has.

The journal is there so that nothing is lost when the store is away, and so that a run that is continued records
nothing twice. It holds no secrets: what is written to it is redacted before.
"""

import json
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
        self._write({"store": self.store})

    def add(self, call: str, given: Mapping[str, Any]) -> None:
        """Adds an entry.

        Raises:
            OSError: where it cannot be written; it is kept in memory then.
        """
        self.entries.append(Entry(call, given))
        self._write({"call": call, "given": given})

    def mark_sent(self) -> None:
        """Notes that the store has one more entry."""
        self.sent += 1
        partial = self.folder / f".{SENT}.partial"
        partial.write_text(str(self.sent))
        partial.replace(self.folder / SENT)

    def _write(self, line: Mapping[str, Any]) -> None:
        with (self.folder / NAME).open("a") as file:
            file.write(json.dumps(line) + "\n")

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
        if (self.folder / SENT).exists():
            self.sent = int((self.folder / SENT).read_text())
