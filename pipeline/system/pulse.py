"""Heartbeats: a process's main thread sends one at each safe place, and its parent, or itself, watches for them."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

import psutil

from pipeline.exit_codes import FAILED
from pipeline.system import signals
from pipeline.system.signals import Request

IDLE_SHARE = 0.005
"""Fraction of one core below which a process is idle. TensorFlow's servers alone use 0.001."""


class Pulse:
    """The time of the last heartbeat of one process, in memory shared with its parent."""

    def __init__(self, context: BaseContext) -> None:
        self._time: Any = context.RawValue("d", time.monotonic())

    def beat(self) -> None:
        self._time.value = time.monotonic()

    @property
    def last_beat(self) -> float:
        """Time of the last heartbeat, by the monotonic clock, which all processes of a machine share."""
        return float(self._time.value)


_pulse: Pulse | None = None


def adopt(pulse: Pulse | None) -> None:
    """Makes `pulse` this process's own."""
    global _pulse  # one per process
    _pulse = pulse
    beat()


def beat() -> None:
    """Sends a heartbeat; no-op in a process that is not watched."""
    if _pulse is not None:
        _pulse.beat()


class Watch:
    """Watches whether the process `pid` hangs, whose heartbeats come by `pulse`.

    It hangs if it has reached no safe place for `limit` seconds and has been idle since: a user's own stage that
    computes for an hour without a safe place does not.
    """

    def __init__(self, pulse: Pulse, pid: int, limit: float) -> None:
        self._pulse = pulse
        self._process = psutil.Process(pid)
        self._limit = limit
        self.restart()

    def silence(self) -> float:
        """Returns the seconds since the last heartbeat."""
        return time.monotonic() - self._seen

    def hangs(self) -> bool:
        """Returns whether the process hangs; to be called periodically."""
        if self._pulse.last_beat > self._seen:
            self.restart()
        silent = self.silence()
        if silent <= self._limit:
            return False
        if self._cpu_seconds() - self._computed > IDLE_SHARE * silent:
            self.restart()
            return False
        return True

    def restart(self) -> None:
        """Restarts the limit."""
        self._seen = time.monotonic()
        self._computed = self._cpu_seconds()

    def _cpu_seconds(self) -> float:
        with suppress(psutil.Error):  # it has ended
            used = self._process.cpu_times()
            return float(used.user + used.system)
        return 0.0


TICK_SECONDS = 1.0
LONGEST_TICK_SECONDS = 5.0
"""A tick that takes longer was one of a process that did not run: it was stopped, or its machine slept."""

REQUEST_SECONDS = 5.0
"""Seconds in which a request may be heeded; the third ends the process by force."""


@contextmanager
def watching_itself(limit: float | None) -> Iterator[None]:
    """Ends this process, with its run marked, where it hangs within the block.

    No-op in a process that another one watches.

    Args:
        limit: seconds without a sign of life; None: it may hang.
    """
    if limit is None or _pulse is not None:
        yield
        return
    own = Pulse(multiprocessing.get_context())
    over = threading.Event()
    adopt(own)
    threading.Thread(target=_watch, args=(own, limit, over), daemon=True, name="self_watch").start()
    try:
        yield
    finally:
        over.set()
        adopt(None)


def _watch(own: Pulse, limit: float, over: threading.Event) -> None:
    watch = Watch(own, os.getpid(), limit)
    began = time.monotonic()
    while not over.wait(TICK_SECONDS):
        took = time.monotonic() - began
        began = time.monotonic()
        if took > LONGEST_TICK_SECONDS:
            watch.restart()
        if watch.hangs():
            reason = f"itself: it gave no sign of life for {watch.silence():.0f} s (hang_seconds)"
            while True:
                signals.request(Request(reason, signal.SIGTERM, FAILED))
                if over.wait(REQUEST_SECONDS):
                    return
