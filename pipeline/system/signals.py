"""Signals: counted on arrival, acted upon at safe places, and enforced where none is reached in time.

A handler never raises. It counts the signal, and the main thread acts on it at safe places: between stages, steps and
jobs, and in every wait (`check`, `until`, `pause`). A thread receives signals, too, even while the main thread runs
native code. Where no safe place is reached in time, it

- interrupts the code of a stage, and only that, by an exception in the main thread, repeated until it arrives, as one
  raised in a destructor is lost;
- ends the process, with the run marked, where that does not help.

What a signal may do depends on the mode of the code that runs: see MODES.
"""

import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn, TypeVar

from pipeline.exit_codes import TIMED_OUT
from pipeline.system.signal_listener import MODES, STOPS, TICK_SECONDS, Interrupted, Listener, Part, Request

Answer = TypeVar("Answer")

BEFORE_RUN_SECONDS = 0.2
"""Grace of code before a run has begun, when nothing can be lost."""

CLOSED_OUTPUT = Request("the end of its standard output (nobody reads it)", signal.SIGTERM, 128 + signal.SIGPIPE)
BY_ANOTHER_WORKER = Request("another worker of the cluster", signal.SIGTERM, 128 + signal.SIGTERM)

_listener = Listener()


@contextmanager
def listening(owns_process: bool = False) -> Iterator[None]:
    """Count SIGINT, SIGTERM and SIGHUP inside the block (SIGHUP unless it was ignored before, as by `nohup`).

    No-op within itself and outside the main thread.

    Args:
        owns_process: whether the process is the framework's own, which may be ended by force; it then listens until
            its end.
    """
    global _listener  # a new one each time: the previous one's thread may still note a signal
    if _listener.pipe is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _listener = listener = Listener()
    listener.start(owns_process)
    if owns_process:
        atexit.register(_ignore)
    _hush_lost_interruptions()
    try:
        yield
    finally:
        if not owns_process:
            listener.stop()
            _listener = Listener()


def owns_process() -> bool:
    """Return whether the process is the framework's own, and not, say, a notebook's."""
    return _listener.owns_process


def is_ending() -> bool:
    """Return whether the run is being ended."""
    return _listener.part.name == "ending"


def requested() -> Request | None:
    """Return the first request to end the run, if any."""
    return _listener.request


def times_requested() -> int:
    """Return the number of signals received."""
    return _listener.count


def check() -> None:
    """Raise Interrupted if the run should end: a safe place.

    No-op in other threads, while training saves a checkpoint, and while the run is being ended.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and _listener.request is not None and _listener.part.mode.checks:
        raise Interrupted(_listener.request)


def until(ready: Callable[[], Answer], seconds: float = math.inf, poll: float = TICK_SECONDS) -> Answer:
    """Wait until `ready()` is true or the time is over; return its last answer.

    Raises:
        Interrupted: if the run should end.
    """
    deadline = time.monotonic() + seconds
    while True:
        check()
        answer = ready()
        left = deadline - time.monotonic()
        if answer or left <= 0:
            return answer
        time.sleep(min(poll, left))


def pause(seconds: float) -> None:
    """Wait until the time is over.

    Raises:
        Interrupted: if the run should end.
    """
    until(lambda: None, seconds)
    check()


def request(reason: Request) -> None:
    """End the run at the next safe place, for another reason than a signal."""
    if _listener.pipe is not None and not (reason is CLOSED_OUTPUT and _listener.is_detached):
        _listener.note(reason)


def time_out(deadline: float, limit: float) -> None:
    """End the run when the monotonic clock reaches `deadline`, by the user's `limit` in seconds."""
    _listener.timer = deadline, Request(f"job_timeout_seconds={limit:g}", signal.SIGTERM, TIMED_OUT)


@contextmanager
def interruptible(grace: float = MODES["stage"].grace) -> Iterator[None]:
    """Let a signal interrupt the block's Python code where it reaches no safe place within `grace` seconds."""
    with _in(Part("stage", replace(MODES["stage"], grace=grace))):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals act on the block at `check` alone, for the framework's own work."""
    with _in(Part("free", MODES["free"])):
        yield


@contextmanager
def supervising() -> Iterator[None]:
    """Leave it to the block to forward signals and to wait until the processes that it has started have ended."""
    with _in(Part("supervising", MODES["supervising"])):
        yield


@contextmanager
def ending(exit_code: int | None = None) -> Iterator[None]:
    """Protect the end of a run, its summary and its status, from signals.

    Args:
        exit_code: of the process if it is then ended by force; None: the signal's.
    """
    with _in(Part("ending", MODES["ending"], exit_code)):
        yield


def ended(exit_code: int) -> None:
    """Set the exit code of a process for its last lines."""
    _listener.parts.append(Part("ending", MODES["ending"], exit_code))


@contextmanager
def on_forced_exit(mark: Callable[[Request], None]) -> Iterator[None]:
    """Call `mark`, which marks the run, in another thread before the process is ended by force in the block."""
    before = _listener.on_forced_exit
    _listener.on_forced_exit = mark
    try:
        yield
    finally:
        _listener.on_forced_exit = before


class Stop:
    """See `stages.reporter.Stop`."""

    @property
    def requested(self) -> bool:
        return _listener.request is not None

    def now(self) -> NoReturn:
        raise Interrupted(_listener.request or BY_ANOTHER_WORKER)

    @contextmanager
    def nothing_to_keep(self) -> Iterator[None]:
        with interruptible():
            yield


@contextmanager
def stopping() -> Iterator[Stop]:
    """Defer a signal until a checkpoint is saved; a second one interrupts the block."""
    with _in(Part("saving", MODES["saving"])):
        yield Stop()
    check()


@contextmanager
def _in(part: Part) -> Iterator[None]:
    parts = _listener.parts
    parts.append(part)
    try:
        yield
    finally:
        parts.remove(part)


def _ignore() -> None:
    """Ignore signals while the interpreter shuts down, which would restore their defaults, which kill."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def _hush_lost_interruptions() -> None:
    """Keep Python from printing an Interrupted raised in a destructor; it is raised again a second later."""
    before = sys.unraisablehook

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, Interrupted):
            before(lost)

    if getattr(before, "__name__", "") != "hook":
        sys.unraisablehook = hook


def _after_fork() -> None:
    """Drop the parent's thread and pipe, as a child's signals are not the parent's."""
    global _listener
    pipe, _listener.pipe = _listener.pipe, None  # its handlers are still installed, and hear nothing more
    if pipe is not None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
        for end in pipe:
            with suppress(OSError):
                os.close(end)
        _listener = Listener()


os.register_at_fork(after_in_child=_after_fork)
