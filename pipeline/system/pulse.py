"""Hangs: a thread ends the process whose main thread reaches no safe place for long and does not compute."""

import signal
import threading
import time

from pipeline.exit_codes import HUNG
from pipeline.system import signals
from pipeline.system.signals import Request

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
