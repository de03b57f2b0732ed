"""Which run is to be recorded, and where."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.schemas import TrackingSettings


@dataclass(frozen=True)
class RunSpec:
    """The run to be recorded: in which store and experiment, under what name; `parent`: the id of a sweep's run.

    folder: of its files, from which relative paths start.
    """

    settings: TrackingSettings
    outputs: Path
    folder: Path
    experiment: str
    name: str
    parent: str | None = None

    @property
    def key(self) -> str:
        """What identifies the run in its store, wherever `outputs` is moved."""
        inside = self.folder.is_relative_to(self.outputs)
        return str(self.folder.relative_to(self.outputs) if inside else self.folder)
