"""A process that watches itself, where no other one does."""

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.exit_codes import FAILED
from pipeline.system import pulse, signals
from pipeline.system.pulse import Pulse, Watch
from pipeline.system.signal_listener import Request

TICK_SECONDS = 1.0
LONGEST_TICK_SECONDS = 5.0
"""A tick that takes longer was one of a process that did not run: it was stopped, or its machine slept."""

REQUESTS = 3
"""Requests by which a process is ended, the last of them by force."""

REQUEST_SECONDS = 5.0
"""Seconds in which a request may be heeded."""


class _Itself:
    """This process, as a Watch sees it."""

    def __init__(self, own: Pulse) -> None:
        self._own = own

    @property
    def last_beat(self) -> float:
        return self._own.last

    def cpu_seconds(self) -> float:
        return time.process_time()

    def is_stopped(self) -> bool:
        return False


@contextmanager
def watching_itself(limit: float | None) -> Iterator[None]:
    """Ends this process, with its run marked, where it hangs within the block.

    No-op in a process that another one watches.

    Args:
        limit: seconds without a sign of life; None: it may hang.
    """
    if limit is None or pulse.is_watched():
        yield
        return
    own = Pulse(multiprocessing.get_context())
    over = threading.Event()
    pulse.adopt(own)
    threading.Thread(target=_watch, args=(own, limit, over), daemon=True, name="self_watch").start()
    try:
        yield
    finally:
        over.set()
        pulse.adopt(None)


def _watch(own: Pulse, limit: float, over: threading.Event) -> None:
    watch = Watch(_Itself(own), limit)
    began = time.monotonic()
    while not over.wait(TICK_SECONDS):
        took = time.monotonic() - began
        began = time.monotonic()
        if took > LONGEST_TICK_SECONDS:
            watch.restart()
        watch.note()
        if watch.hangs():
            reason = f"itself: it gave no sign of life for {watch.silence():.0f} s (hang_seconds)"
            for _ in range(REQUESTS):
                signals.request(Request(reason, signal.SIGTERM, FAILED))
                if over.wait(REQUEST_SECONDS) or signals.is_ending():
                    return
            return
