"""The run to be recorded, and the tracker that a run and its stages record with; one records nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.schemas import TrackingSettings
from stages.errors import UserError

if TYPE_CHECKING:
    from stages.results import Dataset, Exported

PATIENCE_SECONDS = 20.0
"""Seconds that the end of a run waits for a store that does not answer; what it misses then is kept."""

STOPPED_PATIENCE_SECONDS = 4.0
"""The same for a run that was stopped, and is to end soon."""

LONGEST_SECONDS = 600.0
"""Seconds that the end of a run that has finished waits for a store that answers, but slowly."""


SYSTEM = "system/"
"""Prefix of the metrics of the machine, which MLflow shows on a page of its own, and by time."""


@dataclass(frozen=True)
class Patience:
    """The time that the end of a run waits for its store.

    seconds: since the store last answered; limit: in all, None: as `seconds`.
    log: gets a line now and then on what is waited for; stopped: returns True once the user will wait no longer.
    """

    seconds: float
    limit: float | None = None
    log: Callable[[str], None] = lambda line: None
    stopped: Callable[[], bool] = lambda: False

    @classmethod
    def of_finished(cls, log: Callable[[str], None], stopped: Callable[[], bool] = lambda: False) -> "Patience":
        """Returns the patience of a run that was not stopped."""
        return cls(PATIENCE_SECONDS, LONGEST_SECONDS, log, stopped)

    @classmethod
    def of_stopped(cls) -> "Patience":
        """Returns the patience of a run that was stopped."""
        return cls(STOPPED_PATIENCE_SECONDS)

    @property
    def longest(self) -> float:
        return self.seconds if self.limit is None else self.limit


class Tracker:
    """Records one run. This one records nothing: a tracker overrides all of it."""

    @property
    def run_id(self) -> str | None:
        """The run's id, or None where nothing is recorded."""
        return None

    def params(self, values: Mapping[str, Any]) -> None:
        """Records parameters by dotted names; a value may be of any length. One that has changed becomes a tag."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Records tags, which unlike parameters may change when a run is resumed."""

    def metrics(self, values: Mapping[str, float], step: int = 0, time: int | None = None) -> None:
        """Records one batch of metrics at `step`; the first value of a name at a step stays.

        Args:
            time: when they were measured, in milliseconds since 1970; None: now.
        """

    @property
    def has_scores(self) -> bool:
        """Whether any metric but those of the machine has been recorded."""
        return False

    def next_step(self, name: str) -> int:
        """Returns the step after the last one at which the metric `name` was recorded; 0 for a new one."""
        return 0

    def artifact(self, path: Path, folder: str = "") -> None:
        """Records a file or directory under `folder`."""

    def text(self, content: str, name: str) -> None:
        """Records `content` as an artifact of that name."""

    def dataset(self, dataset: "Dataset") -> None:
        """Records a data set by its fingerprint, as input of the run."""

    def model(self, exported: "Exported") -> None:
        """Records a SavedModel as a model of the run."""

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        """Registers the run's model as a version of `name`, and moves `alias` to it where it is better."""

    @property
    def notes(self) -> list[str]:
        """Lines on what came of the records so far, such as the version that a model was registered as."""
        return []

    def status(self, status: str) -> None:
        """Records the run's status: `RUNNING`, `FINISHED`, `FAILED` or `KILLED`."""

    def flush(self, patience: Patience) -> int:
        """Waits until the store has everything, and returns how many entries it misses; warns why, and what to type."""
        return 0

    @property
    def no_room(self) -> UserError | None:
        """The error of a full disk, where that is why the store misses entries."""
        return None

    def close(self, patience: float | None = None) -> int:
        """Ends: nothing is sent afterwards. `patience`: seconds to wait before, in all, as `flush` does."""
        return 0

    def how_to_open(self) -> str | None:
        """Returns what to type and where to look, a line each, or None where nothing is recorded."""
        return None


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
        return Tracker()
    from pipeline.tracking.journaled import JournaledTracker  # seconds to import

    tracker = JournaledTracker(spec, warn)
    tracker.begin()
    return tracker
