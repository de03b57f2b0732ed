"""Dates that are read from their bytes have the same bits as those that are read by regular expressions."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from stages.data import written_numbers
from stages.data.fixed_dates import has_fixed_form, read_fixed
from stages.data.written_dates import _has_form, _read, _read_slowly
from stages.data.written_numbers import NumberFormat
from stages.settings.date_formats import ASKED, DECLARED, FOUND, DateFormat

PATTERNS = (
    *FOUND, *ASKED, *DECLARED, "%Y%m%d", "%Y%m%d%H%M%S", "%H:%M", "%Y", "%d/%m/%Y %H:%M", "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d %H:%M%z", "day %d of %m in %Y (100%%)", "%I:%M %p %d.%m.%Y",
)  # fmt: skip
FIXED = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d", "%Y%m%dT%H%M%S", "%d/%m/%Y %H:%M", "%Y-%m", "%H:%M", "%Y")
TIMES = (
    "", "T%H:%M", " %H:%M", "T%H:%M:%S", " %H:%M:%S.%f", "T24:00", "T24:00:00", "T25:00", " 12:60", "t%H:%M", ", %H:%M",
    " 1:05 PM", "T24:00:00.5", "T12:30:15.123456789", "T12:30:15.1", "T12:30:15,25", "T", "x",
)  # fmt: skip
ZONES = ("", "Z", "+00:00", "-00:00", "+02:00", "-03:30", "+0200", "+02", " UTC", "z", "+99:99", "Zx")


def texts_of(pattern: str) -> Iterator[str]:
    """Yield dates as the pattern writes them, with any times and zones, and texts that are similar."""
    random = np.random.default_rng(5)
    for time in TIMES:
        for zone in ZONES:
            for number in random.integers(-62_135_596_800, 253_402_300_799, 3):
                day = datetime(1970, 1, 1) + timedelta(seconds=int(number), microseconds=int(random.integers(10**6)))
                yield f"{day.strftime(pattern + time)}{zone}"
    written = datetime(2024, 2, 29, 12, 30).strftime(pattern)
    for place in range(len(written)):
        for character in ("0", "9", "/", ":", " ", "x", "²", "٣"):
            yield written[:place] + character + written[place + 1 :]
        yield written[:place] + written[place + 1 :]
    yield from ("", " ", "2023-02-29", "1900-02-29", "0000-01-01", "2024-13-01", "2024-00-10", "31.04.2024", "20240230")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_dates_have_the_same_bits_as_by_regular_expressions(pattern: str) -> None:
    form = DateFormat(pattern)
    texts = list(texts_of(pattern))
    for array in (pa.array(texts), pa.array(["before", *texts, "behind"])[1:-1], pa.array([])):
        array = array.cast(pa.string())
        slow, quick = _read_slowly(array, form), _read(array, pattern)
        np.testing.assert_array_equal(quick.wall.view(np.int64), slow.wall.view(np.int64))
        np.testing.assert_array_equal(quick.offset.view(np.int64), np.asarray(slow.offset, np.float64).view(np.int64))
        is_like = pa.compute.match_substring_regex(array, form.regex).to_numpy(zero_copy_only=False)
        np.testing.assert_array_equal(_has_form(array, pattern), is_like.astype(bool))
        wall, _, has_form = read_fixed(array, form)
        np.testing.assert_array_equal(has_form, has_fixed_form(array, form))
        assert not (has_form & ~is_like.astype(bool)).any()
        assert np.isnan(wall[~has_form]).all()


@pytest.mark.parametrize("pattern", FIXED)
def test_the_usual_notations_are_read_from_their_bytes(pattern: str) -> None:
    days = [datetime(1900, 1, 1) + timedelta(days=37 * day, seconds=7 * day) for day in range(500)]
    has_time = DateFormat(pattern).has_time
    for more in ("",) if has_time else ("", "T%H:%M", " %H:%M:%S", "T%H:%M:%SZ", "T%H:%M:%S.%f+02:00"):
        texts = pa.array([day.strftime(pattern + more) for day in days])
        assert has_fixed_form(texts, DateFormat(pattern)).all(), more


def test_a_part_of_an_array_is_read_from_its_own_bytes() -> None:
    texts = [f"2024-01-{day:02}" for day in range(1, 32)]
    np.testing.assert_array_equal(
        _read(pa.array(texts)[3:9], "%Y-%m-%d").wall, _read(pa.array(texts[3:9]), "%Y-%m-%d").wall
    )


def test_many_texts_of_different_lengths() -> None:
    days = [datetime(2000, 1, 1) + timedelta(minutes=1237 * number) for number in range(70_000 + 3)]
    texts = [day.strftime("%Y-%m-%dT%H:%M" if number % 3 else "%Y-%m-%d") for number, day in enumerate(days)]
    wall = _read(pa.array(texts), "%Y-%m-%d").wall
    whole = [day if number % 3 else day.replace(hour=0, minute=0) for number, day in enumerate(days)]
    expected = np.array(whole, "datetime64[s]").astype(np.int64)
    np.testing.assert_array_equal(wall, expected)


@pytest.mark.parametrize("form", [
    NumberFormat(), NumberFormat(","), NumberFormat(thousands=","), NumberFormat(",", "."), NumberFormat(unit="-1"),
])  # fmt: skip
def test_no_number_is_taken_for_a_date(form: NumberFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are skipped early, such as 2024-12-31, are not numbers by the patterns either."""
    random = np.random.default_rng(5)
    characters = np.array([*"0123456789-/:.,eE+() $\u2212\u200b'_"])
    drawn = random.choice(characters, (20_000, 7))
    texts = pa.array(["".join(row[:length]) for row, length in zip(drawn, random.integers(1, 8, 20_000), strict=True)])
    plain = form.plain(texts)
    assert plain.null_count < len(texts)
    monkeypatch.setattr(written_numbers, "DIVIDED", "$^x")
    assert form.plain(texts).equals(plain)
