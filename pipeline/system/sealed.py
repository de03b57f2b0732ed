"""JSON that carries a checksum of itself."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

CHECK = "check"


def seal(values: Mapping[str, Any]) -> str:
    """Returns `values` as one line of JSON with a checksum of the rest under `check`."""
    return json.dumps({CHECK: _checksum(values), **values})


def unseal(text: str | bytes) -> dict[str, Any]:
    """Returns the values that `seal` has converted.

    Raises:
        ValueError: where a single character has changed.
    """
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict) or values.pop(CHECK, None) != _checksum(values):
        raise ValueError("its checksum is wrong")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(values).encode()):08x}"
