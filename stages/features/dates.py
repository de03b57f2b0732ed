"""Dates: seconds since 1970, which the encoder standardizes, and divides into years, months, weeks and days."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column, Streamed
from stages.features.kinds import BLOCK
from stages.features.numbers import NumberFeature, values_for_statistics

if TYPE_CHECKING:
    from stages.data.split import Split
    from stages.settings.data import NormalizeSettings

DAY = 86_400
"""Seconds of a day."""

YEAR = 365.2425 * DAY
"""Seconds of a mean year."""

FIRST, LAST = -62_135_596_800, 253_402_300_799
"""The first second of the year 1, and the last one of the year 9999."""

CYCLES = ("year", "month", "week", "day")
"""Periods of the calendar, in which a date has a place."""


@dataclass(frozen=True)
class Calendar:
    """Parts of dates in the Gregorian calendar, whole numbers [b]."""

    year: Any
    month: Any
    """From 1 to 12."""
    day: Any
    """The day of the month, from 1."""
    weekday: Any
    """From 0, Monday, to 6."""
    second: Any
    """The second of the day, from 0."""
    day_of_year: Any
    """From 0."""
    days_of_month: Any
    days_of_year: Any

    @classmethod
    def of(cls, seconds: Any) -> Calendar:
        """Return the parts of dates, by operations of Keras on whole numbers, which are exact on any device.

        Source: Howard Hinnant, chrono-compatible low-level date algorithms, `civil_from_days`.

        Args:
            seconds: Seconds since 1970-01-01, int64 [b].
        """
        from keras import ops  # seconds, which commands without TensorFlow must not wait for

        days = ops.floor_divide(seconds, DAY)
        since = days + 719_468  # of 0000-03-01: a leap day is the last day of a year
        era = ops.floor_divide(since, 146_097)
        of_era = since - era * 146_097
        leaps = ops.floor_divide(of_era, 1_460) - ops.floor_divide(of_era, 36_524) + ops.floor_divide(of_era, 146_096)
        year_of_era = ops.floor_divide(of_era - leaps, 365)
        quarter, century = ops.floor_divide(year_of_era, 4), ops.floor_divide(year_of_era, 100)
        from_march = of_era - (365 * year_of_era + quarter - century)
        place = ops.floor_divide(5 * from_march + 2, 153)
        day = from_march - ops.floor_divide(153 * place + 2, 5) + 1
        month = ops.mod(place + 2, 12) + 1
        year = year_of_era + 400 * era + _whole(month <= 2)
        before = year - 1
        fours, hundreds, fours_of_these = (ops.floor_divide(before, years) for years in (4, 100, 400))
        first = 365 * before + fours - hundreds + fours_of_these - 719_162
        leap = _whole(ops.equal(ops.mod(year, 4), 0)) - _whole(ops.equal(ops.mod(year, 100), 0))
        leap += _whole(ops.equal(ops.mod(year, 400), 0))
        length = 30 + ops.mod(month + ops.floor_divide(month, 8), 2) - _whole(ops.equal(month, 2)) * (2 - leap)
        weekday = ops.mod(days + 3, 7)
        return cls(year, month, day, weekday, seconds - days * DAY, days - first, length, 365 + leap)

    def places(self) -> dict[str, Any]:
        """Return the place in each of the CYCLES, float64 [b], from 0 to less than 1."""
        parts = {
            "year": (self.day_of_year, self.days_of_year),
            "month": (self.day - 1, self.days_of_month),
            "week": (self.weekday, 7),
            "day": (self.second, DAY),
        }
        return {name: _float64(part) / _float64(length) for name, (part, length) in parts.items()}


def _whole(condition: Any) -> Any:
    from keras import ops

    return ops.cast(condition, "int64")


def _float64(values: Any) -> Any:
    from keras import ops

    return float(values) if isinstance(values, int) else ops.cast(values, "float64")


def _calendar_of(values: Any) -> tuple[Calendar, Any]:
    """Return the calendar of seconds, float64 [b], and which are missing."""
    from keras import ops

    is_missing = ops.isnan(values)
    known = ops.clip(ops.where(is_missing, 0.0, values), float(FIRST), float(LAST))
    return Calendar.of(ops.cast(ops.floor(known), "int64")), is_missing


def _span_of(column: Column) -> tuple[float, float] | None:
    """Return the first and the last date of a column; None if all are missing."""
    blocks = (np.asarray(column[start : start + BLOCK]) for start in range(0, column.shape[0], BLOCK))
    known = [block[~np.isnan(block)] for block in blocks]
    ends = [(float(block.min()), float(block.max())) for block in known if len(block)]
    return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None


@dataclass(frozen=True)
class DateFeature(NumberFeature):
    """A date, in seconds since 1970-01-01 in the time zone of its column; nan if it is missing.

    The encoder standardizes it as a number, and its places in some periods of the calendar, too, each also as a sine
    and a cosine.
    """

    kind: ClassVar[str] = "date"

    date_format: str = ""
    time_zone: str = ""
    """The notation of the dates in training, see `stages.settings.date_formats.DateFormat`."""
    cycles: Mapping[str, NumberFeature] = field(default_factory=dict)
    """The CYCLES in which training dates have several places, such as `day` if they have times; each as a number."""
    span: tuple[float, float] | None = None
    """The first and the last date in training. Other dates have the days of these, which no network has to
    extrapolate; None in models of earlier versions."""

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        cycles = {}
        for place, cycle in enumerate(CYCLES):
            values = Streamed(partial(self._places, column, place), column.shape, np.float64)
            learned = NumberFeature().learn(f"{name} ({cycle})", values, settings)
            assert learned.moments is not None
            if learned.moments.std != 1:  # which a constant has, and no place from 0 to 1
                cycles[cycle] = replace(learned, moments=replace(learned.moments, has_missing=False))
        return replace(super().learn(name, column, settings), cycles=cycles, span=_span_of(column))

    def _places(self, column: Column, cycle: int, rows: Any) -> np.ndarray:
        return self.plain(column[rows])[:, 1 + cycle]

    @property
    def parts(self) -> Mapping[str, NumberFeature]:
        return {**super().parts, **self.cycles}

    def part_values(self, values: Any) -> list[Any]:
        from keras import ops

        since = values
        if self.span is not None:
            since = ops.where(ops.isnan(values), values, ops.clip(values, *self.span))
        if not self.cycles:
            return [since]
        calendar, is_missing = _calendar_of(values)
        places = calendar.places()
        return [since, *(ops.where(is_missing, np.nan, places[cycle]) for cycle in self.cycles)]

    def more_columns(self, parts: Sequence[Any]) -> list[Any]:
        """Return a sine and a cosine for each cycle, float64 [b, 2k]; 0 for a missing date."""
        from keras import ops

        if not self.cycles:
            return []
        angles = 2 * math.pi * ops.stack(parts[1:], axis=-1)
        waves = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
        return [ops.where(ops.isnan(waves), 0.0, waves)]

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        values = values_for_statistics(split, name)
        known = values[~np.isnan(values)]
        row: Sequence[str] = ("",) * 4
        if len(known):
            mean, low, high = (self.shown(value) for value in (known.mean(), known.min(), known.max()))
            row = (mean, f"{known.std() / DAY:.6g} days", low, high)
        return [self._row(name, float(np.isnan(values).mean()), *row, "", "")]

    def shown(self, value: float) -> str:
        text = str(np.datetime64(round(min(max(value, FIRST), LAST)), "s"))
        return text.removesuffix("T00:00:00").replace("T", " ")

    @property
    def plain_columns(self) -> int:
        return 1 + len(CYCLES)

    def plain(self, values: np.ndarray) -> np.ndarray:
        calendar, is_missing = _calendar_of(np.asarray(values, np.float64))
        parts = [np.asarray(part, np.float64) for part in calendar.places().values()]
        return np.column_stack([values, *(np.where(is_missing, np.nan, part) for part in parts)])

    @property
    def known(self) -> dict[str, Any]:
        written = {"date_format": self.date_format, "time_zone": self.time_zone}
        span = {} if self.span is None else {"span": list(self.span)}
        return {**super().known, **written, **span, "cycles": {name: one.known for name, one in self.cycles.items()}}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        number = NumberFeature.of_json(values, **common)
        date_format, time_zone = (str(values.get(name, "")) for name in ("date_format", "time_zone"))
        cycles = {name: NumberFeature.of_json(one) for name, one in values.get("cycles", {}).items()}
        learned = number.moments, number.edges
        span = (float(values["span"][0]), float(values["span"][1])) if "span" in values else None
        return cls(number.dtype, *learned, date_format, time_zone, cycles, span, **common)
