"""One run in a store: the target of a journal, and the interface that a custom store implements."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.tracking.journal import Entry
from pipeline.tracking.tracker import RunSpec


@dataclass
class Answers:
    """last: when the store last answered, by `time.monotonic()`; slowest: seconds that its slowest answer took."""

    last: float = field(default_factory=time.monotonic)
    slowest: float = 0.0

    def note(self, began: float) -> None:
        """Notes the answer to a request that began then."""
        self.last = time.monotonic()
        self.slowest = max(self.slowest, self.last - began)


@dataclass
class Recorded:
    """The part of a run that a store has.

    points: of each metric, from the step to its value and its time in milliseconds. ended: when, in milliseconds.
    """

    points: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    datasets: set[str] = field(default_factory=set)
    status: str = "RUNNING"
    ended: int = 0


class StoredRun:
    """The run of `spec` in a store. Base of `MlflowRun` and of users' own: `tracking._target_=my_package.MyRun`.

    The journal sends its entries here in order, in a thread of their own, and repeats those that raise; a resumed run
    sends what it still has. So every call may come twice: where the process died between a call and its note. A method
    that is not overridden records nothing. Without `is_there`, `recorded` and `lacks`, a store that loses the run is
    not noticed.

    Attributes:
        run_id: of the run in the store; is_new: whether the store had no such run.
        known: what the store has, while a journal is sent again, so that it may be left out; else None.
        allowance: seconds that the request under way may take by the size of its file.
        notes: lines for the user on what came of an entry.
    """

    errors: tuple[type[Exception], ...] = (Exception,)
    """Errors of opening the run that mean that the store cannot be used."""

    def __init__(self, spec: RunSpec, run_id: str | None) -> None:
        """Opens the run: `run_id` is the one that the journal holds, None where it holds none."""
        self.spec = spec
        self.known: Recorded | None = None
        self.allowance = 0.0
        self.notes: list[str] = []
        self.answers = Answers()
        self.run_id = ""
        self.is_new = False
        self.reopen(run_id)

    def reopen(self, run_id: str | None) -> None:
        """Finds the run, or begins one; called again where `is_there` has said that it is lost."""
        self.is_new = run_id is None
        self.run_id = run_id or uuid.uuid4().hex

    @property
    def open_with(self) -> str:
        """The command to type and the address to open, a line each; empty where there are none."""
        return ""

    def is_there(self) -> bool:
        """Returns whether the store still has the run; raises where it is away."""
        return True

    def may_be_lost(self, refused: bool) -> bool:
        """Returns whether an entry failed because the store no longer has the run; raises where it is away.

        Args:
            refused: whether the store answered that it does not take the entry.
        """
        return refused and not self.is_there()

    def recorded(self) -> Recorded:
        """Returns what the store has of the run."""
        return Recorded()

    def lacks(self, entries: Sequence[Entry]) -> bool:
        """Returns whether the store misses any of `entries`, as far as one request can tell."""
        return False

    def refuses(self, error: Exception) -> bool:
        """Returns whether sending the entry that raised `error` again could not help, as long as the run is there."""
        return isinstance(error, (FileNotFoundError, PermissionError))

    def send(self, entry: Entry) -> None:
        """Sends an entry; a journal holds none but the calls that it allows."""
        self.allowance = 0.0
        getattr(self, entry.call)(**entry.arguments)
        self.answers.last = time.monotonic()

    def params(self, values: Mapping[str, str]) -> None:
        """Records parameters; each name comes once."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Records tags, over those of the same name."""

    def forget(self, names: Sequence[str]) -> None:
        """Removes tags."""

    def metrics(self, values: Mapping[str, float], step: int, time: int) -> None:
        """Records metrics of `step` that were measured at `time`, in milliseconds since 1970."""

    def artifact(self, path: str, folder: str) -> None:
        """Records a file or directory, relative to `spec.folder`, under `folder`."""

    def text(self, content: str, name: str) -> None:
        """Records `content` as a file of that name."""

    def dataset(self, name: str, digest: str, sizes: Mapping[str, int]) -> None:
        """Records a data set; `sizes`: examples of each split."""

    def model(self, path: str, image_shape: Sequence[int], class_names: Sequence[str]) -> None:
        """Records a SavedModel, relative to `spec.folder`, as a model of the run."""

    def register(self, name: str, alias: str | None, promote_if: str, confidence: float) -> None:
        """Registers the run's model as a version of `name`, and moves `alias` to it where it is better."""
        self.notes.append(f"nothing is registered as {name}: {type(self).__name__} registers no models")

    def status(self, status: str, time: int) -> None:
        """Records RUNNING, or the end of the run at `time`, in milliseconds since 1970."""
