"""Formats of dates: patterns of `strptime` as regular expressions, and time zones."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta, timezone, tzinfo
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from stages.errors import UserError

UNIX = {"unix": 1, "unix_ms": 1000}
"""Patterns for numbers since 1970-01-01 UTC, and how many of them make a second."""

ISO = "%Y-%m-%d"

FOUND = (
    ISO, "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m.%d.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d %b %Y", "%d. %b %Y", "%d-%b-%Y", "%d/%b/%Y", "%b %d, %Y", "%b %d %Y", "%b %Y", "%a, %d %b %Y", "%a %d %b %Y",
    "%a %b %d %H:%M:%S %Y", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M", "%Y%m%d %H:%M:%S",
)  # fmt: skip
"""Patterns that are detected. With points between numbers, the day is the first unless that is impossible."""

ASKED = (
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d", "%y/%m/%d", "%d %b %y", "%d-%b-%y",
    "%b %d, %y",
)  # fmt: skip
"""Patterns of two-digit years, which are asked for: which number is the year, and in which century?"""

DECLARED = ("%Y-%m", "%Y/%m", "%m/%Y")
"""Patterns that are detected in columns that are declared as dates. Elsewhere, 2010-11 may be a season."""

UNLIKELY = {"%m.%d.%Y": "%d.%m.%Y"}
"""Patterns that are found only if another one reads fewer values."""

MONTHS = (
    "jan(?:uary)?", "feb(?:ruary)?", "mar(?:ch)?", "apr(?:il)?", "may", "june?", "july?", "aug(?:ust)?",
    "sept?(?:ember)?", "oct(?:ober)?", "nov(?:ember)?", "dec(?:ember)?",
)  # fmt: skip
"""English names of months, compared case-insensitively."""

MONTH = rf"(?i:(?P<name>{'|'.join(MONTHS)})\.?)"
WEEKDAY = r"(?i:(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?\.?)"
ZONE = r"(?P<zone>Z|z|UTC|GMT|[+-]\d\d(?::?\d\d)?)"
NUMBERS = {
    "Y": ("year", 4), "y": ("short_year", 2), "m": ("month", 2), "d": ("day", 2),
    "H": ("hour", 2), "I": ("hour", 2), "M": ("minute", 2), "S": ("second", 2),
}  # fmt: skip
OTHERS = {
    "f": r"(?P<fraction>\d{1,9})", "p": r"(?i:(?P<half>[ap])\.?m\.?)", "b": MONTH, "B": MONTH, "a": WEEKDAY,
    "A": WEEKDAY, "z": ZONE, "%": "%",
}  # fmt: skip
DIRECTIVES = tuple(f"%{letter}" for letter in (*NUMBERS, *OTHERS))
"""The directives of `strptime` that a pattern may have."""

TIME = (
    r"(?:(?:T|t|[ ,]+)(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?"
    rf"(?: ?(?i:(?P<half>[ap])\.?m\.?))?(?: ?{ZONE})?)?"
)
"""A time in the usual notations, which may follow a date whose pattern has none."""


@dataclass(frozen=True)
class DateFormat:
    """The notation of a column's dates."""

    pattern: str = ""
    """Directives of `strptime`, or one of UNIX. A pattern without a time also reads dates that a time follows."""
    zone: str = ""
    """The zone of all times, such as `+02:00` or `Europe/Berlin`; empty if the dates have none."""

    @cached_property
    def regex(self) -> str:
        """A regular expression with a named group for each part of a date; only for a valid pattern."""
        pieces = re.findall(r"%.|\s+|[^%\s]+", self.pattern)
        numbers = {f"%{letter}": part for letter, part in NUMBERS.items()}
        parts = []
        for place, piece in enumerate(pieces):
            if piece in numbers:
                name, digits = numbers[piece]
                is_joined = any(other in numbers for other in (*pieces[:place][-1:], *pieces[place + 1 :][:1]))
                fewest = digits if is_joined or name.endswith("year") else 1
                parts.append(rf"(?P<{name}>\d{{{fewest},{digits}}})")
            elif piece.startswith("%"):
                parts.append(OTHERS[piece[1:]])
            else:
                parts.append(r"\s+" if piece.isspace() else re.escape(piece))
        return f"^{''.join(parts)}{'' if self.has_time else TIME}$"

    @property
    def has_time(self) -> bool:
        """Whether the pattern has a part of a time."""
        return any(f"%{letter}" in self.pattern for letter in "HIMSfpz")

    @property
    def is_of_numbers(self) -> bool:
        """Whether the dates are numbers, such as 20241231."""
        return self.pattern in UNIX or bool(re.fullmatch("(%[YymdHMS])+", self.pattern))

    @property
    def is_in_seconds(self) -> bool:
        """Whether the dates are seconds since 1970, without a conversion to another zone, as models take them."""
        return self.pattern == "unix" and self.zone in ("", "UTC")

    @property
    def example(self) -> str:
        """The last day of 2024, as the column would have it; noon if it has a zone."""
        return self.written(1_735_603_200 + (43_200 if self.zone and not self.is_of_numbers else 0))

    def written(self, seconds: float) -> str:
        """Return a date as the column has it, with a time only if that is not 0:00, or if all have one.

        Args:
            seconds: Seconds since 1970-01-01 in the time zone of the column.
        """
        if self.pattern in UNIX and self.zone in ("", "UTC"):  # in any year
            return repr(float(seconds) * UNIX[self.pattern]).removesuffix(".0")
        wall = datetime(1970, 1, 1) + timedelta(seconds=float(seconds))
        offset = wall.replace(tzinfo=_zone_of(self.zone or "UTC")).utcoffset() or timedelta()
        is_place = self.zone != "UTC" and self.zone[:1] not in ("", "+", "-")
        if self.pattern in UNIX or is_place:
            return replace(self, zone="UTC").written(seconds - offset.total_seconds())
        parts = {"%Y": f"{wall.year:04}", "%z": "Z" if self.zone == "UTC" else _iso_offset(offset)}
        text = re.sub("%.", lambda found: parts.get(found[0], found[0]), self.pattern or ISO)
        if not self.has_time and (self.zone or wall.time() != time()):
            text += f"T{wall.time().isoformat()}{parts['%z'] if self.zone else ''}"
        return wall.strftime(text)

    def problem(self) -> str:
        """Return what is wrong with the pattern; empty if it is valid."""
        if self.pattern in UNIX:
            return ""
        found = re.findall("%.?", self.pattern)
        if unknown := next((one for one in found if one not in DIRECTIVES), None):
            return f"has the unknown directive {unknown}"
        try:
            groups = re.compile(self.regex).groupindex
        except re.error:
            return "has a part twice"
        is_of_days = {"year", "short_year"} & {*groups}
        is_time = bool({"%H", "%I"} & {*found}) and not {"month", "name", "day"} & {*groups}
        return "" if is_of_days or is_time else "has no year"


def check_dates(path: str, date_format: Any, time_zone: Any) -> None:
    """Raise UserError for a pattern or a time zone that does not exist.

    Args:
        path: The group of the data.
        date_format: A pattern, a mapping from columns to patterns, or None.
        time_zone: A zone, a mapping from columns to zones, or None.
    """
    for pattern in _values(date_format):
        if problem := DateFormat(pattern).problem():
            directives = f"the directives {', '.join(DIRECTIVES)}, each part once, with a year or only a time"
            problem = f"{path}.date_format={pattern} {problem}"
            raise UserError(problem, f"{directives}; or {', '.join(UNIX)}", f"{path}.date_format={ISO}")
    for zone in _values(time_zone):
        if not is_zone(zone):
            expected = "the name of a time zone, such as Europe/Berlin, or +02:00"
            raise UserError(f"{path}.time_zone={zone} is unknown", expected, f"{path}.time_zone=UTC")


def _values(setting: Any) -> list[str]:
    """Return the values of a setting that may be a mapping from columns."""
    values = setting.values() if isinstance(setting, Mapping) else [] if setting is None else [setting]
    return [str(value) for value in values]


def is_zone(name: str) -> bool:
    """Return whether a time zone exists."""
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        return True
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _iso_offset(offset: timedelta) -> str:
    return timezone(offset).tzname(None).removeprefix("UTC") or "+00:00"


def _zone_of(name: str) -> tzinfo:
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        sign = -1 if name[0] == "-" else 1
        return timezone(sign * timedelta(hours=int(name[1:3]), minutes=int(name[4:])))
    return ZoneInfo(name)
