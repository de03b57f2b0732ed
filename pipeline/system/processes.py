"""Processes that this one starts and watches."""

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signals import STOPS, Request, until

STOP_SECONDS = 7.0
"""Seconds without a heartbeat after which a process that was asked to end is killed."""

GRACE_SECONDS = 10.0
"""Grace period, in seconds, before an orphaned process is killed."""


def process_context() -> BaseContext:
    """Returns the context to start processes with.

    A process that has imported TensorFlow and not used it, as a job of a sweep, forks: only its children will use it.
    In any other, a server forks them that imports TensorFlow once: of one that has used it, as that of a notebook,
    forks would have its devices, and hang.
    """
    if "tensorflow" in sys.modules and not has_used_tensorflow():
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipeline.run.preload"])
    return context


def has_used_tensorflow() -> bool:
    """Returns whether TensorFlow has started in this process, which fixes its devices and collectives.

    TensorFlow 2.21 says so nowhere in public: its context does.
    """
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module.context_safe() if module is not None else None
    return context is not None and bool(context._initialized)


def warm_up() -> None:
    """Starts the server that processes are forked from, which imports TensorFlow while this process does other work."""
    if process_context().get_start_method() == "forkserver":
        _track_resources()
        with _masked(*STOPS):
            forkserver.ensure_running()


def start(context: BaseContext, target: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseProcess:
    """Starts a process, which must call `become_independent` first of all.

    Signals are blocked until it listens. The server that it is forked from never receives one: a signal to the whole
    group, or of a closing terminal, would end it, and all its children would seem to have ended.
    """
    process = context.Process(target=target, args=arguments)  # type: ignore[attr-defined]
    if context.get_start_method() == "forkserver":
        _track_resources()
    with _masked(*STOPS):
        process.start()
    assert isinstance(process, BaseProcess)
    return process


def _track_resources() -> None:
    with _masked(signal.SIGHUP):
        resource_tracker.ensure_running()  # unmasks SIGINT and SIGTERM, which it ignores


@contextmanager
def _masked(*numbers: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def become_independent(stop: int | None = signal.SIGTERM) -> None:
    """Takes this process out of the terminal's group; it ends when its parent asks, or has ended itself.

    Args:
        stop: the signal that asks this process to end when the parent has ended, if any; SIGKILL follows.
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


class LocalProcess:
    """A process that has been started.

    It is killed where it gives no sign of life, also when it was asked to end.

    Attributes:
        sentinel: becomes ready, for `multiprocessing.connection.wait`, when the process ends.
        why: the reason for which it was killed; empty where it was not.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        limit: float | None = None,
        context: BaseContext | None = None,
    ) -> None:
        """Start a process that runs `target` with the Pulse to adopt, and then `arguments`.

        Args:
            limit: seconds without a heartbeat after which it hangs; None: it may.
        """
        context = context or process_context()
        self._pulse = Pulse(context)
        self._process = start(context, target, (self._pulse, *arguments))
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel
        self._use = psutil.Process(self.pid)
        self.why = ""
        self._watch = Watch(self, math.inf if limit is None else limit)
        self._forwarded = 0

    @property
    def exitcode(self) -> int | None:
        """None while it runs; -n where signal n killed it."""
        return self._process.exitcode

    @property
    def last_beat(self) -> float:
        """Time of its last heartbeat, in seconds of `time.monotonic()`."""
        return self._pulse.last_beat

    def cpu_seconds(self) -> float:
        """Returns the seconds of computing that it has used."""
        try:
            used = self._use.cpu_times()
        except psutil.Error:
            return 0.0
        return float(used.user + used.system)

    def signal(self, number: int) -> None:
        """Sends it a signal; no-op where it has ended."""
        if self._process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it by force; `join` waits for that."""
        self.signal(signal.SIGKILL)

    def join(self) -> None:
        """Waits for its end."""
        self._process.join()

    def poll(self) -> int | None:
        """Returns the exit code, 128 + n if signal n killed it, or None while it runs; to be called periodically."""
        if self.exitcode is not None:
            self.join()
            return 128 - self.exitcode if self.exitcode < 0 else self.exitcode
        if self._watch.hangs():
            self.why = f"gave no sign of life for {self._watch.silence():.0f} s, and was killed"
            self.kill()
        self._watch.note()
        return None

    def stop(self, request: Request, count: int = 1) -> None:
        """Asks it to save and end, as by `count` signals, of which the third kills; to be repeated until it ends."""
        if not self._forwarded:
            self._watch = Watch(self, STOP_SECONDS)
        if count >= 3:
            self.kill()
        elif self._forwarded < count:
            self.signal(request.number)
            self._forwarded += 1
