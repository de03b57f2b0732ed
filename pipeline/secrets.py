"""What must not be recorded."""

import re
from typing import Any
from urllib.parse import urlsplit

_USER_INFO = re.compile(r"(?<=://)[^/@\s:'\"]*(?::[^\s'\"]*)?@")
_NAMED = re.compile(r"(?i)\b(password|passwd|pwd|token|secret|api_key)=[^&;\s'\"]+")


def redact(value: Any) -> Any:
    """Returns `value` with users and passwords taken out of every address in it; looks into lists and mappings.

    Rather too much than too little: what stands between a colon and the last @ of an address counts as a password.
    """
    if isinstance(value, str):
        return _NAMED.sub(r"\1=***", _USER_INFO.sub("***@", value))
    if isinstance(value, dict):
        return {redact(key): redact(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(redact(part) for part in value)
    return value


def without_user(address: str) -> str:
    """Returns `address` without the user name and password before its host."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
