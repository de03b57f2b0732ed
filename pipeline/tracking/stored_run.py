"""One run in a store: the interface that MLflow and custom stores implement."""

import errno
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.config.schemas import MLFLOW_RUN, TrackingSettings
from pipeline.redaction import redact
from pipeline.runs.journal import Entry
from stages.errors import UserError
from stages.targets import class_at

RACES = 4
"""Attempts to send an entry while another process writes the same entry. The second attempt usually succeeds."""

RACE_SECONDS = 0.1


@dataclass(frozen=True)
class RunSpec:
    """The facts about a run that a store needs."""

    settings: TrackingSettings
    outputs: Path
    folder: Path
    """The folder of the run. Paths of files are relative to it."""
    experiment: str
    name: str
    parent: str | None = None
    """The id of the sweep's run, for a job of a sweep."""
    is_measured: bool = False
    """Whether the run records how it uses the machine (CPU, memory, GPU)."""
    has_jobs: bool = False
    """Whether it is the run of a sweep, whose link should show its jobs."""

    @property
    def key(self) -> str:
        """The identification of the run in its store, which stays the same if `outputs` is moved."""
        inside = self.folder.is_relative_to(self.outputs)
        return str(self.folder.relative_to(self.outputs) if inside else self.folder)


@dataclass(frozen=True)
class Delivery:
    """The result of sending an entry."""

    refused: Sequence[str] = ()
    """The entry, or values of it, that the store will never accept, and why."""
    trouble: str | None = None
    """The reason to send the entry again; None if it is done."""
    notes: list[str] = field(default_factory=list)
    """See `StoredRun`."""


class StoredRun:
    """A run in a store. Base class of `MlflowRun` and of custom stores: `tracking._target_=my_package.MyRun`.

    A follower, in a separate process, reads the entries of the run's journal and calls these methods in order. It
    repeats a call that raises. A call may also be repeated if the follower dies before it notes the call as done, or if
    the store has lost the run and gets all of it again. A method that is not overridden records nothing.

    Attributes:
        spec: The facts about the run.
        run_id: The id of the run in the store.
        notes: Lines for the user, such as the version that a model was registered as.
        open_with: The command to type and the address to open, one per line; empty if there are none.
        links: Other addresses, by what they show.
    """

    errors: tuple[type[Exception], ...] = (Exception,)
    """Errors while opening the run that mean that the store cannot be used."""

    def __init__(self, spec: RunSpec, run_id: str | None) -> None:
        """Open the run.

        Args:
            spec: The facts about the run.
            run_id: The id of the run in an earlier session; None if there was none.
        """
        self.spec = spec
        self.notes: list[str] = []
        self.run_id = self.open_with = ""
        self.links: dict[str, str] = {}
        self.open(run_id)

    def open(self, run_id: str | None) -> None:
        """Find the run in the store or create it, and set `run_id`."""
        self.run_id = run_id or uuid.uuid4().hex

    def refuses(self, error: Exception) -> bool:
        """Return whether `error` means that the store will never accept the entry, so it is not sent again."""
        is_irregular = isinstance(error, OSError) and error.errno == errno.EINVAL  # a FIFO, a device
        return is_irregular or isinstance(error, (FileNotFoundError, PermissionError))

    def is_race(self, error: Exception) -> bool:
        """Return whether another process wrote the same at the same time, so the entry can be sent again at once."""
        return False

    def send(self, entry: Entry) -> Delivery:
        """Send an entry. Errors are returned, not raised, because they must not stop training."""
        refused: list[str] = []
        try:
            self._send_or_split(entry, refused)
        except Exception as error:
            return Delivery(refused, reason(error))
        return Delivery(refused, notes=self.notes)

    def _send_or_split(self, entry: Entry, refused: list[str]) -> None:
        """Send an entry. If the store refuses it, send each of its values separately, so only bad values are lost.

        Args:
            entry: The entry.
            refused: Gets a line for each entry or value that the store refuses.
        """
        try:
            self._call(entry)
        except Exception as error:
            if not self.refuses(error):
                raise
            values = entry.arguments.get("values", {})
            if len(values) > 1:
                for name, value in values.items():
                    self._send_or_split(replace(entry, arguments={**entry.arguments, "values": {name: value}}), refused)
                return
            refused.append(f"{entry} ({reason(error)})")

    def _call(self, entry: Entry) -> None:
        """Call the method that records `entry`. After a race with another process, call it again."""
        for attempt in range(RACES):
            try:
                getattr(self, entry.call)(**entry.arguments)  # a journal contains only allowed calls
                return
            except Exception as error:
                if attempt == RACES - 1 or not self.is_race(error):
                    raise
                time.sleep(attempt * RACE_SECONDS)

    def params(self, values: Mapping[str, str]) -> None:
        """Record parameters. Each name is recorded once."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags, which replace tags of the same name."""

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        """Record metrics of `step` that were measured at `time`, in milliseconds since 1970."""

    def artifact(self, path: str, folder: str) -> None:
        """Record a file or directory, relative to `spec.folder`, under `folder`."""

    def text(self, content: str, name: str) -> None:
        """Record `content` as a file of that name."""

    def dataset(self, name: str, digest: str, sizes: Mapping[str, int]) -> None:
        """Record a data set. `sizes` has the number of examples of each split."""

    def model(
        self,
        path: str,
        image_shape: Sequence[int],
        class_names: Sequence[str],
        columns: Mapping[str, str] | None = None,
        answers: Mapping[str, str] | None = None,
    ) -> None:
        """Record a SavedModel, relative to `spec.folder`, as a model of the run.

        Args:
            path: The folder of the SavedModel.
            image_shape: Height, width and channels, for a model of images.
            class_names: The names of the classes.
            columns: The dtypes of its arguments, by name; None if its input is images.
            answers: The dtypes of its outputs, by name.
        """

    def view(
        self,
        name: str,
        settings: Sequence[str],
        metrics: Sequence[str],
        is_lower_better: bool,
        combinations: Sequence[str] | None = None,
    ) -> None:
        """Record a view of the experiment's runs, such as a table that users open.

        Args:
            name: The name of the view.
            settings: The parameters to show.
            metrics: The metrics to show. The first one sorts the runs.
            is_lower_better: Whether a lower value of the first metric is better.
            combinations: None to show all runs. Else the view shows the jobs of this run, a sweep, with one row per
                value of their tag `combination`, or one row per job if the sequence is empty.
        """

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        """Register the run's model as a version of `name`, and move `alias` to it if it is better."""
        self.notes.append(f"no version of {name} was registered: {type(self).__name__} does not register models")

    def status(self, status: str, time: int) -> None:
        """Record RUNNING, or the end of the run at `time`, in milliseconds since 1970."""

    def close(self) -> None:
        """Stop background work. No other method is called afterwards."""


def reason(error: Exception) -> str:
    """Return the error of a store in one line, without secrets."""
    return f"{type(error).__name__}: {' '.join(str(redact(str(error))).split())[:200]}"


def open_stored_run(spec: RunSpec, run_id: str | None) -> StoredRun:
    """Open the run of `spec` in its store.

    Raises:
        UserError: If the store cannot be used.
    """
    store = class_at(spec.settings._target_, StoredRun, "tracking", f"tracking._target_={MLFLOW_RUN}")
    try:
        return store(spec, run_id)
    except store.errors as error:
        raise unusable(spec.settings, " ".join(str(redact(str(error))).split())[:200]) from error


def address_of(settings: TrackingSettings) -> str | None:
    """Return the address of a store as journals contain it, without a password."""
    return str(redact(settings.uri)) if settings.uri else None


def unusable(settings: TrackingSettings, reason: str) -> UserError:
    """Return the error to show the user if a store cannot be used."""
    fix = "tracking=off" if settings.kind == "local" else "tracking=local"
    is_locked = "locked" in reason
    expected = "a database that no other program has locked" if is_locked else "a database or server that can be opened"
    return UserError(f"tracking={settings.kind} cannot be used ({reason})", expected, fix)
