"""How a stage that takes long speaks while it works."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, Protocol


class Stop(Protocol):
    """Whether the run is to end before its time."""

    @property
    def requested(self) -> bool:
        """Whether the user or the system wants it to."""

    def now(self) -> NoReturn:
        """Ends it: all that is to be kept is kept."""

    def nothing_to_keep(self) -> AbstractContextManager[None]:
        """Says that the block's end need not be waited for: an exception in it would lose nothing."""


class Reporter(Protocol):
    """Takes what a stage has to tell before it returns. The runner hands one in; a notebook may leave it out."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Records one batch of metrics named `split/metric` at `step` (an epoch, counted from 1)."""

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None:
        """Shows that `done` of `total` steps are over; `images_per_second` is None until it is known.

        A safe place (`stages.safe_places`): it does not return where the run is to end, except inside `stopping()`.
        """

    def doing(self, what: str) -> None:
        """Shows what is being done in the place of a progress, where nothing is counted; ended by whatever follows."""

    def say(self, line: str) -> None:
        """Prints one line and keeps it in the log."""

    def warn(self, line: str) -> None:
        """Prints one line that tells the user what to do."""

    def resumed(self, step: int) -> None:
        """Notes that training resumes after `step` steps."""

    def is_secret(self, name: str, value: object) -> bool:
        """Returns whether there is a secret in `value`, or `name` says so: it is written to no file then."""

    def stopping(self) -> AbstractContextManager[Stop]:
        """Lets the first signal wait until the stage has kept what it has and calls `now()`."""


class Silent:
    """The reporter of a stage that is called by hand."""

    def metrics(self, values: Mapping[str, float], step: int) -> None: ...

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None: ...

    def doing(self, what: str) -> None: ...

    def say(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...

    def resumed(self, step: int) -> None: ...

    def is_secret(self, name: str, value: object) -> bool:
        return False

    def stopping(self) -> AbstractContextManager[Stop]:
        return nullcontext(Never())


class Never:
    """No stop is ever wanted, but by an exception."""

    requested = False

    def now(self) -> NoReturn:
        raise KeyboardInterrupt

    def nothing_to_keep(self) -> AbstractContextManager[None]:
        return nullcontext()
