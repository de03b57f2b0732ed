"""Reports of a stage while it runs, and the safe places at which it may end."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn


class Stop:
    """Whether the run should end early. Outside a run it never should: an exception alone ends a stage."""

    @property
    def requested(self) -> bool:
        """Whether the user or the system has requested it."""
        return False

    def now(self) -> NoReturn:
        """End the run, once everything worth keeping is kept."""
        raise KeyboardInterrupt

    def nothing_to_keep(self) -> AbstractContextManager[None]:
        """Declares that an exception within the block would lose nothing, so that the run may end inside it."""
        return nullcontext()


class Reporter:
    """Receives the reports of a stage, and ignores them all. The runner passes in one that does not."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record one batch of metrics named `split/metric` at `step` (an epoch, counted from 1)."""

    def progress(self, done: int, total: int, note: str) -> None:
        """Shows that `done` of `total` steps are done, and `note`: what they are, how fast.

        A safe place (`stages.reporter`): it does not return where the run should end, except inside `stopping()`.
        """

    def doing(self, activity: str) -> None:
        """Show an activity without a count in place of the progress, until the next report."""

    def log(self, line: str) -> None:
        """Print one line, which is also logged."""

    def warn(self, line: str) -> None:
        """Print one line with what the user can do."""

    def resumed(self, step: int) -> None:
        """Notes that training resumes after `step` steps."""

    def stopping(self) -> AbstractContextManager[Stop]:
        """Defer the first signal until the stage has saved its state and calls `now()`."""
        return nullcontext(Stop())


_visit: Callable[[], None] | None = None


def safe_place() -> None:
    """End the stage here if the run should end, and report that the process is alive.

    Call it between steps, files or requests, at least every few seconds, and only when nothing is half done. A signal
    then ends the run here. A process that reaches no safe place within a few seconds of a signal is ended by force, and
    a member of a cluster that reaches none for a long time counts as hung. Outside a run, for example in a notebook,
    it does nothing.
    """
    if _visit is not None:
        _visit()


def on_safe_place(visit: Callable[[], None] | None) -> None:
    """Have `visit` called at every safe place of this process; it may raise to end the stage."""
    global _visit  # one per process, like signals
    _visit = visit
