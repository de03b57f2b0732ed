"""Signals that a process has received, what they may do where, and the thread that receives and enforces them."""

import ctypes
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POKE = signal.SIGURG
"""The signal by which the thread interrupts the main one; by default a process ignores it."""


@dataclass(frozen=True)
class Mode:
    """Limits of what a signal may do in a part of the program, in seconds.

    limit: until the process is ended by force, from the signal or the mode's beginning; second: the same from a second
        signal. A third ends it at once, unless the mode `supervises` other processes, which it has to end.
    grace: until Python code is interrupted; second_grace: the same from a second signal.
    checks: whether `check` raises.
    """

    limit: float = 8.0
    second: float = 4.0
    grace: float = math.inf
    second_grace: float = math.inf
    checks: bool = True
    supervises: bool = False


MODES = {
    "free": Mode(),  # the framework's own work
    "stage": Mode(grace=2.0, second_grace=0.0),
    "saving": Mode(limit=300.0, second_grace=2.0, checks=False),  # training writes a checkpoint, which is soon complete
    "supervising": Mode(limit=330.0, second=20.0, checks=False, supervises=True),
    "ending": Mode(checks=False),  # the run's summary and status
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
        self.number = request.number
        self.exit_code = request.exit_code


def signal_request(number: int) -> Request:
    """Return the request that a signal makes."""
    return Request(signal.Signals(number).name, number, 128 + number)


@dataclass(eq=False)
class Part:
    """A part of the program that runs. exit_code: of the process if it is ended by force there; None: the signal's."""

    name: str
    mode: Mode
    exit_code: int | None = None
    began: float = field(default_factory=time.monotonic)


class Listener:
    """The signals that this process has received, and the thread that enforces them."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.count = 0
        self.parts = [Part("free", MODES["free"])]
        self.pipe: tuple[int, int] | None = None
        self.is_detached = False  # SIGHUP was ignored at the start, as by nohup
        self.owns_process = False
        self.on_forced_exit: Callable[[Request], None] | None = None
        self.timer: tuple[float, Request] | None = None
        self._first = self._second = 0.0
        self._noted: dict[int, float] = {}
        self._poked = 0.0
        self._lock = threading.RLock()
        self._before: dict[int, object] = {}
        self._installed: dict[int, int] = {}

    @property
    def part(self) -> Part:
        return self.parts[-1]

    def start(self, owns_process: bool) -> None:
        self.owns_process = owns_process
        self.is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.pipe = os.pipe()
        for end in self.pipe:
            os.set_blocking(end, False)
        for number in (*STOPS, POKE):
            if number != signal.SIGHUP or not self.is_detached:
                self._before[number] = signal.signal(number, self._interrupt if number == POKE else self._handle)
                self._installed[number] = _native_handler(number)
        signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=self.pipe[:1], daemon=True, name="signals").start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def stop(self) -> None:
        """Undo `start`."""
        signal.set_wakeup_fd(-1)
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.pipe is not None:
            self._receive(self.pipe[0])

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.request is not None and self._may_interrupt():
            raise Interrupted(self.request)

    def _may_interrupt(self) -> bool:
        mode, now = self.part.mode, time.monotonic()
        return now - self._first >= mode.grace or bool(self._second and now - self._second >= mode.second_grace)

    def _watch(self, readable: int) -> None:
        while self.pipe is not None:
            ready, _, _ = select.select([readable], [], [], IDLE_SECONDS if self.request is None else TICK_SECONDS)
            if ready and not self._receive(readable):
                break
            self._keep_handlers()
            if self.timer is not None and time.monotonic() > self.timer[0]:
                _, request = self.timer
                self.timer = None
                self.note(request)
            if self.request is not None:
                self._enforce(self.request)
        os.close(readable)

    def _keep_handlers(self) -> None:
        """Restore the handler of SIGTERM, which TensorFlow replaces when it joins a cluster."""
        for number, installed in self._installed.items():
            now = _native_handler(number)
            if now != installed and now not in (signal.SIG_DFL, signal.SIG_IGN):
                ctypes.pythonapi.PyOS_setsig(number, ctypes.c_void_p(installed))

    def _enforce(self, request: Request) -> None:
        now, part = time.monotonic(), self.part
        if self._may_interrupt() and now - self._poked >= POKE_SECONDS:
            self._poked = now
            signal.pthread_kill(threading.main_thread().ident or 0, POKE)
        deadline = max(self._first, part.began) + part.mode.limit
        if self._second:
            began = part.began if part.name == "ending" else 0.0
            deadline = min(deadline, max(self._second, began) + part.mode.second)
        if self.owns_process and (now > deadline or (self.count >= 3 and not part.mode.supervises)):
            if self.on_forced_exit is not None and part.name != "ending":
                thread = threading.Thread(target=self.on_forced_exit, args=(request,), daemon=True)
                thread.start()
                thread.join(FORCED_EXIT_SECONDS)
            os._exit(request.exit_code if part.exit_code is None else part.exit_code)


def _native_handler(number: int) -> int:
    """Return the address of the process's handler, by whatever code it was installed."""
    return int(_getsig(number) or 0)


_getsig = ctypes.pythonapi.PyOS_getsig
_getsig.restype = ctypes.c_void_p
_getsig.argtypes = (ctypes.c_int,)
ctypes.pythonapi.PyOS_setsig.restype = ctypes.c_void_p
ctypes.pythonapi.PyOS_setsig.argtypes = (ctypes.c_int, ctypes.c_void_p)
