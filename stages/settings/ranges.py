"""Ranges of settings. They are declared with each setting, and checked when the configuration is read."""

import dataclasses
import difflib
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from stages.errors import UserError

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
"""Names of types in errors."""


def number(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    unit: str = "",
) -> Any:
    """Return a dataclass field for a number (or a list of numbers) in the given range."""
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    metadata = {"bounds": {word: bound for word, bound in bounds.items() if bound is not None}, "unit": unit}
    return _field(default, metadata)


def _field(default: Any, metadata: dict[str, Any]) -> Any:
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def text(default: Any, pattern: str, expected: str, example: str) -> Any:
    """Return a dataclass field for a text (or a list or mapping of texts) that matches `pattern`. None is allowed."""
    return _field(default, {"pattern": pattern, "expected": expected, "example": example})


def choice(default: Any, *options: str) -> Any:
    """Return a dataclass field for a string that is one of `options`."""
    return dataclasses.field(default=default, metadata={"options": options})


SCHEMAS: dict[str, dict[str, type]] = {}
"""For each group, the schemas that its options start from, by name."""


Schema = TypeVar("Schema", bound=type)


def option(group: str, name: str) -> Callable[[Schema], Schema]:
    """Register a dataclass as the schema `name` of a group: `/schema/<group>@_here_: <name>` in an option's file."""

    def register(schema: Schema) -> Schema:
        SCHEMAS.setdefault(group, {})[name] = schema
        return schema

    return register


def known_as(field: dataclasses.Field, path: str) -> str:
    """Return the dotted name with which users set a field of the settings at `path`.

    A default such as `${optimizer}` means that the settings are set in that group. Numbers can be set in both places.
    """
    is_elsewhere = isinstance(field.default, str) and field.default.startswith("${")
    if is_elsewhere and field.type not in (int, float, bool):
        return str(field.default)[2:-1]
    return f"{path}.{field.name}".lstrip(".")


LARGEST_WHOLE, LARGEST = 2**31 - 1, 3.4e38
"""Largest numbers of settings without a smaller bound: those of int32 and float32."""


_HOLDS = {"at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt}


def check(settings: Any, path: str) -> None:
    """Check the ranges of `settings` and of nested settings, and call their method `check(path)` if they have one.

    Args:
        settings: A dataclass instance; anything else is not checked.
        path: The dotted name with which users set it, such as `train`; empty for the top level.

    Raises:
        UserError: For the first value outside its range.
    """
    if not dataclasses.is_dataclass(settings):
        return
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        name = known_as(field, path)
        options = field.metadata.get("options")
        if options and len(options) == 1 and value not in options and path:
            raise UserError(
                f"{name}={value} cannot be set directly: the option of {path} sets it", options, f"{path}=<option>"
            )
        if options and value not in options:
            near = nearest(str(value), options) or options[0]
            raise UserError(f"{name}={value} is not supported", options, f"{name}={near}")
        for place, item in _items(name, value):
            _check_number(place, name, item, field)
            pattern = field.metadata.get("pattern")
            if pattern and item is not None and not re.fullmatch(pattern, str(item)):
                fix = field.metadata["example"]
                raise UserError(f"{place}={item} is not valid", field.metadata["expected"], f"'{name}={fix}'")
        check(value, name)
    check_more = getattr(settings, "check", None)
    if check_more:
        check_more(path)


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each item of a list or a mapping; any other value is a single item."""
    if isinstance(value, list):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{name}.{key}", item) for key, item in value.items())
    else:
        yield name, value


def wrong_type(name: str, value: object, expected: str) -> UserError:
    """Return the error for a value of the wrong type.

    Args:
        name: The setting, or an item of it such as `filters[1]`.
        value: The value.
        expected: The expected type, in the words of `KINDS`.
    """
    example = _meant(str(value), expected) or f"<{expected.removeprefix('a ')}>"
    fix = f"{name.partition('[')[0]}=[{example}]" if name.endswith("]") else f"{name}={example}"
    return UserError(f"{name}={value} has the wrong type", expected, f"'{fix}'" if "[" in fix else fix)


def _meant(text: str, expected: str) -> str:
    """Return `text` as a value of the expected type; empty if its meaning is not clear."""
    if expected == "a number" and re.fullmatch(r"\d+(\.\d+)?%", text):
        return f"{float(text[:-1]) / 100:g}"
    if expected == "a whole number" and re.fullmatch(r"\d+\.0*|\d+(\.\d+)?[eE]\+?\d", text):
        return str(int(float(text))) if float(text).is_integer() else ""
    return f"[{text}]" if expected == "a list" and re.fullmatch(r"[\d.]+", text) else ""


def quoted(text: str, mark: str = "'") -> str:
    """Return a text in quotes for Hydra's grammar, which only requires doubled backslashes before a quote."""
    return (
        mark
        + re.sub(rf"(\\*)({mark}|$)", lambda match: match[1] * 2 + match[2].replace(mark, f"\\{mark}"), text)
        + mark
    )


def assignment(name: str, value: str) -> str:
    """Return a setting with a text as its value, as users type it in a shell."""
    if re.fullmatch(r"[A-Za-z0-9_./-]+", value):
        return f"{name}={value}"
    text = f"{name}={quoted(value)}"
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


def nearest(word: str, names: Sequence[str]) -> str:
    """Return the name of which `word` is most likely a misspelling; empty if no name is similar."""
    plain = {re.sub(r"[\W_]", "", name).lower(): name for name in reversed(names)}
    typed = re.sub(r"[\W_]", "", word).lower()
    return next((plain[name] for name in difflib.get_close_matches(typed, plain, 1, cutoff=0.7)), "")


def _check_number(place: str, name: str, value: Any, field: dataclasses.Field) -> None:
    """Check a number against the bounds of its field and the range of 32-bit numbers.

    Args:
        place: The name of the value, such as `filters[1]`.
        name: The name of the setting.
        value: The number.
        field: The field of the setting.
    """
    bounds = field.metadata.get("bounds") or {}
    if bounds and isinstance(value, list):  # OmegaConf accepts a list within a list of numbers
        raise wrong_type(place, value, "a number")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if holds(value) and all(_HOLDS[word](value, bound) for word, bound in bounds.items()):
        return
    unit = f" ({field.metadata['unit']})" if field.metadata.get("unit") else ""
    allowed = [f"{word} {bound:g}" for word, bound in bounds.items()]
    allowed += [] if holds(value) else [f"at most {_largest(value):g}"]
    fix = f"{name}={_example(field) if bounds else '<number>'}"
    raise UserError(f"{place}={value} is out of range", " and ".join(allowed) + unit, fix)


def holds(value: float) -> bool:
    """Return whether a number fits into int32 or float32, so every part of a run can compute with it."""
    return abs(value) <= _largest(value)  # False for NaN


def _largest(value: float) -> float:
    return LARGEST_WHOLE if isinstance(value, int) else LARGEST


def _example(field: dataclasses.Field) -> Any:
    default = field.default_factory() if callable(field.default_factory) else field.default
    if default is not None and not isinstance(default, str):
        return str(default).replace(" ", "")
    bounds = field.metadata["bounds"]
    return next(iter(bounds.values())) + (1 if "above" in bounds else 0)
