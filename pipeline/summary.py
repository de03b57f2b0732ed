"""`summary.json`: what a run came to, for programs."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.secrets import redact

NAME = "summary.json"


@dataclass
class StageOutcome:
    """status: `ran`, `reused`, `skipped` or `failed`; seconds: of wall time."""

    status: str
    seconds: float = 0.0


@dataclass
class Summary:
    """The contents of `summary.json`; `metrics` holds the last value of each name.

    identity: equal in runs whose settings would give the same result; code: of all its sources.
    """

    run_id: str | None
    status: str
    name: str
    folder: str
    choices: Mapping[str, str]
    overrides: list[str] = field(default_factory=list)
    stages: dict[str, StageOutcome] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    resumed_from_step: int | None = None
    identity: str | None = None
    code: str | None = None
    exported: dict[str, str] = field(default_factory=dict)
    replicas: int | None = None
    precision: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None

    def write(self, folder: Path) -> Path:
        """Writes the file whole or not at all; numbers that JSON does not have (nan, inf) become null."""
        path = folder / NAME
        partial = path.with_name(f".{NAME}.partial")
        with partial.open("w") as file:
            json.dump(_plain(self._without_secrets()), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return path

    def _without_secrets(self) -> dict[str, Any]:
        values = asdict(self)
        metrics = {redact(name): value for name, value in values.pop("metrics").items()}  # numbers, whatever the name
        return {**redact(values), "metrics": metrics}

    @classmethod
    def read(cls, folder: Path) -> "Summary":
        """Returns what `write` has written there."""
        with (folder / NAME).open() as file:
            values = json.load(file)
        values["stages"] = {name: StageOutcome(**stage) for name, stage in values["stages"].items()}
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
