"""Signals: a handler counts them, safe places raise Interrupted, and a deadline ends the process by force.

Every safe place and every wait calls `check`, which raises Interrupted in the main thread after a signal. If the main
thread does not reach a safe place before the deadline, the run is marked and the process is ended by force. A separate
thread checks the deadline, because the main thread may run native code.

A block of code may `allow` itself more time, and defer signals until it is complete. A second signal shortens the
deadline, and a third ends the process at once, except while it has other processes to end.

The process of a notebook is never ended by force. There, a second Ctrl-C raises Interrupted wherever the main thread
is, as Python raises KeyboardInterrupt.
"""

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn, TypeVar

from pipeline.exit_codes import TIMED_OUT
from stages import reporter

Ready = TypeVar("Ready")

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

BEFORE_RUN_SECONDS = 0.2
"""Time from a signal to the forced end while nothing can be lost: before a run has begun."""

RUN_SECONDS = 8.0
"""The same in a run, unless a part of it allows more."""

SAVE_SECONDS = 300.0
"""The same while training saves a checkpoint."""

SUPERVISE_SECONDS = 330.0
"""The same while other processes save and end."""

SECOND_SECONDS = 4.0
"""Time from a second signal to the forced end."""

OTHERS_SECONDS = 20.0
"""The same, and from a third signal, while other processes have to be ended first."""

ALL = 10**9
"""The number of signals that a part of the program defers if it cannot be interrupted at all."""

FORCED_EXIT_SECONDS = 3.0
"""Time to mark the run before the process is ended by force."""

SHOW_CURSOR = b"\x1b[?25h\n"
"""Sequence by which a terminal shows its cursor again, which a progress bar hides."""

TICK_SECONDS = 0.1
IDLE_SECONDS = 1.0
BOUNCE_SECONDS = 0.2
"""Equal signals within this time count as one, because `timeout` signals the process and then its whole group."""


@dataclass(frozen=True)
class Request:
    """A request to end the run."""

    reason: str
    number: int
    """The signal to pass on to other processes."""
    exit_code: int
    """The exit code of this process."""


class Interrupted(BaseException):
    """The user or the system has requested the end of the run. `exit_code` is 129, 130, 143, … as in a shell."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.reason)
        self.exit_code = request.exit_code


def signal_request(number: int) -> Request:
    """Return the request for a signal."""
    name = signal.Signals(number).name
    return Request(f"Ctrl-C ({name})" if number == signal.SIGINT else name, number, 128 + number)


class Listener:
    """The signals that this process has received, and the deadline by which it must have ended."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.count = 0
        self.deadline = math.inf
        # These three are set by `allow`.
        self.seconds = BEFORE_RUN_SECONDS  # from a signal to the forced end
        self.deferred = 0  # number of signals that `check` ignores
        self.ends_others = False  # whether other processes have to be ended first
        self.exit_code: int | None = None  # set once the outcome is recorded; until then, the request's is used
        self.pipe: tuple[int, int] | None = None
        self.is_detached = False  # whether SIGHUP was ignored at the start, as nohup does
        self.owns_process = False
        self.on_forced_exit: Callable[[Request], object] | None = None
        self.timer: tuple[float, Request] | None = None
        self._noted: dict[int, float] = {}
        self.lock = threading.RLock()
        self._before: dict[int, object] = {}
        self._woken = -1  # the file descriptor by which a notebook's event loop is notified of signals

    def start(self, owns_process: bool) -> None:
        self.owns_process = owns_process
        self.is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.pipe = os.pipe()
        for end in self.pipe:
            os.set_blocking(end, False)
        for number in STOPS:
            if number != signal.SIGHUP or not self.is_detached:
                self._before[number] = signal.signal(number, self.handle)
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
        """Count a request, and set the deadline."""
        with self.lock:
            now = time.monotonic()
            last = self._noted.get(request.number, -BOUNCE_SECONDS)
            self._noted[request.number] = now
            if now - last < BOUNCE_SECONDS:
                return
            self.count += 1
            self.request = self.request or request
            self.deadline = min(self.deadline, now + self.time_left())

    def time_left(self) -> float:
        """Return the seconds from now to the forced end, according to the last `allow` and the number of signals."""
        if self.count < 2:
            return self.seconds
        if self.ends_others:
            return min(self.seconds, OTHERS_SECONDS)
        return min(self.seconds, SECOND_SECONDS) if self.count == 2 else 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Count the signals that have arrived."""
        if self.pipe is not None:
            self._receive(self.pipe[0])
        if self.request is not None and not self.owns_process and self.count >= 2 and self.count > self.deferred:
            raise Interrupted(self.request)

    def _receive(self, readable: int) -> bool:
        """Count the signals in the pipe, to which Python writes them; return False if no more will arrive."""
        with self.lock, suppress(BlockingIOError):
            numbers = os.read(readable, 512)
            for number in numbers:
                if number in STOPS:
                    self.note(signal_request(number))
            return bool(numbers)
        return True

    def _watch(self, readable: int) -> None:
        """Count signals while the main thread runs native code, and end the process when its deadline has passed."""
        while self.pipe is not None:
            ready, _, _ = select.select([readable], [], [], IDLE_SECONDS if self.request is None else TICK_SECONDS)
            if ready and not self._receive(readable):
                break
            if self.timer is not None and time.monotonic() > self.timer[0]:
                _, request = self.timer
                self.timer = None
                self.note(request)
            if self.owns_process and self.request is not None and time.monotonic() > self.deadline:
                end_by_force(self.request, self.exit_code)
        os.close(readable)


CLOSED_OUTPUT = Request("a closed standard output", signal.SIGTERM, 128 + signal.SIGPIPE)
BY_ANOTHER_WORKER = Request("another worker of the cluster", signal.SIGTERM, 128 + signal.SIGTERM)

_listener = Listener()


@contextmanager
def listening(owns_process: bool = False) -> Iterator[None]:
    """Count SIGINT, SIGTERM and SIGHUP (unless `nohup` ignores it) within the block.

    No-op within another such block and in other threads.

    Args:
        owns_process: Whether the process is the framework's own. It may then be ended by force, and listens to its end.
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
    """Show that this process does not hang. Unlike `check`, it never raises. No-op in other threads."""
    global last_beat  # one per process
    if threading.current_thread() is threading.main_thread():
        last_beat = time.monotonic()


def check() -> None:
    """Raise Interrupted if the run should end: a safe place.

    No-op in other threads. Raises nothing for a signal that a part of the program defers: see `allow`.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    beat()
    if _listener.pipe is None:
        return
    signal.signal(signal.SIGTERM, _listener.handle)  # which TensorFlow replaces when it joins a cluster
    if _listener.request is not None and _listener.count > _listener.deferred:
        raise Interrupted(_listener.request)


def until(ready: Callable[[], Ready], seconds: float = math.inf, poll: float = TICK_SECONDS) -> Ready:
    """Wait until `ready()` is true or the time is over, and return its last result.

    Raises:
        Interrupted: If the run should end.
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
    """Wait for some seconds. Raises Interrupted as `until` does."""
    until(lambda: None, seconds)
    check()


def request(reason: Request) -> None:
    """End the run at the next safe place, as a signal does, for another reason."""
    if _listener.pipe is not None and not (reason is CLOSED_OUTPUT and _listener.is_detached):
        _listener.note(reason)


def time_out(deadline: float, limit: float) -> None:
    """End the run at `deadline`, in seconds of `time.monotonic()`, because of the user's `limit` in seconds."""
    _listener.timer = deadline, Request(f"job_timeout_seconds={limit:g}", signal.SIGTERM, TIMED_OUT)


@contextmanager
def allow(seconds: float, deferred: int = 0, ends_others: bool = False) -> Iterator[None]:
    """Allow the block `seconds` from a signal to the forced end of the process, or from its beginning if later.

    Args:
        seconds: The time.
        deferred: The number of signals for which `check` raises nothing within the block.
        ends_others: Whether other processes have to be ended in the block, so a third signal does not end this one.
    """
    listener = _listener
    before = listener.seconds, listener.deferred, listener.ends_others
    _set(listener, seconds, deferred, ends_others)
    try:
        yield
    finally:
        _set(listener, *before)


def _set(listener: Listener, seconds: float, deferred: int, ends_others: bool) -> None:
    with listener.lock:
        listener.seconds, listener.deferred, listener.ends_others = seconds, deferred, ends_others
        if listener.request is not None:
            listener.deadline = time.monotonic() + listener.time_left()


def ending() -> AbstractContextManager[None]:
    """Protect the end of a run, its summary and its status, from signals."""
    return allow(RUN_SECONDS, deferred=ALL)


def supervising() -> AbstractContextManager[None]:
    """Let the block pass on signals to the processes that it has started, and wait until they have ended."""
    return allow(SUPERVISE_SECONDS, deferred=ALL, ends_others=True)


def ended(exit_code: int) -> None:
    """Note that the outcome is recorded. From now on a signal limits the time, but does not change the exit code."""
    _listener.exit_code, _listener.on_forced_exit = exit_code, None
    _set(_listener, RUN_SECONDS, ALL, _listener.ends_others)


def on_forced_exit(mark: Callable[[Request], object]) -> None:
    """Register `mark`, which is called in another thread if the process is ended by force before `ended` is called."""
    _listener.exit_code, _listener.on_forced_exit = None, mark


def end_by_force(request: Request, exit_code: int | None = None) -> NoReturn:
    """End the process now, with its run marked.

    Args:
        request: Why.
        exit_code: The exit code; None for the exit code of the request.
    """
    if _listener.on_forced_exit is not None:
        thread = threading.Thread(target=_listener.on_forced_exit, args=(request,), daemon=True)
        thread.start()
        thread.join(FORCED_EXIT_SECONDS)
    if os.isatty(1):
        with suppress(OSError):
            os.write(1, SHOW_CURSOR)
    os._exit(request.exit_code if exit_code is None else exit_code)


class Stop(reporter.Stop):
    """See `stages.reporter.Stop`."""

    @property
    def requested(self) -> bool:
        return _listener.request is not None

    def now(self) -> NoReturn:
        raise Interrupted(_listener.request or BY_ANOTHER_WORKER)

    def nothing_to_keep(self) -> AbstractContextManager[None]:
        return allow(RUN_SECONDS)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Defer signals until a checkpoint is saved. In a notebook, the second signal is not deferred: it must end then."""
    with allow(SAVE_SECONDS, deferred=ALL if _listener.owns_process else 1):
        yield Stop()
    check()


def _after_fork() -> None:
    """Drop the parent's pipe in a forked child, so a signal to the child does not reach the parent."""
    global _listener
    if _listener.pipe is not None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
        _listener.pipe = None  # its handlers are still installed, but must not use the parent's pipe
        _listener = Listener()


os.register_at_fork(after_in_child=_after_fork)
