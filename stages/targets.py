"""Functions and classes that a configuration names by `_target_`."""

import importlib
from collections.abc import Mapping
from typing import Any

from stages.errors import UserError


def target_of(settings: Any) -> Any:
    """Return `_target_` of settings, a mapping or a dataclass; None where they have none."""
    return settings.get("_target_") if isinstance(settings, Mapping) else getattr(settings, "_target_", None)


def import_target(target: str) -> Any:
    """Return the object at the import path `target`.

    Raises:
        ImportError, AttributeError or ValueError: where there is none.
    """
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def imported(target: str, place: str, expected: str, fix: str) -> Any:
    """Return the object at the import path `target`.

    Args:
        place: what named it; expected, fix: as in UserError; all for errors.

    Raises:
        UserError: where there is none.
    """
    try:
        return import_target(target)
    except (ImportError, SyntaxError, AttributeError, ValueError) as error:
        raise UserError(f"{place} cannot be imported ({error})", expected, fix) from error


def class_at(target: str, base: type, group: str, fix: str) -> Any:
    """Return the class at `target`, which extends `base`.

    Args:
        group: whose `_target_` it is; fix: what to type instead; both for errors.

    Raises:
        UserError: where there is none.
    """
    place, expected = f"{group}._target_={target}", f"a class that extends {base.__module__}.{base.__name__}"
    found = imported(target, place, expected, fix)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{place} does not extend {base.__name__}", expected, fix)
    return found


def made(kind: type, target: str, place: str, expected: str, fix: str, /, *positional: Any, **arguments: Any) -> Any:
    """Return what the function or class at `target` makes of the arguments, an object of `kind`.

    Args:
        place: what named it; expected, fix: as in UserError; all for errors.

    Raises:
        UserError: where there is none, it does not take them, or it makes something else.
    """
    try:
        result = import_target(target)(*positional, **arguments)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"{place} cannot be created ({error})", expected, fix) from error
    if not isinstance(result, kind):
        raise UserError(f"{place} is not a {kind.__name__}", expected, fix)
    return result


def arguments_of(settings: Any) -> dict[str, Any]:
    """Return settings, a mapping or a dataclass, but `_target_`."""
    named = settings if isinstance(settings, Mapping) else vars(settings)
    return {name: value for name, value in named.items() if name != "_target_"}


def made_of(settings: Any) -> Any:
    """Return what the `_target_` of settings, a mapping or a dataclass, makes of all others."""
    return import_target(str(target_of(settings)))(**arguments_of(settings))
