"""How a stage that takes long speaks while it works."""

from collections.abc import Mapping
from typing import Protocol


class Reporter(Protocol):
    """Takes what a stage has to tell before it returns. The runner hands one in; a notebook may leave it out."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Records one batch of metrics named `split/metric` at `step` (an epoch, counted from 1)."""

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None:
        """Shows that `done` of `total` steps are over; `images_per_second` is None until it is known."""

    def say(self, line: str) -> None:
        """Prints one line and keeps it in the log."""

    def warn(self, line: str) -> None:
        """Prints one line that tells the user what to do."""


class Silent:
    """The reporter of a stage that is called by hand."""

    def metrics(self, values: Mapping[str, float], step: int) -> None: ...

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None: ...

    def say(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...
