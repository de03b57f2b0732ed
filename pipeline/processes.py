"""Processes for jobs of a sweep and members of a cluster, forked from one that has only imported TensorFlow."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.context import BaseContext

GRACE_SECONDS = 10.0
"""What a process gets to end by itself once the one that started it has gone."""


def process_context() -> BaseContext:
    """Returns the way to make processes.

    A process that has imported TensorFlow itself, as a job of a sweep has, forks: it has not used it either, as only
    the processes that it makes will. Any other has them forked from a server that imports it once.
    """
    methods = multiprocessing.get_all_start_methods()
    if "tensorflow" in sys.modules and "fork" in methods:
        return multiprocessing.get_context("fork")
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipeline.preload"])
    return context


def become_independent(stop: int | None = signal.SIGTERM) -> None:
    """Makes this process one that its parent alone ends: out of the terminal's group, and gone when the parent has.

    Args:
        stop: the signal that asks this process to end when the parent has gone, if any; SIGKILL follows.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(stop,), daemon=True).start()


def _end_with_parent(stop: int | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if parent.pid == os.getppid():  # forked: later children of the parent hold the pipe that tells of its end
        while parent.pid == os.getppid():
            time.sleep(0.5)
    else:
        parent.join()
    if stop is not None:
        os.kill(os.getpid(), stop)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
