"""The run to be recorded, and the tracker that records it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.schemas import TrackingSettings
from pipeline.tracking.tracker import NullTracker, Tracker


@dataclass(frozen=True)
class RunSpec:
    """The run to be recorded: in which store and experiment, under what name.

    folder: of its files, from which relative paths start. parent: the id of the sweep's run, if any.
    tags: of a run that is begun.
    """

    settings: TrackingSettings
    outputs: Path
    folder: Path
    experiment: str
    name: str
    parent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identifies the run in its store, wherever `outputs` is moved."""
        inside = self.folder.is_relative_to(self.outputs)
        return str(self.folder.relative_to(self.outputs) if inside else self.folder)


def open_tracker(spec: RunSpec, warn: Callable[[str], None]) -> Tracker:
    """Begins the tracked run of `spec`, or resumes it: it is RUNNING then.

    Raises:
        UserError: where the store cannot be used.
    """
    if spec.settings.kind == "off":
        return NullTracker()
    from pipeline.tracking.journaled import JournaledTracker  # seconds to import

    tracker = JournaledTracker(spec, warn)
    tracker.begin()
    return tracker
