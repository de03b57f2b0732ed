"""Texts that files, stores and terminals cannot hold, on the command line and in the configuration."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.errors import UserError

LONGEST = 20_000
"""Characters of one argument or value."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises UserError for the first argument that is too long or has control characters."""
    for argument in arguments:
        _check(argument.partition("=")[0], argument)


def check_values(values: Any) -> None:
    """Raises UserError for a name or a text in a configuration that is too long or has control characters."""
    for path, text in _texts(values, ""):
        _check(path, text.replace("\n", ""))


def _check(name: str, text: str) -> None:
    shown = _CONTROL.sub("", name[:200])
    if len(text) > LONGEST:
        raise UserError(f"{shown} has {len(text):,} characters", f"{LONGEST:,} at most", f"{shown}=<value>")
    if _CONTROL.search(text):
        raise UserError(f"{text} has characters that cannot be shown", "one line of text", f"{shown}=<text>")


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
