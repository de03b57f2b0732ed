"""Masks secrets as `***`: values under secret names, known values anywhere, credentials in addresses and headers.

Applied where text leaves: to the streams, to the journal, to the files of a run. Values in use are never changed.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, unquote, urlsplit

MASK = "***"

SHORTEST = 6
"""Characters of a value from which on it is masked anywhere: shorter ones may be common words."""

LARGEST_FILE = 10_000_000

_CERTAIN = re.compile(
    r"(pass_?(word|wd|phrase|code)|passwort|pwd|secret|credential|(api|access|private|secret|account|signing|encryption"
    r"|master|service|ssh|auth|license|aws)_?key|connection_?string|bearer|authorization|cookie|dsn|jwt)s?(?![a-z])"
)
_PERHAPS = re.compile(r"(token|auth|pass)$")
_ORDINARY = re.compile(
    r"(com|by)pass$|(sub|de)token$|(^|_)(n|num|max|min|pad|padding|eos|bos|unk|mask|cls|sep|special|start|end|stop|first"
    r"|last|next|class|word|text|image|patch|prompt|keep|drop|low|high|band|forward|backward|single|all)_(token|pass)$"
)
"""Names of ordinary settings that end as those of secrets do."""

_ABOUT = re.compile(r"(^|_)(file|path|name|type|dir|folder|length|size|count|prompt|pattern|version|method|mode)$")
"""Last words of names that describe a secret, such as `password_file`."""

_VALUE = r"(?P<value>\\\"(?:(?!\\\").)*\\\"|\"[^\"\n]*\"|'[^'\n]*'|(?![{\[(])[^\s\"',;&}\])]+)"
_PAIR = re.compile(r"(?<![\w.\-])(?P<name>\w[\w.\-]*+)(?P<sep>\\?[\"']?\s*(?::=|=>|:|=(?!=))\s*)" + _VALUE)
_NO_VALUE = re.compile(
    r"(?i)\W*(\*\*\*|\$|<|…|(none|null|true|false|str|int|float|bool|bytes|any)\b)|[a-z_][\w.]*[(\[]|[-+.\deE, ]{1,7}$"
)
"""Placeholders, types, calls in code and numbers."""
_OWN_WORDS = frozenset(
    [
        "number", "category", "text", "image", "vector", "leave_out", "yes", "no", "true", "false",
        "mlflow", "tensorflow", "python", "pipeline", "digits",
    ]
)  # fmt: skip
"""Values that are no secrets: a column `cookies_enabled` is a `category`, and the words of every record."""

_USER = re.compile(r"(?<=://)[^/@\s:'\"]{0,200}(?::(?!\d{2,5}[/?#])[^\s'\"]{0,400})?@")
"""User and password of an address (RFC 3986); from a colon that precedes no port up to the last @."""
_SIGNATURE = re.compile(r"(?i)([?&](?:sig|signature|x-(?:amz|goog)-signature)=)[^&#\s'\"]+")
"""That of an address which whoever has it may use."""
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:key|token|secret|auth)[\w-]*)"
    r"(\\?[\"']?\s*+:\s*+\\?[\"']?+)(?!\*\*\*)[^\"'\r\n]+"
)
_SCHEME = re.compile(r"\b([Bb]earer|[Bb]asic)(\s+)(?=\S*[\d=])[\w+/=.~-]{8,}")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.S)
"""A PEM block (RFC 7468); without an end line, up to the end of the text."""

learned: set[str] = set()
"""Secrets that settings and arguments have brought, from `learn`; those of the environment are looked up."""


@lru_cache(maxsize=10_000)
def is_secret_name(name: str) -> bool:
    """Whether a part of a dotted name is that of a secret: `tags.apiKey`, `DB_PASSWORD`, `SMTP_PASS2`.

    Any variable, as its capitals tell, that ends in KEY or PASS is one; a setting may be a `sort_key`.
    """
    return name not in ("PWD", "OLDPWD", "INIT_CWD") and any(map(_is_secret_part, re.split(r"[./\s]", name)))


def is_secret(name: str, value: Any) -> bool:
    """Whether `name` is that of a secret, and `value` no word of the project's own."""
    return is_secret_name(name) and str(value).lower() not in _OWN_WORDS


def _is_secret_part(part: str) -> bool:
    words = "_".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)).lower()  # of camelCase, snake_case, kebab-case
    if _ABOUT.search(words):
        return False
    if _CERTAIN.search(words) or (part.isupper() and words.endswith(("token", "auth", "pass", "key"))):
        return True
    return _PERHAPS.search(words) is not None and _ORDINARY.search(words) is None


def redact(value: Any, name: str = "") -> Any:
    """Return `value` without secrets, including those in lists and mappings, and as text that every encoding can hold.

    Numbers of fewer than six digits are settings, by which runs differ, whatever their name.

    Args:
        name: that of the value; all of the texts below the name of a secret are.
    """
    if isinstance(value, Mapping):
        return {redact(key): redact(part, name if is_secret_name(name) else str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(redact(part, name) for part in value)
    is_long = isinstance(value, int) and value >= 10 ** (SHORTEST - 1)
    if value and (is_long or isinstance(value, str)) and is_secret(name, value):
        return MASK
    if isinstance(value, str):
        return _PAIR.sub(_masked, _SCHEME.sub(rf"\1\2{MASK}", _HEADER.sub(rf"\1\2{MASK}", redact_values(value))))
    return value


def redact_values(text: str) -> str:
    """Return `text` without known secrets and credentials of addresses: where names mean something else.

    Lone surrogates, as the names of files that are not UTF-8 have, become `\\udcff`.
    """
    known = _known(tuple(os.environb.items()), frozenset(learned))
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _USER.sub(f"{MASK}@", known.sub(MASK, text) if known else text)
    text = _SIGNATURE.sub(rf"\1{MASK}", text)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def redact_overrides(overrides: Sequence[str]) -> list[str]:
    """Return `key=value` arguments without secrets; the value of a secret name is masked whole, including spaces."""
    parts = [text.partition("=") for text in overrides]
    return [
        f"{redact(name)}={MASK}" if value and is_secret(name, value) and not _NO_VALUE.match(value) else redact(text)
        for (name, _, value), text in zip(parts, overrides, strict=True)
    ]


def redact_file(path: Path) -> None:
    """Mask known secrets in a text file, or in those of a folder; others, and large ones, stay unchanged."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(OSError, UnicodeDecodeError):
            if file.is_file() and file.stat().st_size <= LARGEST_FILE:
                text = file.read_bytes().decode()
                if (plain := redact_values(text)) != text:
                    file.write_bytes(plain.encode())


def learn(settings: Any, name: str = "") -> None:
    """Mask from now on, anywhere: values under secret names in `settings`, and credentials in addresses."""
    if isinstance(settings, Mapping):
        for key, part in settings.items():
            learn(part, f"{name}.{key}")
    elif isinstance(settings, (list, tuple)):
        for part in settings:
            learn(part, name)
    elif settings is not None:
        learned.update(_secrets(name, str(settings)))


def learn_arguments(arguments: Sequence[str]) -> None:
    """Learn from a command line: `token=x`, `--password=x`, `--password x`, and credentials in addresses."""
    for argument, following in pairwise([*arguments, ""]):
        name, separator, value = argument.partition("=")
        learn((value if separator else following).strip("'\""), name if separator or name.startswith("--") else "")


def credentials_of(address: str) -> tuple[str, str, str]:
    """Return `address` without user and password, and these two, decoded; empty if absent."""
    try:
        parts = urlsplit(address)
    except ValueError:  # not an address, which its check reports
        return address, "", ""
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return plain, unquote(parts.username or ""), unquote(parts.password or "")


def guard_output() -> None:
    """Mask secrets in all that Python prints in this process, including callbacks, libraries and tracebacks."""
    if not isinstance(sys.stdout, GuardedStream):
        sys.stdout, sys.stderr = GuardedStream(sys.stdout), GuardedStream(sys.stderr)


class GuardedStream:
    """A text stream that masks secrets; it writes whole lines, as `print` writes them in pieces, and when flushed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting = ""

    def write(self, text: str) -> int:
        *lines, self._waiting = re.split(r"(?<=[\n\r])", self._waiting + text)
        if lines:
            self._stream.write(redact("".join(lines)))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, ""
        if waiting:
            self._stream.write(redact(waiting))
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _masked(match: re.Match[str]) -> str:
    """Return a name with its value masked, in its quotes; unchanged where that is no secret."""
    name, separator, value = match["name"], match["sep"], match["value"]
    mark = (re.match(r"\\?[\"']", value) or [""])[0]
    inside = value[len(mark) : len(value) - len(mark)]
    if not inside or inside.startswith(MASK) or not is_secret(name, inside) or (not mark and _NO_VALUE.match(inside)):
        return match[0]
    return f"{name}{separator}{mark}{MASK}{mark}"


def _secrets(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in a value: all of it, and its lines, under a secret name; credentials of addresses."""
    if is_secret(name, value) and not value.startswith(("/", "~")):  # the path of a file with a secret is none
        yield from {value.strip(), *map(str.strip, value.splitlines())}
    for address in re.findall(r"[a-z][\w+.-]*://[^\s'\"]+", value):
        yield from credentials_of(address)[1:]


@lru_cache(maxsize=4)
def _known(environment: tuple[tuple[bytes, bytes], ...], settings: frozenset[str]) -> re.Pattern[str] | None:
    """Expression for all forms of the known secrets, the longest first; None where there are none."""
    # A variable's name counts in capitals; as bytes, because `os.environ` decodes all of them each time.
    pairs = ((os.fsdecode(name).upper(), os.fsdecode(value)) for name, value in environment)
    secrets = {*settings, *(secret for name, value in pairs for secret in _secrets(name, value))}
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= SHORTEST:
            forms |= {secret, quote(secret, safe="", errors="surrogateescape")}
            forms |= {json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None
