"""One run in a store: the target of a journal, and the interface that a custom store implements."""

import uuid
from collections.abc import Mapping, Sequence

from pipeline.tracking.journal import Entry
from pipeline.tracking.tracker import RunSpec


class StoredRun:
    """The run of `spec` in a store. Base of `MlflowRun` and of users' own: `tracking._target_=my_package.MyRun`.

    The journal sends its entries here in order, in a thread of their own, and repeats those that raise; a resumed run
    sends what it still has. So every call may come twice: where the process died between a call and its note, and
    where a store that has lost the run gets all of it again. A method that is not overridden records nothing.

    Attributes:
        run_id: of the run in the store; is_new: whether the store had no such run.
        notes: lines for the user on what came of an entry.
    """

    errors: tuple[type[Exception], ...] = (Exception,)
    """Errors of opening the run that mean that the store cannot be used."""

    def __init__(self, spec: RunSpec, run_id: str | None) -> None:
        """Open the run: `run_id` is the one that the journal holds, None where it holds none."""
        self.spec = spec
        self.notes: list[str] = []
        self.run_id = ""
        self.is_new = False
        self.reopen(run_id)

    def reopen(self, run_id: str | None) -> None:
        """Find the run, or begin one; called again where it `is_lost`."""
        self.is_new = run_id is None
        self.run_id = run_id or uuid.uuid4().hex

    @property
    def open_with(self) -> str:
        """The command to type and the address to open, a line each; empty where there are none."""
        return ""

    def is_lost(self) -> bool:
        """Whether the store answers, and no longer has the run; asked when an entry was not taken."""
        return False

    def refuses(self, error: Exception) -> bool:
        """Whether sending the entry that raised `error` again could not help, as long as the run is there."""
        return isinstance(error, (FileNotFoundError, PermissionError))

    def send(self, entry: Entry) -> None:
        """Send an entry; a journal holds none but the calls that it allows."""
        getattr(self, entry.call)(**entry.arguments)

    def params(self, values: Mapping[str, str]) -> None:
        """Record parameters; each name comes once."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags, over those of the same name."""

    def forget(self, names: Sequence[str]) -> None:
        """Remove tags."""

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        """Record metrics of `step` that were measured at `time`, in milliseconds since 1970."""

    def artifact(self, path: str, folder: str) -> None:
        """Record a file or directory, relative to `spec.folder`, under `folder`."""

    def text(self, content: str, name: str) -> None:
        """Record `content` as a file of that name."""

    def dataset(self, name: str, digest: str, sizes: Mapping[str, int]) -> None:
        """Record a data set; `sizes`: examples of each split."""

    def model(self, path: str, image_shape: Sequence[int], class_names: Sequence[str]) -> None:
        """Record a SavedModel, relative to `spec.folder`, as a model of the run."""

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        """Register the run's model as a version of `name`, and moves `alias` to it where it is better."""
        self.notes.append(f"nothing is registered as {name}: {type(self).__name__} registers no models")

    def status(self, status: str, time: int) -> None:
        """Record RUNNING, or the end of the run at `time`, in milliseconds since 1970."""
