"""Signals that a process has received, and the thread that receives and enforces them."""

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POKE = signal.SIGURG
"""The signal by which the watching thread interrupts the main one; by default a process ignores it."""

LIMIT_SECONDS = 8.0
"""Seconds for a process to start ending its run, and again to end it, before it is killed."""

SAVE_SECONDS = 300.0
"""Seconds for training to finish its step and write a checkpoint."""

SECOND_SECONDS = 4.0
"""Seconds left of all limits after a second signal; a third ends the process at once."""

SECOND_GRACE_SECONDS = 2.0
"""Seconds of these in which training may still save a checkpoint."""

SUPERVISED_SECONDS = 20.0
"""Seconds, after a second signal, for a process that waits for others to end."""

LAST_WORDS_SECONDS = 3.0
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
        self.number = request.number
        self.exit_code = request.exit_code


def by_signal(number: int) -> Request:
    return Request(signal.Signals(number).name, number, 128 + number)


@dataclass(eq=False)
class Mode:
    """A part of the program, by what a signal may do in it.

    grace: seconds until its Python code may be interrupted; None: only by a second signal (`second`), or not at all.
    limit: seconds until the process is ended by force; second_limit: the same after a second signal.
    keeps: whether a checkpoint is saved before the end. ends: whether the run is being ended already.
    supervises: whether even a third signal is left to it, as it has other processes to end.
    """

    limit: float = LIMIT_SECONDS
    second_limit: float = SECOND_SECONDS
    grace: float | None = None
    second: bool = False
    keeps: bool = False
    ends: bool = False
    supervises: bool = False
    exit_code: int | None = None
    began: float = field(default_factory=time.monotonic)


class Listener:
    """The signals that this process has received, and the thread that enforces them."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.since = self.second_at = 0.0
        self.modes: list[Mode] = []
        self.is_detached = False  # SIGHUP was ignored at the start, as by nohup
        self.owns_process = False
        self.last_words: Callable[[Request], None] | None = None
        self.timer: tuple[float, Request] | None = None
        self.changed = threading.Event()
        self._counts = {"handler": 0, "thread": 0}
        self._noted_at: dict[tuple[str, int], float] = {}
        self._poked_at = 0.0
        self._before: dict[int, object] = {}
        self._installed: dict[int, int] = {}
        self.pipe: tuple[int, int] | None = None

    @property
    def is_on(self) -> bool:
        return self.pipe is not None

    @property
    def count(self) -> int:
        """Signals received. Each is noted by the handler, and by the thread if the main thread lets it run."""
        return max(self._counts.values())

    @property
    def mode(self) -> Mode:
        return self.modes[-1] if self.modes else Mode()

    def start(self, owns_process: bool) -> None:
        self.owns_process = owns_process
        self.modes.append(Mode())
        self.is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for number in (*STOPS, POKE):
            if number == signal.SIGHUP and self.is_detached:
                continue
            handler = self._poked if number == POKE else self._handle
            self._before[number] = signal.signal(number, handler)
            self._installed[number] = _native_handler(number)
        self.pipe = os.pipe()
        for end in self.pipe:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=self.pipe[:1], daemon=True, name="signals").start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def stop(self) -> None:
        """Undoes `start`."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self.pipe is not None:
            writable = self.pipe[1]
            self.pipe = None
            os.close(writable)  # the thread closes the other end

    def note(self, request: Request, source: str) -> None:
        now = time.monotonic()
        last = self._noted_at.get((source, request.number), -BOUNCE_SECONDS)
        self._noted_at[source, request.number] = now
        if now - last < BOUNCE_SECONDS:
            return
        self._counts[source] += 1
        if self.request is None:
            self.request = request
            self.since = now
        elif self.count >= 2 and not self.second_at:
            self.second_at = now
        if source == "thread":  # the main thread may be waiting for it
            self.changed.set()

    def may_raise(self) -> bool:
        mode = self.mode
        if self.request is None or mode.ends:
            return False
        if mode.grace is not None and time.monotonic() - self.since >= mode.grace:
            return True
        if not self.second_at:
            return False
        late = time.monotonic() - self.second_at >= SECOND_GRACE_SECONDS  # a checkpoint being written is soon complete
        return mode.grace is not None or (mode.second and late)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.note(by_signal(number), "handler")

    def _poked(self, number: int, frame: FrameType | None) -> None:
        if self.may_raise():
            assert self.request is not None
            raise Interrupted(self.request)

    def _watch(self, readable: int) -> None:
        while self.pipe is not None:
            wait = TICK_SECONDS if self.request is not None else IDLE_SECONDS
            ready, _, _ = select.select([readable], [], [], wait)
            if ready:
                numbers = os.read(readable, 512)
                if not numbers:
                    break
                for number in numbers:
                    if number in STOPS:
                        self.note(by_signal(number), "thread")
            self._keep_handlers()
            if self.timer is not None and time.monotonic() > self.timer[0]:
                request = self.timer[1]
                self.timer = None
                self.note(request, "thread")
            if self.request is not None:
                self._enforce(self.request)
        os.close(readable)

    def _keep_handlers(self) -> None:
        """Restores the handler of SIGTERM, which TensorFlow replaces when it joins a cluster."""
        for number, installed in self._installed.items():
            now = _native_handler(number)
            if now != installed and now not in (signal.SIG_DFL, signal.SIG_IGN):
                ctypes.pythonapi.PyOS_setsig(number, ctypes.c_void_p(installed))

    def _enforce(self, request: Request) -> None:
        now = time.monotonic()
        mode = self.mode
        if self.may_raise() and now - self._poked_at >= POKE_SECONDS:
            self._poked_at = now
            signal.pthread_kill(threading.main_thread().ident or 0, POKE)
        deadline = max(self.since, mode.began) + mode.limit
        if self.second_at:
            since_second = max(self.second_at, mode.began if mode.ends else 0.0)
            deadline = min(deadline, since_second + mode.second_limit)
        if self.owns_process and (now > deadline or (self.count >= 3 and not mode.supervises)):
            self._end_by_force(request, mode)

    def _end_by_force(self, request: Request, mode: Mode) -> None:
        if self.last_words is not None and not mode.ends:
            thread = threading.Thread(target=self.last_words, args=(request,), daemon=True)
            thread.start()
            thread.join(LAST_WORDS_SECONDS)
        os._exit(request.exit_code if mode.exit_code is None else mode.exit_code)


def _native_handler(number: int) -> int:
    """Returns the address of the process's handler, by whatever code it was installed."""
    return int(_getsig(number) or 0)


_getsig = ctypes.pythonapi.PyOS_getsig
_getsig.restype = ctypes.c_void_p
_getsig.argtypes = (ctypes.c_int,)
ctypes.pythonapi.PyOS_setsig.restype = ctypes.c_void_p
ctypes.pythonapi.PyOS_setsig.argtypes = (ctypes.c_int, ctypes.c_void_p)
