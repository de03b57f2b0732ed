"""`origin.json`: facts of a run or a sweep that never change, written at its start, with a checksum.

Where `summary.json`, which changes during the run, is damaged, the same command still finds the run by these facts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.redaction.mask import redact
from pipeline.run_folder.summary import Summary
from pipeline.system.sealed import seal, unseal
from stages.storage.atomic import atomic_write

NAME = "origin.json"


@dataclass(frozen=True)
class Origin:
    """name: of the experiment; jobs: of a sweep, else empty. identity, code: see `Summary`."""

    name: str
    identity: str | None = None
    code: str | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, run: Summary) -> "Origin":
        return cls(run.name, run.identity, run.code, run.choices, run.overrides, run.versions)

    def write(self, folder: Path) -> None:
        atomic_write(folder / NAME, seal(redact(asdict(self))) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Origin | None":
        """Returns the origin in `folder`, or None where it is damaged or missing."""
        try:
            return cls(**unseal((folder / NAME).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
