"""Dates whose parts have fixed numbers of digits, such as 2024-12-31T12:30:00Z, read from the bytes of texts."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from stages.data.calendar import Moment, seconds_at
from stages.settings.date_formats import UNIX, DateFormat

BLOCK = 2**16
"""Number of texts that are read at once."""

WIDTHS = {"%Y": 4, "%m": 2, "%d": 2, "%H": 2, "%M": 2, "%S": 2}
"""Directives that are read, and their numbers of digits."""

NAMES = {"%Y": "year", "%m": "month", "%d": "day", "%H": "hour", "%M": "minute", "%S": "second"}

TIMES = ("", "?%H:%M", "?%H:%M:%S", *(f"?%H:%M:%S.{'f' * digits}" for digits in range(1, 10)))
"""Times behind a date. The question mark is a T or a space, and each f a digit of a fraction."""

ZONES = ("", "Z", "+hh:mm")

SEPARATORS, SIGNS = (ord("T"), ord(" ")), (ord("+"), ord("-"))


@dataclass
class _Layout:
    """The places of the parts of a date in a text."""

    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The start and the end of each number."""
    marks: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """The place of each other character, and the bytes that it can be."""
    length: int = 0

    @classmethod
    def of(cls, pattern: str) -> "_Layout":
        """Return the layout of a pattern that consists of WIDTHS, TIMES, ZONES and other characters."""
        layout = cls()
        for piece in re.findall(r"%.|f+|hh|mm|[^%]", pattern):
            start = layout.length
            layout.length += WIDTHS.get(piece, len(piece))
            named = NAMES.get(piece) or {"hh": "zone_hour", "mm": "zone_minute"}.get(piece)
            if named or piece.startswith("f"):
                layout.parts[named or "fraction"] = start, layout.length
            else:
                known = {"?": SEPARATORS, "+": SIGNS}.get(piece, (ord(piece),))
                layout.marks.append((start, known))
        return layout

    def fits(self, texts: np.ndarray) -> np.ndarray:
        """Return which texts have the layout, bool [n].

        Args:
            texts: uint8 [n, length].
        """
        fits = np.ones(len(texts), bool)
        for place, known in self.marks:
            fits &= (texts[:, place] == known[0]) | (texts[:, place] == known[-1])
        for start, end in self.parts.values():
            for place in range(start, end):
                fits &= (texts[:, place] - ord("0")) < 10  # other characters are at least 10 in uint8
        return fits

    def read(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds since 1970 and the seconds by which they are ahead of UTC, float64 [n]; nan for none."""
        numbers = {name: _number(texts[:, start:end]) for name, (start, end) in self.parts.items()}
        hour, minute = (numbers.pop(name, None) for name in ("zone_hour", "zone_minute"))
        offset: Any = np.nan
        if hour is not None:
            sign = np.where(texts[:, self.parts["zone_hour"][0] - 1] == ord("-"), -1, 1)
            offset = sign * 60 * (60 * hour + minute)
        elif (self.length - 1, (ord("Z"),)) in self.marks:
            offset = 0
        if "fraction" in numbers:
            start, end = self.parts["fraction"]
            numbers["fraction"] = numbers["fraction"] / 10 ** (end - start)
        seconds = seconds_at(Moment(**numbers))
        return seconds, np.where(np.isnan(seconds), np.nan, offset)


def _number(digits: np.ndarray) -> np.ndarray:
    """Return the numbers of digits, int64 [n].

    Args:
        digits: uint8 [n, digits].
    """
    number = np.zeros(len(digits), np.int64)
    for place in range(digits.shape[1]):
        number = 10 * number + (digits[:, place] - ord("0"))
    return number


@lru_cache(maxsize=64)
def _layouts(pattern: str) -> Sequence[_Layout]:
    """Return the layouts of a notation; empty if it has parts without a fixed number of digits."""
    pieces = re.findall("%.|[^%]+", pattern)
    others = "".join(piece for piece in pieces if not piece.startswith("%"))
    is_fixed = all(piece in WIDTHS for piece in pieces if piece.startswith("%")) and others.isascii()
    if pattern in UNIX or not is_fixed or re.search(r"[\w?+]", others.replace("T", "")):
        return []
    if DateFormat(pattern).has_time:
        return [_Layout.of(pattern)]
    zones = [f"{time}{zone}" for time in TIMES for zone in ZONES if time or not zone]
    return [_Layout.of(f"{pattern}{one}") for one in zones]


def has_fixed_form(texts: pa.StringArray, form: DateFormat) -> np.ndarray:
    """Return which texts have the form of dates whose parts have fixed numbers of digits, bool [n]."""
    has_form = np.zeros(len(texts), bool)
    for rows, _, _ in _found(texts, form):
        has_form[rows] = True
    return has_form


def read_fixed(texts: pa.StringArray, form: DateFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the dates whose parts have fixed numbers of digits, as the regular expression of the notation reads them.

    Args:
        texts: The texts.
        form: The notation.

    Returns:
        The seconds since 1970 and the seconds by which they are ahead of UTC, float64 [n], nan for none or a day that
        does not exist; which texts have the form of such dates, bool [n].
    """
    wall, offset = np.full((2, len(texts)), np.nan)
    has_form = np.zeros(len(texts), bool)
    for rows, content, layout in _found(texts, form):
        wall[rows], offset[rows] = layout.read(content)
        has_form[rows] = True
    return wall, offset, has_form


def _found(texts: pa.StringArray, form: DateFormat) -> Iterator[tuple[np.ndarray, np.ndarray, _Layout]]:
    """Yield places of texts that have the same layout, their bytes, uint8 [n, length], and the layout."""
    layouts = _layouts(form.pattern)
    for rows, content in _blocks(texts) if layouts else ():
        for layout in layouts:
            if layout.length == content.shape[1] and len(rows):
                fits = layout.fits(content)
                if fits.all():
                    yield rows, content, layout
                    break
                if fits.any():
                    yield rows[fits], content[fits], layout
                    rows, content = rows[~fits], content[~fits]


def _blocks(texts: pa.StringArray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield places of texts that have the same length, and their bytes, uint8 [n, length]."""
    _, ends, content = texts.buffers()
    if not len(texts) or content is None:
        return
    places = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(content, np.uint8)
    for start in range(0, len(texts), BLOCK):
        starts = places[start : start + BLOCK + 1]
        lengths = np.diff(starts)
        for length in np.unique(lengths[lengths > 0]):
            found = np.flatnonzero(lengths == length)
            if len(found) == len(lengths):
                yield start + found, data[starts[0] : starts[-1]].reshape(-1, length)
            else:
                yield start + found, data[starts[found, None] + np.arange(length)]
