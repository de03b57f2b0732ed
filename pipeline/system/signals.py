"""Signals: noted on arrival, acted upon at safe places, and enforced where none is reached in time.

A handler never raises. It notes the signal, and the main thread acts on it at safe places: between stages, steps and
jobs, and in every wait (`check`, `pause`). A thread receives signals, too, even while the main thread runs native code.
Where no safe place is reached in time, it

- interrupts the code of a stage, and only that, by an exception in the main thread (`interruptible`), repeated until it
  arrives, as one raised in a destructor is lost;
- ends the process, with the run marked, where that does not help.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from pipeline.exit_codes import TIMED_OUT
from pipeline.system.signal_listener import (
    SAVE_SECONDS,
    STOPS,
    SUPERVISED_SECONDS,
    Interrupted,
    Listener,
    Mode,
    Request,
)

GRACE_SECONDS = 2.0
"""Seconds for a stage to reach a safe place before its Python code is interrupted."""

BEFORE_RUN_SECONDS = 0.2
"""The same before a run has begun, when nothing can be lost."""

CLOSED_OUTPUT = Request("the end of its standard output (nobody reads it)", signal.SIGTERM, 128 + signal.SIGPIPE)
BY_ANOTHER_WORKER = Request("another worker of the cluster", signal.SIGTERM, 128 + signal.SIGTERM)

_listener = Listener()


@contextmanager
def listening(owns_process: bool = False) -> Iterator[None]:
    """Notes SIGINT, SIGTERM and SIGHUP inside the block (SIGHUP unless it was ignored before, as by `nohup`).

    No-op within itself and outside the main thread.

    Args:
        owns_process: whether the process is the framework's own, which may be ended by force; it then listens until
            its end.
    """
    global _listener  # a new one each time: the previous one's thread may still note a signal
    if _listener.is_on or threading.current_thread() is not threading.main_thread():
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
    """Returns whether the process is the framework's own, and not, say, a notebook's."""
    return _listener.owns_process


def is_ending() -> bool:
    """Returns whether the run is being ended."""
    return _listener.mode.ends


def requested() -> Request | None:
    """Returns the first request to end the run, or None."""
    return _listener.request


def times_requested() -> int:
    """Returns the number of signals received."""
    return _listener.count


def check() -> None:
    """Raises Interrupted if the run should end: a safe place.

    No-op in other threads, while training saves a checkpoint, and while the run is being ended.
    """
    mode = _listener.mode
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and _listener.request is not None and not mode.keeps and not mode.ends:
        raise Interrupted(_listener.request)


def pause(seconds: float) -> None:
    """Waits until the time is over or the run should end.

    Raises:
        Interrupted: if the run should end.
    """
    check()
    if _listener.is_on and _listener.request is None:
        _listener.changed.wait(seconds)
    else:
        time.sleep(seconds)
    check()


def request(reason: Request) -> None:
    """Ends the run at the next safe place, for another reason than a signal."""
    if reason is CLOSED_OUTPUT and _listener.is_detached:
        return
    if _listener.is_on:
        _listener.note(reason, "thread")


def time_out(deadline: float, limit: float) -> None:
    """Ends the run when the monotonic clock reaches `deadline`, by the user's `limit` in seconds."""
    _listener.timer = deadline, Request(f"job_timeout_seconds={limit:g}", signal.SIGTERM, TIMED_OUT)


@contextmanager
def interruptible(grace: float = GRACE_SECONDS) -> Iterator[None]:
    """Lets a signal interrupt the block's Python code where it reaches no safe place within `grace` seconds."""
    with _in(Mode(grace=grace)):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets signals act on the block at `check` alone, for the framework's own work."""
    with _in(Mode()):
        yield


@contextmanager
def supervising() -> Iterator[None]:
    """Leaves it to the block to forward signals and to wait until the processes that it has started have ended."""
    with _in(Mode(limit=SAVE_SECONDS + 30, second_limit=SUPERVISED_SECONDS, keeps=True, supervises=True)):
        yield


@contextmanager
def ending(exit_code: int | None = None) -> Iterator[None]:
    """Protects the end of a run, its summary and its status, from signals for LIMIT_SECONDS.

    Args:
        exit_code: of the process if it is then ended by force; None: the signal's.
    """
    with _in(Mode(ends=True, exit_code=exit_code)):
        yield


def ended(exit_code: int) -> None:
    """Sets the exit code of a process for its last lines."""
    _listener.modes.append(Mode(ends=True, exit_code=exit_code))


@contextmanager
def last_words(speak: Callable[[Request], None]) -> Iterator[None]:
    """Calls `speak`, which marks the run, in another thread before the process is ended by force in the block."""
    before = _listener.last_words
    _listener.last_words = speak
    try:
        yield
    finally:
        _listener.last_words = before


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
    """Defers a signal until a checkpoint is saved; a second one interrupts the block."""
    stop = Stop()
    with _in(Mode(limit=SAVE_SECONDS, second=True, keeps=True)):
        yield stop
    check()


@contextmanager
def _in(mode: Mode) -> Iterator[None]:
    modes = _listener.modes
    modes.append(mode)
    try:
        yield
    finally:
        modes.remove(mode)


def _ignore() -> None:
    """Ignores signals while the interpreter shuts down, which would restore their defaults, which kill."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def _hush_lost_interruptions() -> None:
    """Keeps Python from printing an Interrupted raised in a destructor; it is raised again a second later."""
    before = sys.unraisablehook

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, Interrupted):
            before(lost)

    if getattr(before, "__name__", "") != "hook":
        sys.unraisablehook = hook


def _after_fork() -> None:
    """Drops the parent's thread and pipe, as a child's signals are not the parent's."""
    global _listener
    if _listener.is_on:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
        for end in _listener.pipe or ():
            with suppress(OSError):
                os.close(end)
        _listener = Listener()


os.register_at_fork(after_in_child=_after_fork)
