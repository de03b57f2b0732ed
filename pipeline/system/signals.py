"""Signals: counted on arrival, acted upon at safe places, and enforced where none is reached in time.

A handler never raises. It counts the signal, and the main thread acts on it at safe places: between stages, steps and
jobs, and in every wait (`check`, `until`, `pause`). A thread receives signals, too, even while the main thread runs
native code. Where no safe place is reached in time, it

- interrupts the code of a stage, and only that, by an exception in the main thread, repeated until it arrives, as one
  raised in a destructor is lost;
- ends the process, with the run marked, where that does not help.

What a signal may do depends on the mode of the code that runs: see MODES.
"""

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, NoReturn, TypeVar

from pipeline.exit_codes import TIMED_OUT
from stages import reporter

Answer = TypeVar("Answer")

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POKE = signal.SIGURG
"""The signal by which the thread interrupts the main one; by default a process ignores it."""


@dataclass(frozen=True, eq=False)
class Mode:
    """Limits of what a signal may do in a part of the program, in seconds.

    limit: until the process is ended by force, from the signal or the mode's beginning; second: the same from a second
        signal. A third ends it at once, unless the mode `supervises` other processes, which it has to end.
    grace: until Python code is interrupted; second_grace: the same from a second signal.
    checks: whether `check` raises. is_end: whether the part ends the run, and marks it by itself.
    exit_code: of the process if it is ended by force there; None: the signal's. began: when it did.
    """

    limit: float = 8.0
    second: float = 4.0
    grace: float = math.inf
    second_grace: float = math.inf
    checks: bool = True
    supervises: bool = False
    is_end: bool = False
    exit_code: int | None = None
    began: float = 0.0


MODES = {
    "free": Mode(),  # the framework's own work
    "stage": Mode(grace=2.0, second_grace=0.0),
    "saving": Mode(limit=300.0, second_grace=2.0, checks=False),  # training writes a checkpoint, which is soon complete
    "supervising": Mode(limit=330.0, second=20.0, checks=False, supervises=True),
    "ending": Mode(checks=False, is_end=True),  # the run's summary and status
}

FORCED_EXIT_SECONDS = 3.0
POKE_SECONDS = 1.0
TICK_SECONDS = 0.1
IDLE_SECONDS = 1.0
BOUNCE_SECONDS = 0.2
"""Equal signals within this time are one: `timeout` signals the process and then its whole group."""


@dataclass(frozen=True)
class Request:
    """A request to end the run. number: the signal to pass on to other processes; exit_code: of this one."""

    reason: str
    number: int
    exit_code: int


class Interrupted(BaseException):
    """The user or the system wants the run to end. `exit_code` is the shell's: 129, 130, 143, …"""

    def __init__(self, request: Request) -> None:
        super().__init__(request.reason)
        self.exit_code = request.exit_code


def signal_request(number: int) -> Request:
    """Return the request that a signal makes."""
    name = signal.Signals(number).name
    return Request(f"Ctrl-C ({name})" if number == signal.SIGINT else name, number, 128 + number)


class Listener:
    """The signals that this process has received, and the thread that enforces them."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.count = 0
        self.parts = [MODES["free"]]
        self.pipe: tuple[int, int] | None = None
        self.is_detached = False  # SIGHUP was ignored at the start, as by nohup
        self.owns_process = False
        self.on_forced_exit: Callable[[Request], object] | None = None
        self.timer: tuple[float, Request] | None = None
        self._first = self._second = 0.0
        self._noted: dict[int, float] = {}
        self._poked = 0.0
        self._lock = threading.RLock()
        self._before: dict[int, object] = {}
        self._woken = -1  # a notebook's, by which its event loop hears of signals

    @property
    def part(self) -> Mode:
        return self.parts[-1]

    def start(self, owns_process: bool) -> None:
        self.owns_process = owns_process
        self.is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.pipe = os.pipe()
        for end in self.pipe:
            os.set_blocking(end, False)
        for number in (*STOPS, POKE):
            if number != signal.SIGHUP or not self.is_detached:
                self._before[number] = signal.signal(number, self._interrupt if number == POKE else self.handle)
        self._woken = signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=self.pipe[:1], daemon=True, name="signals").start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def stop(self) -> None:
        """Undo `start`."""
        signal.set_wakeup_fd(self._woken)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self.pipe is not None:
            writable = self.pipe[1]
            self.pipe = None
            os.close(writable)  # the thread closes the other end

    def note(self, request: Request) -> None:
        with self._lock:
            now = time.monotonic()
            last = self._noted.get(request.number, -BOUNCE_SECONDS)
            self._noted[request.number] = now
            if now - last < BOUNCE_SECONDS:
                return
            self.count += 1
            if self.request is None:
                self.request, self._first = request, now
            elif self.count == 2:
                self._second = now

    def _receive(self, readable: int) -> bool:
        """Count the signals that have arrived; return False where no more will."""
        with self._lock, suppress(BlockingIOError):
            numbers = os.read(readable, 512)
            for number in numbers:
                if number in STOPS:
                    self.note(signal_request(number))
            return bool(numbers)
        return True

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.pipe is not None:
            self._receive(self.pipe[0])

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.request is not None and self._may_interrupt():
            raise Interrupted(self.request)

    def _may_interrupt(self) -> bool:
        part, now = self.part, time.monotonic()
        return now - self._first >= part.grace or bool(self._second and now - self._second >= part.second_grace)

    def _watch(self, readable: int) -> None:
        while self.pipe is not None:
            ready, _, _ = select.select([readable], [], [], IDLE_SECONDS if self.request is None else TICK_SECONDS)
            if ready and not self._receive(readable):
                break
            if self.timer is not None and time.monotonic() > self.timer[0]:
                _, request = self.timer
                self.timer = None
                self.note(request)
            if self.request is not None:
                self._enforce(self.request)
        os.close(readable)

    def _enforce(self, request: Request) -> None:
        now, part = time.monotonic(), self.part
        if self._may_interrupt() and now - self._poked >= POKE_SECONDS:
            self._poked = now
            signal.pthread_kill(threading.main_thread().ident or 0, POKE)
        deadline = max(self._first, part.began) + part.limit
        if self._second:
            began = part.began if part.is_end else 0.0
            deadline = min(deadline, max(self._second, began) + part.second)
        if self.owns_process and (now > deadline or (self.count >= 3 and not part.supervises)):
            end_by_force(request, part.exit_code)


BEFORE_RUN_SECONDS = 0.2
"""Grace of code before a run has begun, when nothing can be lost."""

CLOSED_OUTPUT = Request("a closed standard output", signal.SIGTERM, 128 + signal.SIGPIPE)
BY_ANOTHER_WORKER = Request("another worker of the cluster", signal.SIGTERM, 128 + signal.SIGTERM)

_listener = Listener()


@contextmanager
def listening(owns_process: bool = False) -> Iterator[None]:
    """Count SIGINT, SIGTERM and SIGHUP (unless `nohup` ignores it); no-op within itself and in other threads.

    Args:
        owns_process: whether the process is the framework's own: it may be ended by force, and listens until its end.
    """
    global _listener  # a new one each time: the previous one's thread may still note a signal
    if _listener.pipe is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _listener = listener = Listener()
    listener.start(owns_process)
    try:
        yield
    finally:
        if not owns_process:
            listener.stop()
            _listener = Listener()


def owns_process() -> bool:
    """Return whether the process is the framework's own, and not a notebook's."""
    return _listener.owns_process


def requested() -> Request | None:
    """Return the first request to end the run, if any."""
    return _listener.request


def times_requested() -> int:
    """Return the number of signals received."""
    return _listener.count


last_beat = 0.0
"""Time of the main thread's last safe place, by the monotonic clock."""


def beat() -> None:
    """Show that this process does not hang, where `check` may not raise; no-op in other threads."""
    global last_beat  # one per process
    if threading.current_thread() is threading.main_thread():
        last_beat = time.monotonic()


def check() -> None:
    """Raise Interrupted if the run should end: a safe place.

    No-op in other threads. Raises nothing while training saves a checkpoint, and while the run is being ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    beat()
    if _listener.pipe is None:
        return
    signal.signal(signal.SIGTERM, _listener.handle)  # which TensorFlow replaces when it joins a cluster
    if _listener.request is not None and _listener.part.checks:
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
    """Wait until the time is over; raises as `until` does."""
    until(lambda: None, seconds)
    check()


def request(reason: Request) -> None:
    """End the run at the next safe place, for another reason than a signal."""
    if _listener.pipe is not None and not (reason is CLOSED_OUTPUT and _listener.is_detached):
        _listener.note(reason)


def time_out(deadline: float, limit: float) -> None:
    """End the run when the monotonic clock reaches `deadline`, by the user's `limit` in seconds."""
    _listener.timer = deadline, Request(f"job_timeout_seconds={limit:g}", signal.SIGTERM, TIMED_OUT)


def interruptible(grace: float = MODES["stage"].grace) -> AbstractContextManager[None]:
    """Let a signal interrupt the block's Python code where it reaches no safe place within `grace` seconds."""
    return _in("stage", grace=grace)


def uninterrupted() -> AbstractContextManager[None]:
    """Let signals act on the block at `check` alone, for the framework's own work."""
    return _in("free")


def supervising() -> AbstractContextManager[None]:
    """Leave it to the block to forward signals and to wait until the processes that it has started have ended."""
    return _in("supervising")


def ending(exit_code: int | None = None) -> AbstractContextManager[None]:
    """Protect the end of a run, its summary and its status, from signals.

    A process that is then ended by force has `exit_code`; for None the signal's.
    """
    return _in("ending", exit_code=exit_code)


def ended(exit_code: int) -> None:
    """Set the exit code of a process for its last lines."""
    _listener.parts.append(_begun("ending", exit_code=exit_code))


def on_forced_exit(mark: Callable[[Request], object]) -> None:
    """Call `mark`, which marks the run, in another thread before the process is ended by force before `ending`."""
    _listener.on_forced_exit = mark


def end_by_force(request: Request, exit_code: int | None = None) -> NoReturn:
    """End the process now, with its run marked. exit_code: None: the request's."""
    if _listener.on_forced_exit is not None and not _listener.part.is_end:
        thread = threading.Thread(target=_listener.on_forced_exit, args=(request,), daemon=True)
        thread.start()
        thread.join(FORCED_EXIT_SECONDS)
    os._exit(request.exit_code if exit_code is None else exit_code)


class Stop(reporter.Stop):
    """See `stages.reporter.Stop`."""

    @property
    def requested(self) -> bool:
        return _listener.request is not None

    def now(self) -> NoReturn:
        raise Interrupted(_listener.request or BY_ANOTHER_WORKER)

    def nothing_to_keep(self) -> AbstractContextManager[None]:
        return interruptible()


@contextmanager
def stopping() -> Iterator[Stop]:
    """Defer a signal until a checkpoint is saved; a second one interrupts the block."""
    with _in("saving"):
        yield Stop()
    check()


def _begun(name: str, **changes: Any) -> Mode:
    return replace(MODES[name], began=time.monotonic(), **changes)


@contextmanager
def _in(name: str, **changes: Any) -> Iterator[None]:
    part, parts = _begun(name, **changes), _listener.parts
    parts.append(part)
    try:
        yield
    finally:
        parts.remove(part)


def _after_fork() -> None:
    """Drop the parent's thread and pipe, as a child's signals are not the parent's."""
    global _listener
    if _listener.pipe is not None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
        _listener.pipe = None  # its handlers are still installed, and hear nothing more
        _listener = Listener()


os.register_at_fork(after_in_child=_after_fork)
