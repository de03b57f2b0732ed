"""Dates as people write them: find the notation of a column, and read it as seconds since 1970."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stages.data.calendar import Moment, seconds_at
from stages.data.columns import evenly_spread
from stages.data.fixed_dates import has_fixed_form, read_fixed
from stages.features.dates import FIRST, LAST
from stages.settings.date_formats import ASKED, DECLARED, FOUND, ISO, MONTHS, UNIX, UNLIKELY, DateFormat

Texts: TypeAlias = Any
"""Texts, a `pyarrow.Array` or a `pyarrow.ChunkedArray`."""

LOOKED_AT = 1_000
"""Number of different values in which patterns are found."""

READ = 100_000
"""Maximum number of different values, evenly spread, by which one of these patterns is chosen."""

FEW = 10
"""Maximum number of different values that are not dates for a column that seems to be one of dates."""

MOST = 0.95
"""Share of values from which a column is one of dates."""


@dataclass(frozen=True)
class Dates:
    """The dates among the values of a column."""

    count: int = 0
    """Number of values that have the form of a date."""
    patterns: tuple[str, ...] = ()
    """The patterns that read most values, usually one."""
    zone: str = ""
    """The zone of all times; UTC if there are several."""
    is_clear: bool = True
    """Whether there is one pattern, and the year has four digits."""
    others: tuple[str, ...] = ()
    """The values that are not dates, if most values are dates and the others are few."""


@dataclass(frozen=True)
class _Read:
    """Texts as seconds since 1970, float64; nan for a text that is not a date. See `DateFormat`."""

    wall: np.ndarray
    """Seconds of the time as it is written."""
    offset: np.ndarray
    """Seconds by which it is ahead of UTC; nan for a time without a zone."""


def dates_in(texts: Texts, times: Texts, given: DateFormat, is_declared: bool = False) -> Dates:
    """Return the dates among different texts.

    Args:
        texts: The different values of a column.
        times: How often each occurs.
        given: What is known of the notation. Its pattern is used if it reads nearly all values.
        is_declared: Whether the column is declared as dates.
    """
    counts = np.asarray(times)
    known = (*FOUND, *ASKED, *(DECLARED if is_declared else ()))
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    few = texts[:LOOKED_AT]
    patterns = [one for one in (given.pattern, *known) if one and one not in UNIX and _has_form(few, one).any()]
    if not patterns:
        return Dates()
    is_like = np.logical_or.reduce([_has_form(texts, one) for one in patterns])
    count, total = int(counts[is_like].sum()), int(counts.sum())
    if 2 * count < total and not is_declared:
        return Dates(count)
    some = np.flatnonzero(is_like)
    some = some[evenly_spread(len(some), READ)]
    counts = counts[some]
    read = {one: _read(texts.take(pa.array(some)), one) for one in patterns}
    found = {one: int(counts[~np.isnan(part.wall)].sum()) for one, part in read.items()}
    most = max(found.values())
    if not most or 2 * most < counts.sum():  # codes of the same form
        return Dates()
    if count < MOST * total and not is_declared:
        others = texts.filter(pa.array(~is_like)).to_pylist()
        return Dates(count, others=tuple(others) if len(others) <= FEW < len(some) else ())
    is_given = found.get(given.pattern, 0) >= MOST * counts.sum()
    best = [one for one, number in found.items() if number == most and found.get(UNLIKELY.get(one, ""), 0) < most]
    best = [given.pattern] if is_given else best
    is_clear = is_given or (len(best) == 1 and best[0] not in ASKED)
    return Dates(count, tuple(best), _zone_of(read[best[0]].offset, counts, given.zone), is_clear)


def _has_form(texts: Texts, pattern: str) -> np.ndarray:
    form = DateFormat(pattern)
    has_form = has_fixed_form(texts, form)
    rest = np.flatnonzero(~has_form)
    if len(rest):
        is_like = pc.match_substring_regex(texts.take(pa.array(rest)), form.regex)
        has_form[rest] = is_like.to_numpy(zero_copy_only=False)
    return has_form


def _zone_of(offsets: np.ndarray, times: np.ndarray, given: str) -> str:
    """Return the zone of most times; empty if most have none."""
    has_zone = ~np.isnan(offsets)
    if 2 * times[has_zone].sum() <= times.sum():
        return ""
    different = np.unique(offsets[has_zone])
    return given or (_offset_name(different[0]) if len(different) == 1 else "UTC")


def _offset_name(seconds: float) -> str:
    minutes = abs(int(seconds)) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}" if minutes else "UTC"


def seconds_of(array: Texts, form: DateFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return dates as seconds since 1970-01-01 in the time zone of the column, and which values are not dates.

    Args:
        array: Texts or numbers; null for a missing one.
        form: The notation. If it has a zone, all times must have one, and are converted to it. Otherwise none may.

    Returns:
        The seconds, float64 [n], nan for a value that is missing or wrong; whether a value is not a date, and whether
        it is one with a zone that it should not have, or without one, bool [n] each.
    """
    texts = array.cast(pa.string())
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode().combine_chunks()
    part = _read(encoded.dictionary, form.pattern or ISO)
    is_date, has_zone = ~np.isnan(part.wall), ~np.isnan(part.offset)
    is_other = is_date & (has_zone != bool(form.zone))
    seconds = np.where(is_other, np.nan, part.wall)
    if form.zone:
        seconds = _local(part.wall - part.offset, form.zone)
    codes = encoded.indices.fill_null(len(seconds)).to_numpy(zero_copy_only=False)
    of_each = ((seconds, np.nan), (~is_date, False), (is_other, False))
    values, is_wrong, is_in_other_zone = (np.append(one, missing)[codes] for one, missing in of_each)
    return values, is_wrong.astype(bool), is_in_other_zone.astype(bool)


def _local(instants: np.ndarray, zone: str) -> np.ndarray:
    """Return the seconds of the local time in a zone for instants, seconds in UTC."""
    if zone[0] in "+-":
        sign = -1 if zone[0] == "-" else 1
        return instants + sign * 60 * (60 * int(zone[1:3]) + int(zone[4:6]))
    if zone == "UTC":
        return instants
    is_date = ~np.isnan(instants)
    whole = np.floor(np.where(is_date, instants, 0))
    utc = pd.DatetimeIndex(whole.astype(np.int64).astype("datetime64[s]"), tz="UTC")
    local = utc.tz_convert(ZoneInfo(zone)).tz_localize(None).to_numpy().astype("datetime64[s]").astype(np.float64)
    return np.where(is_date, local + (instants - whole), np.nan)


def _read(texts: Texts, pattern: str) -> _Read:
    """Return different texts as dates."""
    if pattern in UNIX:
        plain = pc.replace_substring_regex(texts, r"^\s*([+-]?\d+(?:\.\d*)?)\s*$", r"\1")
        is_number = pc.match_substring_regex(plain, r"^[+-]?\d{1,18}(?:\.\d*)?$")
        numbers = pc.if_else(is_number, plain, pa.scalar(None, pa.string())).cast(pa.float64())
        seconds = numbers.fill_null(np.nan).to_numpy(zero_copy_only=False) / UNIX[pattern]
        seconds[(seconds < FIRST) | (seconds > LAST)] = np.nan  # probably milliseconds as seconds
        return _Read(seconds, np.where(np.isnan(seconds), np.nan, 0.0))
    wall, offset, is_read = read_fixed(texts, DateFormat(pattern))
    rest = np.flatnonzero(~is_read)
    if len(rest):
        part = _read_slowly(texts.take(pa.array(rest)), DateFormat(pattern))
        wall[rest], offset[rest] = part.wall, part.offset
    return _Read(wall, offset)


def _read_slowly(texts: Texts, form: DateFormat) -> _Read:
    """Return texts as dates by the regular expression of the notation."""
    if form.is_of_numbers:
        texts = pc.replace_substring_regex(texts, r"\.0*$", "")  # of a column of floats
    parts = pc.extract_regex(texts, form.regex)
    names = [field.name for field in parts.type]
    matches = pc.is_valid(parts).to_numpy(zero_copy_only=False)

    def whole(name: str, default: int) -> np.ndarray:
        if name not in names:
            return np.full(len(matches), default)
        digits = pc.struct_field(parts, name).fill_null("")
        known = pc.if_else(pc.equal(digits, ""), str(default), digits)
        return known.cast(pa.int64()).to_numpy(zero_copy_only=False)

    def by_word(name: str, meaning: Callable[[str], float]) -> np.ndarray:
        if name not in names:
            return np.full(len(matches), meaning(""))
        encoded = pc.utf8_lower(pc.struct_field(parts, name).fill_null("")).dictionary_encode()
        meanings = np.array([meaning(word) for word in encoded.dictionary.to_pylist()], np.float64)
        return meanings[encoded.indices.to_numpy()]

    year = whole("year", 1970)
    if "short_year" in names:
        short = whole("short_year", 70)
        year = short + np.where(short < 69, 2000, 1900)  # as POSIX
    places = {name[:3]: place for place, name in enumerate(MONTHS, start=1)}
    month = by_word("name", lambda word: places.get(word[:3], 0)).astype(int) if "name" in names else whole("month", 1)
    day = whole("day", 1)
    hour, minute, second = (whole(name, 0) for name in ("hour", "minute", "second"))
    half = by_word("half", lambda word: {"a": 1, "p": 2}.get(word, 0))
    is_hour = (half == 0) | ((hour >= 1) & (hour <= 12))
    hour = np.where(half == 0, hour, hour % 12 + 12 * (half == 2))
    seconds = seconds_at(Moment(year, month, day, hour, minute, second, _fractions(parts, names)))
    is_date = matches & is_hour & ~np.isnan(seconds)
    return _Read(np.where(is_date, seconds, np.nan), np.where(is_date, by_word("zone", _offset), np.nan))


def _fractions(parts: Texts, names: Sequence[str]) -> np.ndarray | float:
    if "fraction" not in names:
        return 0.0
    digits = pc.struct_field(parts, "fraction").fill_null("")
    return pc.binary_join_element_wise("0.", digits, "0", "").cast(pa.float64()).to_numpy(zero_copy_only=False)


def _offset(zone: str) -> float:
    """Return how many seconds a zone is ahead of UTC; nan for the empty text."""
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = 0 if not digits.isdigit() else 60 * (60 * int(digits[:2]) + int(digits[2:]))
    return np.nan if not zone else -seconds if zone[0] == "-" else seconds
