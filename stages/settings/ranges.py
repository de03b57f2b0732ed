"""Ranges of settings, written where the setting is defined and checked when the configuration is read."""

import dataclasses
import math
from typing import Any

from stages.errors import UserError


def number(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    unit: str = "",
) -> Any:
    """Returns a dataclass field for a number (or a list of them) that lies in the given range."""
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    metadata = {"bounds": {word: bound for word, bound in bounds.items() if bound is not None}, "unit": unit}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def choice(default: Any, *options: str) -> Any:
    """Returns a dataclass field for a string that is one of `options`."""
    return dataclasses.field(default=default, metadata={"options": options})


_HOLDS = {
    "at least": lambda value, bound: value >= bound,
    "above": lambda value, bound: value > bound,
    "at most": lambda value, bound: value <= bound,
    "below": lambda value, bound: value < bound,
}


def check(settings: Any, path: str) -> None:
    """Checks the ranges of `settings` and of all that it holds, then calls its own `check(path)` if it has one.

    Args:
        settings: a dataclass instance; anything else is taken as it is.
        path: the dotted name under which the user knows it, such as `train`; empty for the top.

    Raises:
        UserError: for the first value outside its range.
    """
    if not dataclasses.is_dataclass(settings):
        return
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{path}.{field.name}".lstrip(".")
        if isinstance(field.default, str) and field.default.startswith("${"):
            name = field.default[2:-1]  # it stands, and is set, under the name that it points at
        options = field.metadata.get("options")
        if options and value not in options:
            raise UserError(f"{name}={value} is not known", ", ".join(options), f"{name}={options[0]}")
        for one in value if isinstance(value, list) else [value]:
            _check_bounds(name, one, field)
        check(value, name)
    own = getattr(settings, "check", None)
    if own:
        own(path)


def _check_bounds(name: str, value: Any, field: dataclasses.Field) -> None:
    bounds = field.metadata.get("bounds")
    if not bounds or value is None:
        return
    if math.isfinite(value) and all(_HOLDS[word](value, bound) for word, bound in bounds.items()):
        return
    unit = f" ({field.metadata['unit']})" if field.metadata["unit"] else ""
    allowed = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items())
    raise UserError(f"{name}={value} is out of range", allowed + unit, f"{name}={_example(field)}")


def _example(field: dataclasses.Field) -> Any:
    default = field.default_factory() if callable(field.default_factory) else field.default
    if default is not None and not isinstance(default, str):
        return str(default).replace(" ", "")
    bounds = field.metadata["bounds"]
    return next(iter(bounds.values())) + (1 if "above" in bounds else 0)
