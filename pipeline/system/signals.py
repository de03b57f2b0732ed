"""Signals: noted when they come, acted upon at safe places, and enforced where none is reached in time.

A handler never raises. It notes the signal, and the main thread looks at safe places: between stages, steps, jobs and
in every wait (`check`, `pause`). A thread hears signals too, also while the main thread is in native code, and where no
safe place is reached in time it

- interrupts the code of a stage, and only that, by an exception in the main thread (`interruptible`), repeated until it
  arrives: one that falls into a destructor is lost;
- ends the process, with the run marked, where that does not help either.
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
"""Seconds in which a stage has to reach a safe place before its Python code is interrupted."""

TIMED_OUT = 124
"""Exit code of a job that has reached its `job_timeout_seconds`, as of timeout(1)."""

CLOSED_OUTPUT = Request("the end of its standard output (nobody reads it)", signal.SIGTERM, 128 + signal.SIGPIPE)
BY_ANOTHER_WORKER = Request("another worker of the cluster", signal.SIGTERM, 128 + signal.SIGTERM)

_listener = Listener()


@contextmanager
def listening(owns_process: bool = False) -> Iterator[None]:
    """Notes SIGINT, SIGTERM and SIGHUP inside the block (SIGHUP where it was not ignored before, as by `nohup`).

    Inside itself, and outside the main thread, it changes nothing.

    Args:
        owns_process: whether the process is the framework's own, to be ended by force if need be; then it listens
            until its end.
    """
    global _listener  # a new one each time: the thread of the one before may still be about to note something
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


def requested() -> Request | None:
    """Returns the first request to end the run, or None."""
    return _listener.request


def times_requested() -> int:
    """Returns the number of signals received."""
    return _listener.count


def check() -> None:
    """Raises Interrupted where the run is to end: a safe place.

    No-op in other threads, while training saves a checkpoint, and while the run is being ended.
    """
    mode = _listener.mode
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and _listener.request is not None and not mode.keeps and not mode.ends:
        raise Interrupted(_listener.request)


def pause(seconds: float) -> None:
    """Waits, but for no longer than until the run is to end.

    Raises:
        Interrupted: then.
    """
    check()
    if _listener.is_on and _listener.request is None:
        _listener.changed.wait(seconds)
    else:
        time.sleep(seconds)
    check()


def request(wanted: Request) -> None:
    """Has the run end at the next safe place, for another reason than a signal."""
    if wanted is CLOSED_OUTPUT and _listener.is_detached:
        return
    if _listener.is_on:
        _listener.note(wanted, "thread")


def time_out(deadline: float, limit: float) -> None:
    """Has the run end when the monotonic clock shows `deadline`, by the `limit` that the user gave, in seconds."""
    _listener.timer = deadline, Request(f"job_timeout_seconds={limit:g}", signal.SIGTERM, TIMED_OUT)


@contextmanager
def interruptible(grace: float = GRACE_SECONDS) -> Iterator[None]:
    """Lets a signal interrupt the block's Python code where it reaches no safe place within `grace` seconds."""
    with _in(Mode(grace=grace)):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets no signal interrupt the block, but at `check`: for the framework's own work."""
    with _in(Mode()):
        yield


@contextmanager
def supervising() -> Iterator[None]:
    """Leaves it to the block to pass signals on and to wait for the processes that it has started to save and end."""
    with _in(Mode(limit=SAVE_SECONDS + 30, second_limit=SUPERVISED_SECONDS, keeps=True, supervises=True)):
        yield


@contextmanager
def ending(exit_code: int | None = None) -> Iterator[None]:
    """Lets no signal cut short what ends a run: its summary and its status. It has LIMIT_SECONDS after one, though.

    Args:
        exit_code: of the process that is ended by force meanwhile; None: the signal's.
    """
    with _in(Mode(ends=True, exit_code=exit_code)):
        yield


def ended(exit_code: int) -> None:
    """For the last lines of a process: its exit code is known."""
    _listener.modes.append(Mode(ends=True, exit_code=exit_code))


@contextmanager
def last_words(speak: Callable[[Request], None]) -> Iterator[None]:
    """Has `speak` mark the run, in another thread, before the process is ended by force inside the block."""
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
    """Lets a signal wait until a checkpoint is saved; a second one interrupts the block."""
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
    """Ignores signals while the interpreter shuts down: it would restore their defaults, which kill."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def _hush_lost_interruptions() -> None:
    """Keeps Python from printing an Interrupted that fell into a destructor: it is raised again a second later."""
    before = sys.unraisablehook

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, Interrupted):
            before(lost)

    if getattr(before, "__name__", "") != "hook":
        sys.unraisablehook = hook


def _after_fork() -> None:
    """Forgets the parent's thread and pipe: a child's signals are not the parent's."""
    global _listener
    if _listener.is_on:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
        for end in _listener.pipe or ():
            with suppress(OSError):
                os.close(end)
        _listener = Listener()


os.register_at_fork(after_in_child=_after_fork)
