"""Declarations of a stage about itself, in addition to its function.

A stage is a plain function. Whatever is special about one is declared next to it by `declare`, so that the framework
runs all stages alike and knows none by name.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Declared:
    """The declarations of a stage. Each function takes results and settings by their names, as stages do."""

    save: Callable[..., None] | None = None
    """Saves the result of the stage: `save(result, folder, …)`, where `…` are inputs of the stage."""
    restore: Callable[..., Any] | None = None
    """Returns the saved result: `restore(saved, …)`, where `saved` is the folder and `…` what the stage may take."""
    adapt: Callable[[Any, Any], Any] | None = None
    """Returns the settings of an earlier stage as they were learned with the saved result: `adapt(settings, saved)`."""
    check: Callable[..., None] | None = None
    """Refuses results of earlier stages that the stage cannot use, before the stages in between run. Called for each
    result that it takes, as soon as all that it requires exist."""
    start_early: Callable[..., None] | None = None
    """Starts, in another process, what takes long: `start_early(settings)`. Called when all inputs of the stage exist,
    before stages in between run."""
    clean_up: Callable[[], None] | None = None
    """Ends what `start_early` started, whether or not the stage ran."""


def declare(function: Callable[..., Any], **declarations: Callable[..., Any]) -> None:
    """Declare what is special about a stage; see the fields of `Declared`.

    Call it after the definition of the function. It is not a decorator, because the parameters of a stage are read from
    its source without importing it, and a decorator would hide them.

    Args:
        function: The function of the stage.
        declarations: Fields of `Declared`, such as `save=…, restore=…`, by which `from=` can reuse a result.

    Raises:
        TypeError: If there is no such field.
        ValueError: If only one of `save` and `restore` is given.

    Example:
        >>> def calibrate(trained): ...
        >>> declare(calibrate, save=lambda result, folder: None, restore=lambda saved: None)
    """
    declared = Declared(**declarations)
    if (declared.save is None) != (declared.restore is None):
        raise ValueError("save and restore belong together: a result that is saved must be restored")
    function.__dict__["declared"] = declared


def declared_by(function: Callable[..., Any]) -> Declared:
    """Return the declarations of a stage's function; empty ones if it has none."""
    declared = getattr(function, "declared", None)
    return declared if isinstance(declared, Declared) else Declared()


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `arguments` that `function` has parameters for."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}
