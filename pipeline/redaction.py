"""Mask secrets as `***`: values under secret names, known values anywhere, credentials in addresses and headers.

This is applied to all output: the streams, the journal and the files of a run. Values in use are never changed.
"""

import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, unquote, urlsplit

MASK = "***"

SHORTEST = 6
"""Minimum length of a value that is masked anywhere; shorter values may be common words."""

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
"""Names of ordinary settings that end like the names of secrets."""

_ABOUT = re.compile(r"(^|_)(file|path|name|type|dir|folder|length|size|count|prompt|pattern|version|method|mode)$")
"""Last words of names that describe a secret, such as `password_file`."""

_VALUE = re.compile(
    r"(?P<mark>\\+[\"'])(?:(?!(?P=mark)).){0,2000}(?P=mark)|\"(?:\\.|[^\"\\]){0,2000}\"|'(?:\\.|[^'\\]){0,2000}'"
    r"|[{\[(][^{}\[\]()]{1,2000}[}\])]"
    r"|(?![{\[(])[^\s\"',;&}\])]+(?:[,;&](?![\w.\- ]{1,50}[=:])[^\s\"',;&}\])]+)*",
    re.S,
)
"""A value: in quotes (also escaped ones), in brackets, or up to a space, a quote or the next pair."""
_PAIR = re.compile(r"(?<![\w.\-])-{0,2}(\w[\w.\-]*+)(?P<sep>\\*[\"']?\s*(?::=|=>|->|:(?!//)|=(?!=))\s*)")
_FLAG = re.compile(r"(?<![\w.\-])--(\w[\w\-]*+)(?P<sep>\s+|[\"'],\s*)")
"""An option of a command line, in a text or a list of words."""
_ENCODED = re.compile(r"(?i)(?:(?<![\w.%\-])|%(?:25)*[0-9a-f]{2})([a-z_][\w.\-]*+)(?P<sep>%(?:25)*3[AD])")
"""A pair of a percent-encoded address, up to its next `&`."""
_BLOCK = re.compile(r"(?<![\w.\-])(\w[\w.\-]*+)(?P<sep>:[ \t]*)(?=[|>][-+\d]*\n|\n[ \t]*- )")
"""A multi-line text or a list in YAML."""
_ELEMENT = re.compile(r"<(\w[\w.:\-]*+)(?P<sep>>\s*)")
_FORMS = (
    (_BLOCK, re.compile(r"(?P<mark>)(?:[|>][-+\d]*\n(?:[ \t]+.*\n?)+|\n(?:[ \t]*- .*(?:\n|\Z))+)"), "\n"),
    (_PAIR, _VALUE, ""),
    (_FLAG, _VALUE, "--"),
    (_ENCODED, re.compile(r"(?i)(?P<mark>)(?:(?!%(?:25)*26)[\w.~+/=%!*-])+"), "%"),
    (_ELEMENT, re.compile(r"(?P<mark>)[^<>\s]+(?=\s*</)"), "</"),
)
"""Forms of a name with its separator, the form of the value after it, and a text that occurs in any match."""
_LOGIN = re.compile(r"(?<![\w\-])((?:-u|--user)[ =]\s*[\"']?[^\s:\"']+:)[^\s\"']+")
"""User and password as an argument of curl."""
_PROSE = re.compile(r"(?i)\b(?:an?|the|no|any|every|each|this|that|its|your|without)\s+\Z")
"""Words before a noun in a sentence. After such a noun, a colon introduces an explanation and not a value."""
_WORDS = re.compile(r"(?i)[a-z]+[.,;:!?]?|(?:https?://|\.{0,2}/|\w+/)[\w./#?=&%~+-]*|<\w+>")
"""Words, paths and addresses of pages."""
_FILLERS = frozenset(
    ["is", "was", "are", "and", "or", "has", "must", "may", "in", "of", "to", "for", "with", "without", "needs"]
)
_NO_VALUE = re.compile(
    r"(?i)\W*(\*\*\*|\$\{|\$[a-z_]+$|<|…|(none|null|true|false|str|int|float|bool|bytes|any)(?![\w.+/=-]))"
    r"|[a-z_][\w.]*[(\[]|[-+.\deE, ]{1,7}$"
)
"""Values that are not secrets: placeholders, types, calls in code, and numbers."""
_OWN_WORDS = frozenset(
    [
        "number", "category", "text", "image", "vector", "leave_out", "yes", "no", "true", "false",
        "mlflow", "tensorflow", "python", "pipeline", "digits",
    ]
)  # fmt: skip
"""Values that are not secrets: kinds of columns, such as the `category` of `cookies_enabled`, and common words."""

_USER = re.compile(r"(?<=://)[^/@\s:'\"]{0,200}(?::(?!\d{2,5}[/?#])[^\s'\"]{0,400})?@")
"""User and password of an address (RFC 3986): from a colon that is not before a port, up to the last @."""
_ENCODED_USER = re.compile(r"(?i)(?<=%3A%2F%2F)[\w.~+!*%-]{1,400}?(?=%40)")
"""User and password in a percent-encoded address."""
_SIGNATURE = re.compile(r"(?i)([?&](?:sig|signature|x-(?:amz|goog)-signature)=)[^&#\s'\"]+")
"""The signature of a presigned address, which gives access to anyone who has it."""
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|(?<![\w-])x-[\w-]*(?:key|token|secret|auth)[\w-]*)"
    r"(\\?[\"']?\s*+:\s*+\\?[\"']?+)(?!\*\*\*)[^\"'\r\n]+"
)
_SCHEME = re.compile(r"\b([Bb]earer|[Bb]asic)(\s+)(?=\S*[\d=]|[\w+/=.~-]{20})[\w+/=.~-]{8,}")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.S)
"""A PEM block (RFC 7468); without an end line, up to the end of the text."""

learned: set[str] = set()
"""Secrets from settings and arguments, which `learn` adds. Those in the environment are looked up on each call."""


@lru_cache(maxsize=10_000)
def is_secret_name(name: str) -> bool:
    """Return whether a part of a dotted name is the name of a secret: `tags.apiKey`, `DB_PASSWORD`, `SMTP_PASS2`.

    A name in capitals (a variable) that ends in KEY or PASS is a secret. A setting may be a `sort_key`.
    """
    return name not in ("PWD", "OLDPWD", "INIT_CWD") and any(map(_is_secret_part, re.split(r"[./\s]", name)))


def is_secret(name: str, value: Any) -> bool:
    """Return whether `name` is the name of a secret and `value` may be one."""
    return is_secret_name(name) and str(value).lower() not in _OWN_WORDS


def _is_secret_part(part: str) -> bool:
    words = "_".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)).lower()  # of camelCase, snake_case, kebab-case
    if _ABOUT.search(words):
        return False
    if _CERTAIN.search(words) or (part.isupper() and words.endswith(("token", "auth", "pass", "key"))):
        return True
    return _PERHAPS.search(words) is not None and _ORDINARY.search(words) is None


def redact(value: Any, name: str = "") -> Any:
    """Return `value` without secrets, also within lists and mappings, and with texts that any encoding can represent.

    Numbers with fewer than six digits are never masked, because they are settings in which runs differ.

    Args:
        value: A text, a number, or a list or mapping of values.
        name: The name of the value. All texts below the name of a secret are masked.
    """
    if isinstance(value, Mapping):
        return {redact(key): redact(part, name if is_secret_name(name) else str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        words = [redact(part, name) for part in value]
        for place, (flag, part) in enumerate(pairwise(value), 1):  # `--password` followed by its value as the next word
            is_option = isinstance(flag, str) and isinstance(part, str) and flag.startswith("--")
            if is_option and not part.startswith("-") and is_secret(flag.lstrip("-"), part):
                words[place] = MASK
        return type(value)(words)
    is_long = isinstance(value, int) and value >= 10 ** (SHORTEST - 1)
    if value and (is_long or isinstance(value, str)) and is_secret(name, value):
        return MASK
    if isinstance(value, str):
        text = _SCHEME.sub(rf"\1\2{MASK}", _HEADER.sub(rf"\1\2{MASK}", redact_values(value)))
        for form, after, needed in _FORMS:
            text = _masked(form, after, text) if needed in text else text
        return text
    return value


def redact_values(text: str) -> str:
    """Return `text` without known secrets and credentials in addresses, whatever names it contains.

    Lone surrogates, such as in the names of files that are not UTF-8, become `\\udcff`.
    """
    known = _known()
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _USER.sub(f"{MASK}@", known.sub(MASK, text) if known else text)
    text = _LOGIN.sub(rf"\1{MASK}", text) if "-u" in text else text
    text = _ENCODED_USER.sub(MASK, text) if "%40" in text else text
    text = _SIGNATURE.sub(rf"\1{MASK}", text)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def redact_overrides(overrides: Sequence[str]) -> list[str]:
    """Return `key=value` arguments without secrets; a value under a secret name is masked as a whole."""
    parts = [text.partition("=") for text in overrides]
    return [
        f"{redact(name)}={MASK}" if value and is_secret(name, value) and not _NO_VALUE.match(value) else redact(text)
        for (name, _, value), text in zip(parts, overrides, strict=True)
    ]


def redact_file(path: Path) -> None:
    """Mask known secrets in a text file, or in the text files of a folder; binary and large files are unchanged."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(OSError, UnicodeDecodeError):
            if file.is_file() and file.stat().st_size <= LARGEST_FILE:
                text = file.read_bytes().decode()
                if (plain := redact_values(text)) != text:
                    file.write_bytes(plain.encode())


def learn(settings: Any, name: str = "") -> None:
    """Mask the secrets in `settings` anywhere from now on: values under secret names, and credentials in addresses."""
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
    """Return `address` without user and password, then the decoded user and password (empty if absent)."""
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
    """A text stream that masks secrets. It buffers up to the end of a line, because `print` writes lines in pieces."""

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


def _masked(form: re.Pattern[str], after: re.Pattern[str], text: str) -> str:
    """Return `text` with values after the names of secrets masked, keeping their quotes.

    Values after other names are searched as well, because they may contain a secret.
    """
    parts, place, written = list[str](), 0, 0
    while (name := form.search(text, place)) is not None:
        place = name.end("sep")
        is_odbc = name[1] == "PWD" and not text.startswith(("/", "~"), place)
        if not (is_odbc or is_secret_name(name[1])) or (value := after.match(text, place)) is None:
            continue
        mark = value["mark"] or (value[0][0] if value[0][0] in "\"'" else "")
        if _is_masked(name, value[0][len(mark) : len(value[0]) - len(mark)], bool(mark)):
            parts += [text[written:place], f"{mark}{MASK}{mark}"]
            place = written = value.end()
    return "".join([*parts, text[written:]])


def _is_masked(name: re.Match[str], value: str, is_quoted: bool) -> bool:
    """Return whether a value after the name of a secret is a secret, and not a placeholder, code or a sentence."""
    if not value or value.startswith(MASK) or value.lower() in _OWN_WORDS:
        return False
    separator = name["sep"]
    if is_quoted:
        return True
    if value[0] in "{[(":  # code or part of a sentence, unless it is assigned
        is_set = "=" in separator or separator[0] in "\\\"'"
        return is_set and not _OWN_WORDS.issuperset(re.findall(r"\w+", value)[-1:])
    if _NO_VALUE.match(value) or (separator.isspace() and value.lower() in _FILLERS):
        return False
    before = name.string[max(name.start() - 20, 0) : name.start()]
    is_sentence = re.fullmatch(r":\s+", separator) is not None and _PROSE.search(before) is not None
    return not (is_sentence and _WORDS.fullmatch(value))


def _secrets(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in a value: the value and its lines if the name is secret, and credentials in addresses."""
    if is_secret(name, value) and not value.startswith(("/", "~")):  # the path of a file is not a secret
        yield from {value.strip(), *map(str.strip, value.splitlines())}
    for address in re.findall(r"[a-z][\w+.-]*://[^\s'\"]+", value):
        _, user, password = credentials_of(address)
        yield from (user, password, b64encode(f"{user}:{password}".encode()).decode() if password else "")


_last: tuple[Mapping[bytes, bytes], frozenset[str], re.Pattern[str] | None] = ({}, frozenset(), None)
"""The environment, the learned secrets and the expression for both, from the last call of `_known`."""


def _known() -> re.Pattern[str] | None:
    """Return an expression for all forms of the known secrets, the longest first; None if no secrets are known.

    The expression is created again if the environment has changed, which code may do at any time.
    """
    global _last
    environment: Mapping[bytes, bytes] = vars(os.environ)["_data"]  # `os.environb` copies and encodes it each time
    if environment != _last[0] or learned != _last[1]:
        _last = (dict(environment), frozenset(learned), _expression(environment))
    return _last[2]


def _expression(environment: Mapping[bytes, bytes]) -> re.Pattern[str] | None:
    # Names are compared in capitals. The environment is read as bytes, because `os.environ` decodes it on each access.
    pairs = ((os.fsdecode(name).upper(), os.fsdecode(value)) for name, value in environment.items())
    secrets = {*learned, *(secret for name, value in pairs for secret in _secrets(name, value))}
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= SHORTEST:
            forms |= {secret, quote(secret, safe="", errors="surrogateescape")}
            forms |= {json.dumps(secret)[1:-1], repr(secret)[1:-1]}
            forms.add(b64encode(secret.encode(errors="surrogateescape")).decode().rstrip("="))
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None
