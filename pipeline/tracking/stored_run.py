"""One run in a store: the target of a journal, and the interface that a custom store implements."""

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
"""Attempts to send an entry that another process sends, too. More would not help: the second finds what that wrote."""

RACE_SECONDS = 0.1


@dataclass(frozen=True)
class RunSpec:
    """The facts about a run that a store needs."""

    settings: TrackingSettings
    outputs: Path
    folder: Path
    """The folder of its files. Relative paths start there."""
    experiment: str
    name: str
    parent: str | None = None
    """The id of the sweep's run, for a job of a sweep."""
    is_measured: bool = False
    """Whether the use of the machine is recorded while the run works."""
    has_jobs: bool = False
    """Whether it is the run of a sweep, so that users want to see its jobs."""

    @property
    def key(self) -> str:
        """Identifies the run in its store, wherever `outputs` is moved."""
        inside = self.folder.is_relative_to(self.outputs)
        return str(self.folder.relative_to(self.outputs) if inside else self.folder)


@dataclass(frozen=True)
class Delivery:
    """The result of sending an entry.

    refused: it, or values of it, that the store will never take, and why.
    trouble: why it has to be sent again; None where it is done with. notes: see `StoredRun`.
    """

    refused: Sequence[str] = ()
    trouble: str | None = None
    notes: list[str] = field(default_factory=list)


class StoredRun:
    """The run of `spec` in a store. Base of `MlflowRun` and of users' own: `tracking._target_=my_package.MyRun`.

    A follower, in a process of its own, reads the entries of the run's journal and calls the methods here in order. It
    repeats a call that raises. A call may come a second time: if the follower dies before it can note that it is done,
    or if the store has lost the run and gets all of it again. A method that is not overridden records nothing.

    Attributes:
        spec: What is recorded.
        run_id: The id of the run in the store.
        notes: Lines for the user, such as the version that a model was registered as.
        open_with: The command to type and the address to open, one per line; empty if there are none.
        links: Other addresses, by what they show.
    """

    errors: tuple[type[Exception], ...] = (Exception,)
    """Errors of opening the run that mean that the store cannot be used."""

    def __init__(self, spec: RunSpec, run_id: str | None) -> None:
        """Open the run.

        Args:
            spec: What is recorded.
            run_id: The id that an earlier session got; None if there was none.
        """
        self.spec = spec
        self.notes: list[str] = []
        self.run_id = self.open_with = ""
        self.links: dict[str, str] = {}
        self.open(run_id)

    def open(self, run_id: str | None) -> None:
        """Find the run, or begin one, and set its `run_id`."""
        self.run_id = run_id or uuid.uuid4().hex

    def refuses(self, error: Exception) -> bool:
        """Whether sending the entry that raised `error` again could not help."""
        is_irregular = isinstance(error, OSError) and error.errno == errno.EINVAL  # a FIFO, a device
        return is_irregular or isinstance(error, (FileNotFoundError, PermissionError))

    def is_race(self, error: Exception) -> bool:
        """Whether another process wrote the same at the same time, so that sending the entry at once again helps."""
        return False

    def deliver(self, entry: Entry) -> Delivery:
        """Send an entry; whatever is raised, training continues."""
        refused: list[str] = []
        try:
            self._try(entry, refused)
        except Exception as error:
            return Delivery(refused, reason(error))
        return Delivery(refused, notes=self.notes)

    def _try(self, entry: Entry, refused: list[str]) -> None:
        """Send an entry, each of its values alone where the store refuses them: one must not take the others along."""
        try:
            self._send(entry)
        except Exception as error:
            if not self.refuses(error):
                raise
            values = entry.arguments.get("values", {})
            if len(values) > 1:
                for name, value in values.items():
                    self._try(replace(entry, arguments={**entry.arguments, "values": {name: value}}), refused)
                return
            refused.append(f"{entry} ({reason(error)})")

    def _send(self, entry: Entry) -> None:
        for attempt in range(RACES):
            try:
                getattr(self, entry.call)(**entry.arguments)  # a journal holds none but the calls that it allows
                return
            except Exception as error:
                if attempt == RACES - 1 or not self.is_race(error):
                    raise
                time.sleep(attempt * RACE_SECONDS)

    def params(self, values: Mapping[str, str]) -> None:
        """Record parameters; each name comes once."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags, over those of the same name."""

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        """Record metrics of `step` that were measured at `time`, in milliseconds since 1970."""

    def artifact(self, path: str, folder: str) -> None:
        """Record a file or directory, relative to `spec.folder`, under `folder`."""

    def text(self, content: str, name: str) -> None:
        """Record `content` as a file of that name."""

    def dataset(self, name: str, digest: str, sizes: Mapping[str, int]) -> None:
        """Record a data set; `sizes`: examples of each split."""

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
            columns: from its arguments to their dtypes; None where it takes images. answers: of what it returns.
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
            settings: parameters to show. metrics: to show; the first one sorts the runs.
            is_lower_better: whether less of the first metric is better.
            combinations: None: the view shows all runs. Else it shows the jobs of this run, a sweep, in one row for
                each value of their tag `combination`; if there are no values, in one row per job.
        """

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        """Register the run's model as a version of `name`, and move `alias` to it where it is better."""
        self.notes.append(f"no version of {name} was registered: {type(self).__name__} does not register models")

    def status(self, status: str, time: int) -> None:
        """Record RUNNING, or the end of the run at `time`, in milliseconds since 1970."""

    def close(self) -> None:
        """End what is done beside the calls, as nothing more is sent."""


def reason(error: Exception) -> str:
    """Return an error of a store in one line, without secrets."""
    return f"{type(error).__name__}: {' '.join(str(redact(str(error))).split())[:200]}"


def open_run(spec: RunSpec, run_id: str | None) -> StoredRun:
    """Open the run of `spec` in its store.

    Raises:
        UserError: where the store cannot be used.
    """
    store = class_at(spec.settings._target_, StoredRun, "tracking", f"tracking._target_={MLFLOW_RUN}")
    try:
        return store(spec, run_id)
    except store.errors as error:
        raise unusable(spec.settings, " ".join(str(redact(str(error))).split())[:200]) from error


def unusable(settings: TrackingSettings, reason: str) -> UserError:
    """Return the user's error for a store that cannot be used."""
    fix = "tracking=off" if settings.kind == "local" else "tracking=local"
    is_locked = "locked" in reason
    expected = "a database that no other program has locked" if is_locked else "a database or server that can be opened"
    return UserError(f"tracking={settings.kind} cannot be used ({reason})", expected, fix)
