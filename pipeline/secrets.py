"""What must not be recorded."""

import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

_USER_INFO = re.compile(r"(?<=://)[^/@\s:'\"]*(?::[^\s'\"]*)?@")
_SECRET_NAME = re.compile(
    r"(?i)(password|passwd|token|secret|api_?key|access_?key|credential|_pwd$|_?pass$|_auth$|^mlflow_tracking_username$)"
)
_HEADER = re.compile(r"\b(Basic|Bearer) [\w+/=.~-]{6,}")
_told: set[str] = set()
_NAMED = re.compile(r"(?i)\b(password|passwd|pwd|token|secret|api_key)=[^&;\s'\"]+")

SHORTEST_SECRET, SHORTEST_TOLD = 6, 4
"""Characters of a secret of the environment, and of one in an address: shorter ones would blot out common words."""


def redact(value: Any) -> Any:
    """Returns `value` with users and passwords taken out of every address in it; looks into lists and mappings.

    Also the values of environment variables whose names say that they are secret. Rather too much than too little: what
    stands between a colon and the last @ of an address counts as a password.
    """
    return _redact(value, _in_environment())


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        value = _USER_INFO.sub("***@", value)
        for secret in secrets:
            value = value.replace(secret, "***")
        return _HEADER.sub(r"\1 ***", _NAMED.sub(r"\1=***", _USER_INFO.sub("***@", value)))
    if isinstance(value, dict):
        return {_redact(key, secrets): _redact(part, secrets) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_redact(part, secrets) for part in value)
    return value


def _in_environment() -> list[str]:
    """Returns the secrets of the environment, the longest first; short ones would blot out common words."""
    found = {text for name, text in os.environ.items() if _SECRET_NAME.search(name) and len(text) >= SHORTEST_SECRET}
    return sorted(found | _told, key=len, reverse=True)


def remember(address: str | None) -> None:
    """Takes the user name and the password of `address` for secrets from now on, wherever they stand."""
    parts = urlsplit(address or "")
    for text in (parts.username, parts.password):
        if text and len(text) >= SHORTEST_TOLD:
            _told.update({text, unquote(text)})


def without_user(address: str) -> str:
    """Returns `address` without the user name and password before its host."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
