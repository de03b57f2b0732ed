"""Safe places: points of a stage at which the run may end, and which show that it is alive."""

from collections.abc import Callable

_visit: Callable[[], None] | None = None


def safe_place() -> None:
    """Ends the stage here if the run should end, and shows the process's supervisor that it is alive.

    Call it between steps, files or requests, wherever nothing is half done, at least every few seconds. A signal then
    ends the run here; a stage that reaches no safe place is interrupted anywhere in its Python code, and a cluster
    member that reaches none for long counts as hung. No-op outside a run, as in a notebook.
    """
    if _visit is not None:
        _visit()


def on_safe_place(visit: Callable[[], None] | None) -> None:
    """Has `visit` called at every safe place of this process; it may raise to end the stage."""
    global _visit  # one per process, like signals
    _visit = visit
