"""Limits of command lines and configurations, checked before Hydra reads them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.errors import UserError

LONGEST_VALUE = 100_000
"""Characters of one argument."""

DEEPEST = 50
"""Nesting of brackets; Hydra's parser recurses into each."""

LONGEST_NUMBER = 300
"""Digits of a number; the largest double has 309."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_LONG_NUMBER = re.compile(rf"\d{{{LONGEST_NUMBER},}}")


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises UserError for the first argument beyond the limits."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        shown = key if len(key) <= 200 else f"{key[:200]}…"
        if len(argument) > LONGEST_VALUE:
            raise UserError(f"{shown} has {len(value):,} characters", f"{LONGEST_VALUE:,} at most", f"{shown}=<value>")
        if _CONTROL.search(argument):
            raise UserError(
                f"{argument} has characters that cannot be shown",
                "one line of printable text",
                f"{_CONTROL.sub('', shown)}=<text>",
            )
        if _LONG_NUMBER.search(value):
            digits = len(max(_LONG_NUMBER.findall(value), key=len))
            raise UserError(f"{shown} is a number of {digits:,} digits", "a number", f"{shown}=<number>")
        if _depth(value) > DEEPEST:
            raise UserError(f"{shown} has brackets {_depth(value):,} deep", f"{DEEPEST} at most", f"{shown}=<value>")


def check_values(values: Any) -> None:
    """Raises UserError for a name or a text in a configuration with characters that files or stores cannot hold."""
    for path, text in _texts(values, ""):
        if _CONTROL.search(text.replace("\n", "")):
            raise UserError(f"{path}={text} has characters that cannot be shown", "printable text", f"{path}=<text>")


def _texts(values: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(values, Mapping):
        for key, part in values.items():
            yield path or str(key), str(key)
            yield from _texts(part, f"{path}.{key}".lstrip("."))
    elif isinstance(values, (list, tuple)):
        for index, part in enumerate(values):
            yield from _texts(part, f"{path}[{index}]")
    elif isinstance(values, str):
        yield path, values


def _depth(text: str) -> int:
    deepest = depth = 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        deepest = max(deepest, depth)
    return deepest
