"""The one loop that watches runs: their ends, hangs, and the signals that are passed on to them."""

from collections.abc import Callable
from multiprocessing.connection import wait
from signal import SIGTERM

from pipeline.execute.child import POLL_SECONDS
from pipeline.launch.handle import Handle
from pipeline.system import signals


def supervise(
    handles: list[Handle],
    on_end: Callable[[Handle, int], object] = lambda handle, code: None,
    more: Callable[[], object] = lambda: None,
) -> None:
    """Watch `handles` until all have ended. None of the runs is still running when this returns or raises.

    The runs do not depend on each other. Each handle checks whether its processes hang (see `LocalProcess.end`), and
    ends the members of its cluster together (see `Members`).

    Args:
        handles: The runs. A run is removed once all its processes have ended.
        on_end: Receives each run and its exit code, once it has one.
        more: Called in each iteration of the loop, about every POLL_SECONDS. It may add handles, and stop some.

    Raises:
        Interrupted: After a signal, when all runs have saved and ended.
    """
    try:
        more()
        while handles:
            if not _poll(handles, on_end):  # a run in this process has already ended, so there is nothing to wait for
                signals.check()
                _wait(handles)
                _poll(handles, on_end)
            more()
    except BaseException:
        request = signals.requested() or signals.signal_request(SIGTERM)
        with signals.supervising():
            while handles:
                for handle in handles:
                    handle.stop(request, max(signals.times_requested(), 1))
                signals.check()  # shows that this process does not hang
                _wait(handles)
                _poll(handles, on_end)
        raise


def _poll(handles: list[Handle], on_end: Callable[[Handle, int], object]) -> bool:
    """Remove the handles that have left, report those that have ended, and return whether any has."""
    has_ended = False
    for handle in list(handles):
        was_running = handle.exit_code is None
        if was_running:
            handle.poll()
        if handle.has_left():
            handles.remove(handle)
        if was_running and handle.exit_code is not None:
            has_ended = True
            on_end(handle, handle.exit_code)
    return has_ended


def _wait(handles: list[Handle]) -> None:
    wait([event for handle in handles for event in handle.events], POLL_SECONDS)
