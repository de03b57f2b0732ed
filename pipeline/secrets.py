"""What must not be recorded."""

import os
import re
from typing import Any
from urllib.parse import urlsplit

_USER_INFO = re.compile(r"(?<=://)[^/@\s:'\"]*(?::[^\s'\"]*)?@")
_SECRET_NAME = re.compile(r"(?i)(password|passwd|token|secret|api_?key|access_?key|credential|_pwd$)")
_NAMED = re.compile(r"(?i)\b(password|passwd|pwd|token|secret|api_key)=[^&;\s'\"]+")

SHORTEST_SECRET = 6
"""Characters of an environment variable's value that is taken for a secret."""


def redact(value: Any) -> Any:
    """Returns `value` with users and passwords taken out of every address in it; looks into lists and mappings.

    Also the values of environment variables whose names say that they are secret. Rather too much than too little: what
    stands between a colon and the last @ of an address counts as a password.
    """
    return _redact(value, _in_environment())


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "***")
        return _NAMED.sub(r"\1=***", _USER_INFO.sub("***@", value))
    if isinstance(value, dict):
        return {_redact(key, secrets): _redact(part, secrets) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_redact(part, secrets) for part in value)
    return value


def _in_environment() -> list[str]:
    """Returns the secrets of the environment, the longest first; short ones would blot out common words."""
    found = {text for name, text in os.environ.items() if _SECRET_NAME.search(name) and len(text) >= SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)


def without_user(address: str) -> str:
    """Returns `address` without the user name and password before its host."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
