"""Signals as exceptions, and the moments in which they must wait."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The user or the system wants the run to end. `exit_code` is the shell's: 130 or 143."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Raises Interrupted for SIGINT and SIGTERM inside the block; outside the main thread it changes nothing."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled_by(interrupt):
        yield


class Stop:
    """See `stages.reporter.Stop`."""

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def requested(self) -> bool:
        return self.number is not None

    def now(self) -> NoReturn:
        raise Interrupted(self.number or signal.SIGTERM)  # without a signal of its own it was another worker's


@contextmanager
def stopping() -> Iterator[Stop]:
    """Notes the first signal inside the block, which is raised at its end; the second one is raised at once."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise Interrupted(number)
        stop.number = number

    with _handled_by(note):
        yield stop
    if stop.requested:
        stop.now()


@contextmanager
def ignored() -> Iterator[None]:
    """Lets no signal cut short what ends a run: its summary, and its status."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Lets a signal wait until the block is over: for what must not be half done, such as starting a run.

    The second one does not wait: the block may be waiting for a store that never answers.

    By a handler and not by a mask: `multiprocessing` unmasks them while it starts its server.
    """
    waiting: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if waiting:
            raise Interrupted(number)
        waiting.append(number)

    with _handled_by(note):
        yield
    if waiting:
        raise Interrupted(waiting[0])


def ignore_from_now_on() -> None:
    """For the last lines of a process: its exit code is known."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
