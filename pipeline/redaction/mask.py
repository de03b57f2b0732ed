"""Masks secrets as `***`: recognized by their names, by known values anywhere, and by their shape.

Everything that is recorded, written or printed goes through `redact`; values in use never do.
"""

import base64
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from json import dumps
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from pipeline.paths import CONF
from pipeline.redaction.names import is_certain, is_secret_name, may_be_ordinary, words_of
from pipeline.redaction.shapes import HEADER, PRIVATE_KEY, SCHEME, SERVICES, USER_INFO, WEBHOOK

MASK = "***"

SHORTEST = 4
SHORTEST_WORD = 6
SHORTEST_NUMBER = 8
"""Shortest values that are masked anywhere: in general, of letters alone, and of digits alone; shorter ones would hide
common words."""

PLAIN_FROM = 12
"""Characters from which on they are also masked within words."""

LARGEST_FILE = 10_000_000
TEXT_FILES = words_of(".txt .csv .tsv .json .jsonl .md .log .yaml .yml .html .xml .toml .ini .cfg .py")
OWN_FILES = words_of("tracking.jsonl pipeline.log config.yaml summary.json sweep.json")
"""Files that are written without secrets, some of which are open."""

_COMMON = words_of(
    "admin administrator anonymous apikey basic bearer changeme changeit client cookie credentials database default "
    "development digest disabled docker dryrun dummy empty enabled example experiment false google guest health local "
    "localhost master metrics missing mlflow model mongodb mysql nobody normal offline online oracle pandas password "
    "passwd placeholder postgres postgresql private production public python rabbitmq redact redacted redis remote "
    "required sample secret server service session sqlite staging string system tensorflow tester testing tracking "
    "training unknown unset username validation"
)
_NO_SECRETS = frozenset({"PWD", "OLDPWD", "INIT_CWD"})
_DESKTOP = re.compile(r"(?i)^(xdg|desktop|dbus|gnome|kde|term|wt|tmux|zellij|iterm|vscode)_|^session(_manager)?$")
_WHO = ("USER", "LOGNAME", "USERNAME", "HOSTNAME", "HOST", "LANG", "TERM", "SHELL")

_NAME = re.compile(r"(?<![\w.\-])(?P<name>\w[\w.\-]*+)(?P<separator>\\?[\"']?\s*(?::=|=>|:|=(?!=))[ \t]*)")
_VALUE = re.compile(
    r"\\\"(?:(?!\\\").)*\\\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|(?:(?!,\s*[\w.+~]+=)[^\s\"'&;])+"
)
_FLAG = re.compile(r"(?P<name>--[A-Za-z][\w-]*)(?P<separator>\s+)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'-][^\s\"']*)")
_NOTHING = re.compile(
    r"(?i)(\*\*\*|…|<[^>]*>|\$\{.*|\$\w+|\{\{.*|none|null|true|false|nil|any|optional|"
    r"(str|string|int|integer|float|bool|boolean|bytes|object|list|dict|text|required|missing|unset|\?\?\?)\W*)$"
)
"""Placeholders for a value, or its type."""
_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[(\[]|(?:[A-Za-z_]+\.)+[A-Za-z_]+$|[({\[|>]*$")
"""Code that returns a value: `os.environ[…]`, `settings.token`."""

_QUANTITIES = re.compile(r"[\[(]?([+-]?(\d{1,7}(\.\d*)?|\.\d+)([eE][+-]?\d+)?([,\s]+|(?=[\])]|$)))+[\])]?")
"""A number, or a list of some, that is no secret of digits."""

learned: set[str] = set()
"""Secrets that settings and arguments have brought, from `learn`; those of the environment are looked up."""


def redact(value: Any) -> Any:
    """Returns `value` without secrets, including those in lists and mappings.

    In mappings, values under secret names are masked whole; in texts, values that follow such a name, secrets by their
    shape, and all values that the environment or a setting has under a secret name. Numbers are masked only under a
    secret name; not a few digits under one that may also be ordinary, such as `keep_token`.
    """
    return _redacted(value, _known())


def redact_named(name: str, value: Any) -> Any:
    """Returns the value of a dotted name without secrets."""
    known = _known()
    return _redacted({name: value}, known)[_redacted(name, known)]


def redact_overrides(overrides: Sequence[str]) -> list[str]:
    """Returns `key=value` arguments without secrets; the value of a secret name is masked whole, including spaces."""
    pairs = [(override.partition("="), override) for override in overrides]
    return [
        f"{name}={MASK}" if separator and value and _is_secret(name, value) else redact(override)
        for (name, separator, value), override in pairs
    ]


def redact_values(text: str) -> str:
    """Returns `text` without secrets by value or shape, for text in which names mean something else."""
    return _without_values(text, _known())


def redact_file(path: Path) -> None:
    """Masks secrets by value or shape in a text file, or in those of a folder.

    Files that are not UTF-8, larger than LARGEST_FILE or not writable stay unchanged.
    """
    if path.is_dir():
        for inner in path.rglob("*"):
            if (
                inner.suffix in TEXT_FILES
                and inner.name not in OWN_FILES
                and inner.is_file()
                and not inner.is_symlink()
            ):
                redact_file(inner)
        return
    try:
        if path.stat().st_size > LARGEST_FILE:
            return
        text = path.read_bytes().decode()
        plain = redact_values(text)
        if plain != text:
            path.write_bytes(plain.encode())
    except (OSError, UnicodeDecodeError):
        return


def learn(settings: Any, name: str = "") -> None:
    """Masks from now on, anywhere: values under secret names in `settings`, and credentials in addresses.

    Args:
        settings: mappings and lists, as in a configuration, or a single value under `name`.
    """
    if isinstance(settings, Mapping):
        for key, part in settings.items():
            learn(part, f"{name}.{key}")
    elif isinstance(settings, (list, tuple)):
        for part in settings:
            learn(part, name)
    elif settings is not None and not isinstance(settings, bool):
        learned.update(_secrets_of(name, str(settings)))


def learn_arguments(arguments: Sequence[str]) -> None:
    """Learns from a command line: values of overrides and flags with secret names, and credentials in addresses."""
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if not separator and argument.startswith("--") and index + 1 < len(arguments):
            value = arguments[index + 1]
        learn(value.strip("'\""), name)


def credentials_of(address: str) -> tuple[str, str, str]:
    """Returns `address` without user and password, and these two, decoded; empty if absent."""
    try:
        parts = urlsplit(address)
    except ValueError:  # not an address, which its check reports
        return address, "", ""
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return plain, unquote(parts.username or ""), unquote(parts.password or "")


def without_user(address: str) -> str:
    """Returns `address` without the user name and password before its host."""
    return credentials_of(address)[0]


def guard_output() -> None:
    """Masks secrets in all that Python prints in this process, including callbacks, libraries and tracebacks."""
    if not isinstance(sys.stdout, GuardedStream):
        sys.stdout = GuardedStream(sys.stdout)
        sys.stderr = GuardedStream(sys.stderr)


class GuardedStream:
    """A text stream that masks secrets; it writes whole lines, as `print` writes them in pieces, and when flushed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting = ""

    def write(self, text: str) -> int:
        self._waiting += text
        end = max(self._waiting.rfind("\n"), self._waiting.rfind("\r")) + 1
        if end:
            ready = self._waiting[:end]
            self._waiting = self._waiting[end:]
            self._stream.write(redact(ready))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        ready = self._waiting
        self._waiting = ""
        if ready:
            self._stream.write(redact(ready))
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_secret(name: str, text: str) -> bool:
    """Returns whether a value is secret by its name, as numbers such as a ratio or a width under some names are not."""
    return is_secret_name(name) and not (may_be_ordinary(name) and _QUANTITIES.fullmatch(text.strip()))


def _redacted(value: Any, known: re.Pattern[str] | None) -> Any:
    """Returns `value` without secrets; `known` is looked up once for all of its parts."""
    if isinstance(value, str):
        return _redacted_text(value, known)
    if isinstance(value, Mapping):
        return {
            _redacted(key, known): _masked(part, key, known)
            if isinstance(key, str) and is_secret_name(key)
            else _redacted(part, known)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(_redacted(part, known) for part in value)
    return value


def _masked(value: Any, name: str, known: re.Pattern[str] | None) -> Any:
    """Returns the mask of a value under a secret name, which shows only whether there is one."""
    if isinstance(value, Mapping):
        return {_redacted(key, known): _masked(part, name, known) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_masked(part, name, known) for part in value)
    is_shown = value is None or value == "" or isinstance(value, bool)
    return value if is_shown or not (isinstance(value, str) or _is_secret(name, str(value))) else MASK


def _redacted_text(text: str, known: re.Pattern[str] | None) -> str:
    text = _without_values(text, known)
    text = HEADER.sub(rf"\1\2{MASK}", text)
    text = SCHEME.sub(lambda match: f"{match[1]}{match[2]}{MASK}" if _looks_random(match[3]) else match[0], text)
    return _FLAG.sub(_mask_flag, _mask_named(text))


def _without_values(text: str, known: re.Pattern[str] | None) -> str:
    text = PRIVATE_KEY.sub(MASK, text)
    text = known.sub(MASK, text) if known is not None else text
    text = WEBHOOK.sub(MASK, USER_INFO.sub(f"{MASK}@", text))
    return SERVICES.sub(MASK, text)


def _mask_named(text: str) -> str:
    """Masks values that follow a secret name and a separator."""
    parts = []
    begin = 0
    position = 0
    while match := _NAME.search(text, position):
        position = match.end()
        if is_secret_name(match["name"]) and (value := _VALUE.match(text, position)):
            parts += [text[begin:position], _hidden(match["name"], match["separator"], value)]
            begin = position = value.end()
    return "".join([*parts, text[begin:]])


def _hidden(name: str, separator: str, match: re.Match[str]) -> str:
    """Returns the mask of a value; the text itself where it is a placeholder, a type, code, or prose."""
    value = match[0]
    if value[0] in "\"'\\":
        mark = value[:2] if value[0] == "\\" else value[0]
        inside = value[len(mark) : -len(mark)]
        return value if not inside or _NOTHING.match(inside) else f"{mark}{MASK}{mark}"
    bare = value.rstrip(")]},")
    if _NOTHING.match(bare) or _CALL.match(value) or not _is_secret(name, bare):
        return value
    is_word = bare.isidentifier() and not any(character.isdigit() for character in bare)
    ends_line = match.string[match.end() : match.end() + 1] in ("", "\n", "\r")
    in_prose = ":" in separator and separator[-1] in " \t" and not ends_line
    in_code = "=" in separator and separator[-1] in " \t" and not is_certain(name)
    return value if is_word and (in_prose or in_code) else f"{MASK}{value[len(bare) :]}"


def _mask_flag(match: re.Match[str]) -> str:
    return f"{match['name']}{match['separator']}{MASK}" if _is_secret(match["name"], match["value"]) else match[0]


def _looks_random(text: str) -> bool:
    return not text.isalpha() or text[1:] not in (text[1:].lower(), text[1:].upper()) or len(text) >= 20


def _known() -> re.Pattern[str] | None:
    """Returns an expression for the secrets of the environment and the learned ones."""
    # As bytes: `os.environ` decodes all its names and values each time, which takes longer than all the rest.
    return _pattern(_secrets_in(tuple(os.environb.items()), frozenset(learned)))


@lru_cache(maxsize=4)
def _secrets_in(environment: tuple[tuple[bytes, bytes], ...], learned: frozenset[str]) -> frozenset[str]:
    secrets = set(learned)
    for name, value in environment:
        secrets.update(_of_environment(os.fsdecode(name), os.fsdecode(value)))
    return frozenset(secrets)


@lru_cache(maxsize=1000)
def _of_environment(name: str, value: str) -> frozenset[str]:
    if name in _NO_SECRETS or _DESKTOP.match(name):
        return frozenset()
    return frozenset(_secrets_of("user.secret" if name == "MLFLOW_TRACKING_USERNAME" else name, value))


def _secrets_of(name: str, value: str) -> Iterator[str]:
    """Yields the secrets in a value: all of it under a secret name, else users and passwords in addresses."""
    if _is_secret(name, value):
        if not (value.startswith(("/", "~")) and Path(value).expanduser().exists()):
            yield value.strip()
            yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= PLAIN_FROM)
        for inner in re.split(r"[;&]", value):  # a connection string
            key, separator, part = inner.partition("=")
            if separator and is_secret_name(key.strip()):
                yield part.strip()
    for address in re.findall(r"[a-z][\w+.-]*://[^\s'\"]+", value):
        try:
            parts = urlsplit(address)
        except ValueError:
            continue
        yield from (unquote(part) for part in (parts.username, parts.password) if part)


@lru_cache(maxsize=8)
def _pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    """Returns an expression for all forms of the secrets, the longest first."""
    ordinary = {os.environ.get(name, "").lower() for name in _WHO}
    forms = {form for secret in secrets if _is_distinctive(secret, ordinary) for form in _forms(secret)}
    parts = []
    for form in sorted(forms, key=len, reverse=True):
        bounds = ("", "") if len(form) >= PLAIN_FROM else ("(?<![A-Za-z0-9])", "(?![A-Za-z0-9])")
        parts.append(re.escape(form).join(bounds))
    return re.compile("|".join(parts)) if parts else None


def _is_distinctive(secret: str, ordinary: set[str]) -> bool:
    """Returns whether `secret` can be masked anywhere without hiding ordinary words, numbers or names."""
    if len(secret) < SHORTEST or secret.lower() in _COMMON | ordinary:
        return False
    if secret.isalpha():
        return len(secret) >= SHORTEST_WORD and secret.lower() not in _vocabulary()
    if re.fullmatch(r"[\d.,:+-]+", secret):
        return len(secret) >= SHORTEST_NUMBER
    return secret != MASK and secret.lower() not in _vocabulary()


def _forms(secret: str) -> Iterator[str]:
    """Yields the forms in which a secret may be written: plain, in addresses, in JSON, in Python, in base64."""
    yield secret
    for decoded in {unquote(secret), unquote_plus(secret)} - {secret}:
        yield decoded if len(decoded) >= SHORTEST else secret
    yield from (quote(secret, safe=""), quote(secret), quote_plus(secret))
    yield from (dumps(secret)[1:-1], dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])
    if len(secret) >= PLAIN_FROM:
        yield base64.b64encode(secret.encode()).decode().rstrip("=")


@cache
def _vocabulary() -> frozenset[str]:
    """Returns the names of groups and options; masking a password like one of them would hide what was chosen."""
    return frozenset(part.lower() for path in CONF.rglob("*.yaml") for part in (path.stem, path.parent.name))
