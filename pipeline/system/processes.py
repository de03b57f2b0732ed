"""Processes that this process starts. They end if they hang."""

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from pipeline.exit_codes import HUNG
from pipeline.internals.tensorflow import has_used_tensorflow
from pipeline.system import signals
from pipeline.system.signals import STOPS, Request, until

GRACE_SECONDS = 10.0
"""Grace period, in seconds, before an orphaned process is killed."""


def process_context() -> BaseContext:
    """Return the context to start processes with.

    A process that has imported TensorFlow but not used it, such as a job of a sweep, forks. In any other process, a
    server that has imported TensorFlow forks the children. A fork of a process that has used TensorFlow, such as a
    notebook, would inherit its devices and hang.
    """
    if "tensorflow" in sys.modules and not has_used_tensorflow():
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipeline.execute.preload"])
    return context


_used_before_fork: list[bool] = []
os.register_at_fork(after_in_child=lambda: _used_before_fork.append(has_used_tensorflow()))


def was_forked_with_tensorflow() -> bool:
    """Return whether this process was forked from one that had used TensorFlow. Its threads are missing here."""
    return any(_used_before_fork)


def warm_up() -> None:
    """Start the server that forks processes. It imports TensorFlow while this process does other work.

    The server blocks signals. A signal to the whole process group, or from a terminal that closes, would end it, and
    all its children would seem to have ended.
    """
    if process_context().get_start_method() == "forkserver":
        with _masked(signal.SIGHUP):
            resource_tracker.ensure_running()  # unmasks SIGINT and SIGTERM, which it ignores
        with _masked(*STOPS):
            forkserver.ensure_running()


@contextmanager
def _masked(*numbers: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def become_independent(stop: int | None = signal.SIGTERM) -> None:
    """Give this process its own process group, and end it when its parent has ended.

    Args:
        stop: The signal that asks this process to end when the parent has ended, if any. SIGKILL follows.
    """
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, args=(stop,), daemon=True).start()


def _end_with_parent(stop: int | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if parent.pid == os.getppid():  # forked: later children of the parent hold the pipe that shows its end
        until(lambda: parent.pid != os.getppid(), poll=0.5)
    else:
        parent.join()
    if stop is not None:
        os.kill(os.getpid(), stop)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


IDLE_SHARE = 0.02
"""Fraction of one core below which a process is idle.

A member of a cluster that only waits was measured at 0.002 to 0.011, depending on the machine, because its threads wake
up now and then.
"""

LOCKED_SHARE = 0.05
"""The same for a process whose own watchdog thread is blocked. Each thread that waits for Python's lock uses 0.001."""

LOCKED_SECONDS = 15.0
"""Additional seconds for such a process: TensorFlow holds Python's lock until a cluster's members are connected."""

TICK_SECONDS = 1.0
LONGEST_TICK_SECONDS = 5.0
"""A longer interval between two checks means that this process was suspended, and others may have been, too."""


class Watchdog:
    """Detects whether a process hangs: if it is idle and has had no heartbeat for longer than `limit`.

    A custom stage that computes for an hour without a safe place does not hang.
    """

    def __init__(self, limit: float, computed: Callable[[], float], idle: float) -> None:
        """Begin to watch.

        Args:
            limit: The seconds without a heartbeat.
            computed: Returns the CPU time of the process.
            idle: See IDLE_SHARE.
        """
        self._limit = limit
        self._computed = computed
        self._idle = idle
        self._looked = self._since = time.monotonic()
        self._sign, self._used = math.nan, 0.0

    def hangs(self, sign: float) -> bool:
        """Return whether the process hangs. Call this about every second.

        Args:
            sign: A number that changes with every heartbeat.
        """
        now = time.monotonic()
        was_suspended, self._looked = now - self._looked > LONGEST_TICK_SECONDS, now
        if sign == self._sign and not was_suspended:
            silent = now - self._since
            if silent <= self._limit:
                return False
            if self._computed() - self._used <= self._idle * silent:
                return True
        self._sign, self._since, self._used = sign, now, self._computed()
        return False


_ticks: Any = None
"""The seconds for which this process has watched itself, in memory that its parent can read."""


def watch(limit: float | None) -> None:
    """End this process, with its run marked, if it hangs from now on. Not for the process of a notebook.

    Every safe place counts as a heartbeat.

    Args:
        limit: The seconds after which it hangs; None: no limit.
    """
    if limit is not None:
        threading.Thread(target=_watch, args=(limit,), daemon=True, name="watch").start()


def _watch(limit: float) -> None:
    watchdog = Watchdog(limit, time.process_time, IDLE_SHARE)
    while not watchdog.hangs(signals.last_beat):
        time.sleep(TICK_SECONDS)
        if _ticks is not None:
            _ticks.value += 1
    reason = f"itself: it made no progress for {limit:g} s (hang_seconds)"
    signals.end_by_force(Request(reason, signal.SIGTERM, HUNG))


def _begin(ticks: Any, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    global _ticks  # one per process
    _ticks = ticks
    target(*arguments)


class LocalProcess:
    """A process that has been started.

    It ends itself if it hangs. It is killed if it is suspended, or if native code holds Python's lock.

    Attributes:
        sentinel: An object for `multiprocessing.connection.wait`, which is ready when the process has ended.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...], limit: float | None = None) -> None:
        """Start a process that runs `target` with `arguments`.

        The target must call `become_independent` first, and then `watch`. Signals are blocked until it listens.

        Args:
            target: The function, which a process that is forked from a server can import.
            arguments: Its arguments, which can be pickled.
            limit: The seconds without a heartbeat after which it hangs; None for no limit.
        """
        warm_up()
        context = process_context()
        self._ticks: Any = context.RawValue("d")
        self._process: BaseProcess = context.Process(target=_begin, args=(self._ticks, target, arguments))  # type: ignore[attr-defined]
        with _masked(*STOPS):
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel
        computed = partial(_computed, psutil.Process(self.pid))
        self._watchdog = Watchdog(math.inf if limit is None else limit + LOCKED_SECONDS, computed, LOCKED_SHARE)
        self._is_hung = False
        self._forwarded = 0

    @property
    def exitcode(self) -> int | None:
        """The exit code: None while it runs, -n if signal n killed it."""
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by force. `join` waits for that."""
        self.signal(signal.SIGKILL)

    def join(self) -> None:
        """Wait for its end."""
        self._process.join()

    def end(self) -> tuple[int, str] | None:
        """Return the exit code, 128 + n if signal n killed it, and how it ended; None while it runs.

        Call this periodically, because it kills a process that hangs.
        """
        if self.exitcode is None:
            if self._watchdog.hangs(self._ticks.value):
                self._is_hung = True
                self.kill()
            return None
        self.join()
        if self._is_hung or self.exitcode == HUNG:
            return HUNG, "made no progress for hang_seconds"
        if self.exitcode < 0:
            return 128 - self.exitcode, f"was killed by signal {-self.exitcode}"
        return self.exitcode, ""

    def stop(self, request: Request, count: int = 1) -> None:
        """Ask it to save and end, as `count` signals do; the third kills it. Call this repeatedly until it ends."""
        if count >= 3:
            self.kill()
        elif self._forwarded < count:
            self.signal(request.number)
            self._forwarded += 1


def _computed(process: psutil.Process) -> float:
    with suppress(psutil.Error):  # it has ended
        used = process.cpu_times()
        return float(used.user + used.system)
    return 0.0
