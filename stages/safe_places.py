"""Safe places: where a stage that takes long may be ended, and where it shows that it is alive."""

from collections.abc import Callable

_visit: Callable[[], None] | None = None


def safe_place() -> None:
    """Ends the stage here where the run is to end, and tells the supervisor of this process that it is alive.

    Call it between steps, files or requests, wherever nothing is half done: at least every few seconds. A signal then
    ends the run here; a stage that reaches no safe place is interrupted wherever its Python code happens to be, and a
    cluster's member that reaches none for long is taken for hung. No-op outside a run, as in a notebook.
    """
    if _visit is not None:
        _visit()


def on_safe_place(visit: Callable[[], None] | None) -> None:
    """Has `visit` called at every safe place of this process; it may raise to end the stage."""
    global _visit  # one a process, as signals are
    _visit = visit
