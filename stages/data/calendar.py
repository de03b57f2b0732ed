"""The Gregorian calendar: seconds since 1970 from years, months, days and times."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.features.dates import DAY

LENGTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
"""Days of each month; 29 in February of a leap year."""


@dataclass(frozen=True)
class Moment:
    """Parts of dates and times, whole numbers or int64 [n] each; the fraction of a second may be float64 [n]."""

    year: Any = 1970
    month: Any = 1
    day: Any = 1
    hour: Any = 0
    minute: Any = 0
    second: Any = 0
    fraction: Any = 0.0


def seconds_at(at: Moment) -> np.ndarray:
    """Return seconds since 1970-01-01, float64 [n]; nan for a day or a time that does not exist.

    24:00 is the end of a day. Months and days count from 1.
    """
    is_midnight = (at.hour == 24) & (at.minute == 0) & (at.second == 0) & (at.fraction == 0)
    is_time = ((at.hour < 24) | is_midnight) & (at.minute < 60) & (at.second < 60)
    is_leap = (at.year % 4 == 0) & ((at.year % 100 != 0) | (at.year % 400 == 0))
    is_month = (at.month >= 1) & (at.month <= 12)
    length = LENGTHS[np.where(is_month, at.month, 1) - 1] + (is_leap & (at.month == 2))
    is_day = is_month & (at.year >= 1) & (at.day >= 1) & (at.day <= length)
    seconds = DAY * days_of(at.year, at.month, at.day) + 3600 * at.hour + 60 * at.minute + at.second + at.fraction
    return np.where(is_day & is_time, seconds, np.nan)


def days_of(year: Any, month: Any, day: Any) -> Any:
    """Return days since 1970-01-01 in the Gregorian calendar, int64 [n].

    Source: Howard Hinnant, chrono-compatible low-level date algorithms, `days_from_civil`.
    """
    year = year - (month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
