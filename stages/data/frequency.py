"""Equal steps between times: seconds, days without weekends, months, or numbers."""

from dataclasses import dataclass

import numpy as np

from stages.features.dates import DAY, YEAR

WEEKDAYS = 5
"""Days of a week of work, Monday to Friday."""

FIRST_WEEKDAY = 3
"""Weekday of 1970-01-01, a Thursday; Monday is 0."""

MONTHS = {1: (28, 31), 2: (59, 62), 3: (89, 92), 6: (181, 184), 12: (365, 366)}
"""Possible numbers of days between times that are some months apart."""

SEASONS = {1: 12, 2: 6, 3: 4, 6: 2, 12: 1}
"""Steps in a year, by the months of a step."""

ALIKE = 1e-6
"""Tolerance of differences between times, in steps."""


@dataclass(frozen=True)
class Frequency:
    """The steps between times."""

    unit: str
    """`number`, `seconds`, `weekdays` (days without weekends) or `months`."""
    step: float
    """The number of units in a step; 1 for weekdays."""
    origin: float
    """A time on the grid; for months, the time since the beginning of its month."""
    is_last_day: bool = False
    """Whether times are on the last day of their month, for months."""
    phase: int = 0
    """The first month of a step, for months: 1 for quarters that begin in February."""

    @classmethod
    def of(cls, times: np.ndarray, series: np.ndarray, is_date: bool) -> "Frequency | None":
        """Return the frequency of times; None if they are irregular.

        Args:
            times: Of rows in the order of their series and times, in seconds for dates, float64 [R].
            series: The series of each row, int64 [R].
            is_date: Whether times are dates.
        """
        differences = np.diff(times)[np.diff(series) == 0]
        if not len(differences):
            return cls("seconds" if is_date else "number", float(DAY) if is_date else 1.0, float(times[0]))
        values, counts = np.unique(differences, return_counts=True)
        step = float(values[counts.argmax()])
        candidates = [cls("seconds" if is_date else "number", step, float(times[0]))]
        if is_date and step == DAY and (_weekdays(times) < WEEKDAYS).all() and values[-1] >= 3 * DAY:
            candidates.insert(0, cls("weekdays", 1, float(times[0] % DAY)))
        if is_date:
            days = round(step / DAY)
            months = next((count for count, (low, high) in MONTHS.items() if low <= days <= high), None)
            offsets = times - _month_starts(_months(times))
            is_last = bool((_months(times + DAY) > _months(times)).all())
            if months is not None:
                at = float(offsets[0] % DAY if is_last else offsets[0])
                candidates.append(cls("months", months, at, is_last, int(_months(times)[0]) % months))
        return next((one for one in candidates if one.fits(times)), None)

    def fits(self, times: np.ndarray) -> bool:
        """Return whether all times are on the grid."""
        return bool((np.abs(self.times(self.places(times)) - times) <= ALIKE * self._scale).all())

    @property
    def _scale(self) -> float:
        return self.step if self.unit in ("number", "seconds") else DAY

    def places(self, times: np.ndarray) -> np.ndarray:
        """Return the steps from the origin to the nearest times on the grid, int64."""
        if self.unit == "months":
            return _months(times) // int(self.step)
        if self.unit == "weekdays":
            days = np.floor(times / DAY).astype(np.int64) + FIRST_WEEKDAY
            return days // 7 * WEEKDAYS + np.minimum(days % 7, WEEKDAYS)
        return np.rint((times - self.origin) / self.step).astype(np.int64)

    def times(self, places: np.ndarray) -> np.ndarray:
        """Return the times at steps from the origin, float64."""
        if self.unit == "months":
            months = places * int(self.step) + self.phase
            if self.is_last_day:
                return _month_starts(months + 1) - DAY + self.origin
            return _month_starts(months) + self.origin
        if self.unit == "weekdays":
            return (places // WEEKDAYS * 7 + places % WEEKDAYS - FIRST_WEEKDAY) * DAY + self.origin
        return self.origin + places * self.step

    @property
    def season(self) -> int:
        """The number of steps after which values repeat by default: a day, a week or a year; 1 if there is none."""
        if self.unit == "months":
            return SEASONS[int(self.step)]
        if self.unit == "weekdays":
            return WEEKDAYS
        if self.unit == "number":
            return 1
        for length in (DAY, 7 * DAY, 364 * DAY):  # 52 weeks
            steps = length / self.step
            if steps >= 2 and steps == round(steps):
                return int(steps)
        return 1

    @property
    def periods(self) -> tuple[float, ...]:
        """The periods of the calendar that steps of this length can tell apart, in seconds: day, week, year."""
        seconds = {"months": 28 * DAY * self.step, "weekdays": DAY, "number": np.inf}.get(self.unit, self.step)
        return tuple(float(period) for period in (DAY, 7 * DAY, YEAR) if seconds <= period / 2)

    @property
    def described(self) -> str:
        """The step in words."""
        if self.unit in ("number", "weekdays"):
            return f"every {self.step:g}" if self.unit == "number" else "every weekday"
        if self.unit == "months":
            return f"every {int(self.step)} months" if self.step > 1 else "every month"
        for unit, seconds in {"day": DAY, "hour": 3600.0, "minute": 60.0, "second": 1.0}.items():
            if self.step % seconds == 0:
                count = int(self.step / seconds)
                return f"every {count} {unit}s" if count > 1 else f"every {unit}"
        return f"every {self.step:g} seconds"


def _months(times: np.ndarray) -> np.ndarray:
    """Return months since 1970, int64."""
    return times.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)


def _month_starts(months: np.ndarray) -> np.ndarray:
    """Return the times at which months since 1970 begin, float64."""
    return months.astype("datetime64[M]").astype("datetime64[s]").astype(np.float64)


def _weekdays(times: np.ndarray) -> np.ndarray:
    return (np.floor(times / DAY) + FIRST_WEEKDAY) % 7


def shown_time(time: float, is_date: bool) -> str:
    """Return a time as users write it."""
    if not is_date:
        return f"{time:.10g}"
    text = str(np.datetime64(round(time), "s"))
    return text.removesuffix("T00:00:00").replace("T", " ")
