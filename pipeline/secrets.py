"""What must not be recorded."""

import re
from typing import Any

_USER_INFO = re.compile(r"(?<=://)[^/@\s'\"]+@")


def without_user(address: str) -> str:
    """Returns `address` without the user name and password before its host."""
    return _USER_INFO.sub("", address)


def redact(value: Any) -> Any:
    """Returns `value` with user names and passwords taken out of every address in it; looks into lists and mappings."""
    if isinstance(value, str):
        return _USER_INFO.sub("***@", value)
    if isinstance(value, dict):
        return {key: redact(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(redact(part) for part in value)
    return value
