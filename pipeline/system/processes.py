"""Processes that this one starts, and that end themselves where they hang."""

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

from pipeline.exit_codes import HUNG
from pipeline.system import signals
from pipeline.system.signals import STOPS, Request, until

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


_used_before_fork: list[bool] = []
os.register_at_fork(after_in_child=lambda: _used_before_fork.append(has_used_tensorflow()))


def was_forked_with_tensorflow() -> bool:
    """Returns whether this process was forked from one that had used TensorFlow, whose threads it does not have."""
    return any(_used_before_fork)


def warm_up() -> None:
    """Starts the server that processes are forked from, which imports TensorFlow while this process does other work.

    It never receives a signal: one to the whole group, or of a closing terminal, would end it, and all its children
    would seem to have ended.
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


IDLE_SHARE = 0.005
"""Fraction of one core below which a process is idle. TensorFlow's servers alone use 0.001."""

TICK_SECONDS = 1.0
LONGEST_TICK_SECONDS = 5.0
"""A tick that takes longer was one of a process that did not run: it was stopped, or its machine slept."""


def watch(limit: float | None) -> None:
    """End this process from now on, with its run marked, where it hangs; it must be the framework's own.

    It hangs if it has reached no safe place for `limit` seconds and has been idle since: a user's own stage that
    computes for an hour without a safe place does not.

    Args:
        limit: None: it may hang.
    """
    if limit is not None:
        threading.Thread(target=_watch, args=(limit,), daemon=True, name="watch").start()


def _watch(limit: float) -> None:
    alive = looked = time.monotonic()
    computed = time.process_time()
    while True:
        time.sleep(TICK_SECONDS)
        now, used = time.monotonic(), time.process_time()
        silent, was_suspended = now - alive, now - looked > LONGEST_TICK_SECONDS
        looked = now
        has_computed = silent > limit and used - computed > IDLE_SHARE * silent
        if signals.last_beat > alive or was_suspended or has_computed:
            alive, computed = now, used
        elif silent > limit:
            reason = f"itself: it gave no sign of life for {silent:.0f} s (hang_seconds)"
            signals.end_by_force(Request(reason, signal.SIGTERM, HUNG))


class LocalProcess:
    """A process that has been started.

    Attributes:
        sentinel: becomes ready, for `multiprocessing.connection.wait`, when the process ends.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Start a process that runs `target` with `arguments`.

        It must call `become_independent` first of all. Signals are blocked until it listens.
        """
        warm_up()
        self._process: BaseProcess = process_context().Process(target=target, args=arguments)  # type: ignore[attr-defined]
        with _masked(*STOPS):
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel
        self._forwarded = 0

    @property
    def exitcode(self) -> int | None:
        """None while it runs; -n where signal n killed it."""
        return self._process.exitcode

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

    def end(self) -> tuple[int, str] | None:
        """Returns the exit code, 128 + n if signal n killed it, and how it ended; None while it runs."""
        if self.exitcode is None:
            return None
        self.join()
        if self.exitcode < 0:
            return 128 - self.exitcode, f"was killed by signal {-self.exitcode}"
        return self.exitcode, "gave no sign of life for hang_seconds" if self.exitcode == HUNG else ""

    def stop(self, request: Request, count: int = 1) -> None:
        """Asks it to save and end, as by `count` signals, of which the third kills; to be repeated until it ends."""
        if count >= 3:
            self.kill()
        elif self._forwarded < count:
            self.signal(request.number)
            self._forwarded += 1
