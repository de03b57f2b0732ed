"""Processes for jobs of a sweep and members of a cluster, forked from one that has imported TensorFlow unused."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from pipeline.system import signal_listener as listener

GRACE_SECONDS = 10.0
"""Grace period, in seconds, before an orphaned process is killed."""


def process_context() -> BaseContext:
    """Returns the context to start processes with.

    A process that has imported TensorFlow and not used it, as a job of a sweep, forks: only its children will use it.
    In any other, a server forks them that imports TensorFlow once: of one that has used it, as that of a notebook,
    forks would have its devices, and hang.
    """
    methods = multiprocessing.get_all_start_methods()
    if "tensorflow" in sys.modules and "fork" in methods and not has_used_tensorflow():
        return multiprocessing.get_context("fork")
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
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
        with _masked(signal.SIGHUP):
            resource_tracker.ensure_running()  # unmasks SIGINT and SIGTERM, which it ignores
        with _masked(*listener.STOPS):
            forkserver.ensure_running()


def start(context: BaseContext, target: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseProcess:
    """Starts a process, which must call `become_independent` first of all.

    Signals are blocked until it listens. The server that it is forked from never receives one: a signal to the whole
    group, or of a closing terminal, would end it, and all its children would seem to have ended.
    """
    process = context.Process(target=target, args=arguments)  # type: ignore[attr-defined]
    if context.get_start_method() == "forkserver":
        with _masked(signal.SIGHUP):
            resource_tracker.ensure_running()  # unmasks SIGINT and SIGTERM, which it ignores
    with _masked(*listener.STOPS):
        process.start()
    assert isinstance(process, BaseProcess)
    return process


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
        while parent.pid == os.getppid():
            time.sleep(0.5)
    else:
        parent.join()
    if stop is not None:
        os.kill(os.getpid(), stop)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
