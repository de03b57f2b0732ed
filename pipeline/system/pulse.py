"""Signs of life: a process's main thread shows at safe places that it gets on, and the one that started it looks."""

import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import psutil

IDLE_SHARE = 0.005
"""A process that uses less of one core is idle. TensorFlow's servers alone use 0.001."""


class Pulse:
    """The time of the last sign of life of one process, in memory that it shares with the one that started it."""

    def __init__(self, context: BaseContext) -> None:
        self._last: Any = context.RawValue("d", time.monotonic())

    def beat(self) -> None:
        self._last.value = time.monotonic()

    @property
    def last(self) -> float:
        """When the last one was, by the monotonic clock, which all processes of a machine share."""
        return float(self._last.value)


_own: Pulse | None = None


def adopt(pulse: Pulse | None) -> None:
    """Makes `pulse` this process's own."""
    global _own  # one a process
    _own = pulse
    beat()


def beat() -> None:
    """Shows that this process gets on; no-op where nobody looks."""
    if _own is not None:
        _own.beat()


def is_stopped(pid: int | None) -> bool:
    """Returns whether the process has been stopped, as by SIGSTOP."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


class Watch:
    """Judges whether the process `pid` hangs.

    It hangs where it has reached no safe place for `limit` seconds and has computed next to nothing since: a stage of
    the user's own that computes for an hour without a safe place does not.
    """

    def __init__(self, pulse: Pulse, pid: int, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pulse, self._limit, self._clock = pulse, limit, clock
        self._process = psutil.Process(pid)
        self._seen = clock()
        self._computed = self._cpu_seconds()

    @property
    def is_stopped(self) -> bool:
        """Whether it has been stopped, as by SIGSTOP."""
        return is_stopped(self._process.pid)

    def silence(self) -> float:
        """Returns for how many seconds it has given no sign of life."""
        return self._clock() - max(self._pulse.last, self._seen)

    def hangs(self) -> bool:
        """Returns whether it has given none for longer than the limit."""
        silent = self.silence()
        if silent <= self._limit:
            return False
        computed = self._cpu_seconds()
        if computed - self._computed > IDLE_SHARE * silent:
            self.begin_again()
            return False
        return True

    def begin_again(self) -> None:
        """Lets it have the whole limit once more."""
        self._seen, self._computed = self._clock(), self._cpu_seconds()

    def note(self) -> None:
        """Notes what it has computed up to its last sign of life; to be called now and then."""
        if self._pulse.last > self._seen:
            self.begin_again()

    def _cpu_seconds(self) -> float:
        try:
            used = self._process.cpu_times()
        except psutil.Error:
            return 0.0
        return float(used.user + used.system)
