"""Dates as people write them: each has the meaning that Python's `datetime` gives it, or none."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from stages.data.calendar import days_of
from stages.data.written_dates import Dates, dates_in, seconds_of
from stages.settings.date_formats import DIRECTIVES, FOUND, DateFormat, is_zone

EPOCH = datetime(1970, 1, 1)


def seconds(text: str, pattern: str = "%Y-%m-%d", zone: str = "") -> Any:
    """Return the seconds of one text; None if it is not a date of the format, `zone` if only its zone is wrong."""
    values, is_wrong, is_other = seconds_of(pa.chunked_array([[text]], pa.string()), DateFormat(pattern, zone))
    return "zone" if is_other[0] else None if is_wrong[0] else values[0]


def wall(*parts: int) -> float:
    return (datetime(*parts) - EPOCH).total_seconds()  # type: ignore[arg-type]


def found(texts: Sequence[str], **given: Any) -> Dates:
    is_declared = given.pop("is_declared", False)
    return dates_in(pa.array(texts), pa.array([1] * len(texts)), DateFormat(**given), is_declared)


def random_days(count: int, first: int = 1, last: int = 9999) -> Iterator[datetime]:
    random = np.random.default_rng(5)
    low, high = datetime(first, 1, 1).toordinal(), datetime(last, 12, 31).toordinal()
    for day, second in zip(random.integers(low, high, count), random.integers(0, 86400, count), strict=True):
        yield datetime.fromordinal(int(day)) + timedelta(seconds=int(second))


def test_days_are_those_of_python_in_all_years() -> None:
    days = [date.fromordinal(number) for number in range(1, 3_652_060, 97)]
    parts = np.array([(day.year, day.month, day.day) for day in days]).T
    np.testing.assert_array_equal(days_of(*parts), [day.toordinal() - EPOCH.toordinal() for day in days])


@pytest.mark.parametrize("pattern", [
    *FOUND, "%Y-%m-%d %H:%M:%S", "%d/%m/%Y %I:%M %p", "%B %d, %Y %H:%M", "%Y%m%d", "%Y%m%d%H%M%S", "%A %d %B %Y",
    "%Y-%m-%dT%H:%M:%S.%f", "day %d of %m in %Y (100%%)",
])  # fmt: skip
def test_patterns_mean_what_they_mean_to_strptime(pattern: str) -> None:
    texts = [day.strftime(pattern) for day in random_days(300, first=1000)]
    values, is_wrong, is_other = seconds_of(pa.chunked_array([texts]), DateFormat(pattern))
    assert not is_wrong.any()
    assert not is_other.any()
    assert values.tolist() == [(datetime.strptime(text, pattern) - EPOCH).total_seconds() for text in texts]


MEANINGS: dict[str, Any] = {
    "2024-02-29": wall(2024, 2, 29), "2023-02-29": None, "1900-02-29": None, "2000-02-29": wall(2000, 2, 29),
    "2024-02-30": None, "2024-04-31": None, "2024-13-01": None, "2024-00-10": None, "2024-01-00": None,
    "0000-01-01": None, "0001-01-01": wall(1, 1, 1), "9999-12-31": wall(9999, 12, 31), "2024-3-1": wall(2024, 3, 1),
    "2024-03-01T12:30": wall(2024, 3, 1, 12, 30), "2024-03-01 12:30:15": wall(2024, 3, 1, 12, 30, 15),
    "2024-03-01 12:30:15.250": wall(2024, 3, 1, 12, 30, 15) + 0.25, "2024-03-01 24:00": wall(2024, 3, 2),
    "2024-03-01 24:00:00": wall(2024, 3, 2), "2024-03-01 24:01": None, "2024-03-01 12:60": None,
    "2024-03-01 23:59:60": None, "2024-12-31T24:00": wall(2025, 1, 1), "2024-03-01 2:05 PM": wall(2024, 3, 1, 14, 5),
    "2024-03-01 12:05 am": wall(2024, 3, 1, 0, 5), "2024-03-01 12:05 p.m.": wall(2024, 3, 1, 12, 5),
    "2024-03-01 13:05 PM": None, "2024-03-01T12:00Z": "zone", "2024-03-01T12:00:00+02:00": "zone", "2024": None,
    "24-03-01": None, "20240301": None, "2024/03/01": None, "01.03.2024": None, "": None, "today": None,
    "2024-03-01x": None, " 2024-03-01": None, "2024-03-01T": None, "٢٠٢٤-03-01": None,
}  # fmt: skip


@pytest.mark.parametrize("text", MEANINGS)
def test_iso_dates_have_one_meaning_or_none(text: str) -> None:
    assert seconds(text) == MEANINGS[text]


@pytest.mark.parametrize(("texts", "pattern"), [
    (["2024-01-31", "2024-02-29"], "%Y-%m-%d"), (["31.12.2024", "01.02.2024"], "%d.%m.%Y"),
    (["03.04.2024"], "%d.%m.%Y"), (["12.31.2024", "01.02.2024"], "%m.%d.%Y"), (["2024/12/31"], "%Y/%m/%d"),
    (["12/31/2024", "01/02/2024"], "%m/%d/%Y"), (["31/12/2024", "1/2/2024 7:30"], "%d/%m/%Y"),
    (["31-12-2024"], "%d-%m-%Y"), (["31 Dec 2024", "1 january 2024"], "%d %b %Y"), (["31-Dec-2024"], "%d-%b-%Y"),
    (["31. Dec 2024"], "%d. %b %Y"), (["Dec 31, 2024", "Sept. 1, 2024"], "%b %d, %Y"), (["May 1 2024"], "%b %d %Y"),
    (["Fri, 01 Mar 2024 10:00:00 GMT"], "%a, %d %b %Y"), (["Fri Mar  1 10:00:00 2024"], "%a %b %d %H:%M:%S %Y"),
    (["Mar 2024", "Dec 2023"], "%b %Y"), (["20240301T120000"], "%Y%m%dT%H%M%S"),
    (["2024-03-01", "2024-03-01T10:00"], "%Y-%m-%d"),
])  # fmt: skip
def test_the_notation_of_a_column_is_found(texts: list[str], pattern: str) -> None:
    dates = found(texts)
    assert (dates.count, dates.patterns, dates.is_clear) == (len(texts), (pattern,), True)


@pytest.mark.parametrize(("texts", "patterns"), [
    (["03/04/2024", "12/11/2024"], ("%d/%m/%Y", "%m/%d/%Y")), (["3-4-2024"], ("%d-%m-%Y", "%m-%d-%Y")),
    (["03/04/24"], ("%d/%m/%y", "%m/%d/%y", "%y/%m/%d")), (["31/12/99"], ("%d/%m/%y",)), (["31-Dec-24"], ("%d-%b-%y",)),
    (["31.12.24"], ("%d.%m.%y",)),
])  # fmt: skip
def test_what_may_be_several_dates_is_not_clear(texts: list[str], patterns: tuple[str, ...]) -> None:
    """Until the pattern is given."""
    dates = found(texts)
    assert (dates.patterns, dates.is_clear) == (patterns, False)
    for pattern in patterns:
        dates = found(texts, pattern=pattern)
        assert (dates.patterns, dates.is_clear) == ((pattern,), True)


@pytest.mark.parametrize("texts", [
    ["2010-11", "2011-12"], ["12:30", "13:45"], ["1.2.3", "10.11.12.13"], ["99/99/9999"], ["2024-13-45", "2024-00-00"],
    ["123-45-6789"], ["31-Foo-2024"], ["room 12"], ["2024 Q1"], ["555-1234"], ["10/20"], ["Monday"],
])  # fmt: skip
def test_codes_are_not_dates(texts: list[str]) -> None:
    dates = found(texts)
    assert not (dates.patterns and dates.count == len(texts))


def test_months_are_dates_if_they_are_declared() -> None:
    assert found(["2010-11", "2011-12"], is_declared=True).patterns == ("%Y-%m",)
    assert seconds("2010-11", "%Y-%m") == wall(2010, 11, 1)


def test_few_other_values_do_not_hide_the_dates() -> None:
    texts = [f"{day:02}.01.2024" for day in range(1, 32)]
    assert found([*texts, "31.02.2024"]) == Dates(32, ("%d.%m.%Y",))
    assert found([*texts, "unknown"]) == Dates(31, ("%d.%m.%Y",))
    assert found([*texts, *"abc"]) == Dates(31, others=(*"abc",))
    assert found([*texts, *"abcdefghijk"]) == Dates(31)


def test_a_given_pattern_is_used_where_it_fits() -> None:
    assert found(["2024-01-31"], pattern="%d/%m/%Y").patterns == ("%Y-%m-%d",)
    assert found(["31x12x2024"], pattern="%dx%mx%Y").patterns == ("%dx%mx%Y",)


ZONES: Mapping[str, tuple[list[str], str]] = {
    "none": (["2024-03-01", "2024-03-01T12:00"], ""),
    "one": (["2024-03-01T12:00+02:00", "2024-07-01 12:00:00 +0200"], "+02:00"),
    "west": (["2024-03-01T12:00-03:30"], "-03:30"),
    "UTC": (["2024-03-01T12:00Z", "2024-03-01T12:00:00+00:00", "2024-03-01 12:00 UTC"], "UTC"),
    "several": (["2024-03-31T01:30:00+01:00", "2024-03-31T03:30:00+02:00"], "UTC"),
}


@pytest.mark.parametrize("case", ZONES)
def test_times_have_the_zone_that_all_have_or_utc(case: str) -> None:
    texts, zone = ZONES[case]
    assert found(texts).zone == zone
    assert found(texts, zone="Asia/Tokyo").zone == ("" if case == "none" else "Asia/Tokyo")
    for text in texts:
        instant = datetime.fromisoformat(text.replace(" UTC", "Z").replace(" +", "+"))
        expected = instant
        if zone:
            hours, minutes = (zone[:3], zone[0] + zone[4:]) if zone != "UTC" else ("0", "0")
            expected = instant.astimezone(timezone(timedelta(hours=int(hours), minutes=int(minutes))))
        assert seconds(text, zone=zone) == (expected.replace(tzinfo=None) - EPOCH).total_seconds()


def test_the_zone_of_a_place_has_daylight_saving_time() -> None:
    zone = ZoneInfo("Europe/Berlin")
    for day in random_days(300, first=1950, last=2100):
        local = day.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)
        assert seconds(f"{day.isoformat()}Z", zone="Europe/Berlin") == (local - EPOCH).total_seconds()


def test_a_zone_must_be_there_or_not_as_in_the_other_values() -> None:
    assert seconds("2024-03-01T12:00", zone="UTC") == "zone"
    assert seconds("2024-03-01", zone="+02:00") == "zone"
    assert seconds("yesterday", zone="+02:00") is None


def test_numbers_since_1970() -> None:
    assert seconds("1709251200", "unix", "UTC") == 1709251200
    assert seconds("1709251200.5", "unix", "UTC") == 1709251200.5
    assert seconds("-86400", "unix", "UTC") == -86400
    assert seconds("1709251200250", "unix_ms", "UTC") == 1709251200.25
    assert seconds("1709251200", "unix", "+01:00") == 1709251200 + 3600
    assert seconds("2024-03-01", "unix", "UTC") is None
    assert seconds("1709251200250", "unix", "UTC") is None  # milliseconds
    assert seconds("-99999999999", "unix", "UTC") is None  # before the year 1
    values, is_wrong, _ = seconds_of(pa.chunked_array([[20240131, None, 20240231]]), DateFormat("%Y%m%d"))
    assert values[0] == wall(2024, 1, 31)
    assert (np.isnan(values).tolist(), is_wrong.tolist()) == ([False, True, True], [False, False, True])
    assert seconds_of(pa.chunked_array([[20240131.0]]), DateFormat("%Y%m%d"))[0] == wall(2024, 1, 31)


@pytest.mark.parametrize(("pattern", "problem"), [
    ("%d/%m/%Y", ""), ("unix", ""), ("%H:%M", ""), ("%Y", ""), ("%q", "has the unknown directive %q"),
    ("%d/%m", "has no year"), ("2024", "has no year"), ("%Y %Y", "has a part twice"), ("%Y %", "unknown directive %"),
    ("%d %b %B %Y", "has a part twice"),
])  # fmt: skip
def test_patterns_are_checked(pattern: str, problem: str) -> None:
    assert problem in DateFormat(pattern).problem()
    assert bool(problem) == bool(DateFormat(pattern).problem())


def test_every_directive_is_one_of_python() -> None:
    for directive in DIRECTIVES:
        datetime(2024, 12, 31).strftime(directive)


@pytest.mark.parametrize(("pattern", "zone"), [
    ("%d.%m.%Y", ""), ("%d/%m/%Y %H:%M", ""), ("%Y-%m-%d", "UTC"), ("%Y-%m-%d", "+02:00"),
    ("%d %b %Y", "Europe/Berlin"), ("unix", "UTC"), ("unix_ms", "UTC"), ("%Y-%m-%d %H:%M %z", "-03:30"),
    ("%d %b %Y %I:%M %p", ""), ("", ""),
])  # fmt: skip
def test_the_example_of_an_error_is_a_date(pattern: str, zone: str) -> None:
    form = DateFormat(pattern, zone)
    assert isinstance(seconds(form.example, pattern or "%Y-%m-%d", zone), float)


@pytest.mark.parametrize("pattern", [
    *FOUND, "%Y-%m", "%Y%m%d", "%Y%m%d%H%M%S", "%d/%m/%Y %I:%M %p", "%H:%M", "100%%Y %Y", "%Y-%m-%d %H:%M:%S.%f %z",
    "unix", "unix_ms", "",
])  # fmt: skip
@pytest.mark.parametrize("zone", ["", "UTC", "+02:00", "-03:30", "Europe/Berlin"])
def test_dates_are_read_as_they_are_written(pattern: str, zone: str) -> None:
    form = DateFormat(pattern, zone if not pattern.startswith("unix") else zone or "UTC")
    for day in (*random_days(9), datetime(2024, 12, 31), datetime(2024, 3, 31, 12, 30, 15, 250_000)):
        text = form.written((day - EPOCH).total_seconds())
        value = seconds(text, pattern or "%Y-%m-%d", form.zone)
        if pattern and form.has_time and bool(zone) != ("%z" in pattern):  # no column has both
            assert value == "zone"
            continue
        assert form.written(value) == text
        if pattern in ("", "unix", "%Y-%m-%d", "%Y-%m-%d %H:%M:%S.%f %z"):
            assert value == (day - EPOCH).total_seconds()


def test_zones_are_checked() -> None:
    assert [is_zone(name) for name in ("UTC", "Europe/Berlin", "+02:00", "Berlin", "", "../etc", "+2")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip
