"""Windows of time series: numbers by steps, [steps, channels], and the times of the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column, Gathered, Rows, Streamed, evenly_spread
from stages.errors import UserError
from stages.features.dates import DAY, YEAR, Calendar
from stages.features.kinds import BLOCK, ROWS, Encoded, Feature, means_of
from stages.features.numbers import (
    VALUES,
    Moments,
    describe_numbers,
    moments_of,
    refuse_overflow,
    standardized,
    values_for_statistics,
)

if TYPE_CHECKING:
    from stages.data.split import Split
    from stages.settings.data import NormalizeSettings

KNOWN, TIME = "known", "time"
"""Names of the features of a window besides its past: columns that are known in advance, and the times of all steps."""

MOST_PLAIN = 400
"""Number of columns of a window, about, for a model without steps."""

DAYS = {"year": 366, "month": 12 * 35}
"""Number of places of a day in the year, in which February always has 29 days, and as a weekday of a month, such as the
fourth Thursday in November. Holidays have a place of their own in one of them."""

WAVES, PLACES_OF_DAYS = slice(-len(DAYS)), slice(-len(DAYS), None)
"""The channels of a calendar with `has_days`: sines and cosines, and a place for each of DAYS."""

YEARS_FOR_DAYS = 4
"""Minimum number of years of training times from which something can be learned about a single day of the year."""

REPEATS = 2
"""Minimum number of times that training has to see a period: otherwise, later places in it are new to the network."""

HARMONICS = 3
"""Number of sines and cosines for a period: they tell seven weekdays apart."""


@dataclass(frozen=True)
class StepFeature(Feature):
    """Values of several steps, from which the encoder makes numbers by steps."""

    unit: ClassVar[str] = "windows"


@dataclass(frozen=True)
class WindowFeature(StepFeature):
    """Numbers of several steps and channels; nan if one is missing."""

    kind: ClassVar[str] = "window"

    shape: tuple[int, ...] = (0, 0)
    """Steps and channels."""
    channels: tuple[str, ...] = ()
    """The names of the channels."""
    dtype: str = "float64"
    elements: tuple[Moments, ...] | None = None
    """The statistics of each channel."""
    targets: int = 0
    """Number of the first channels whose next values are predicted."""

    @property
    def block(self) -> int:  # type: ignore[override]
        """See `Feature`: long windows take much memory."""
        return max(1, BLOCK * 64 // math.prod(self.shape))

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        elements = tuple(moments_of_channels(column))
        for channel, moments in zip(self.channels, elements, strict=True):
            refuse_overflow(channel, [moments])
        return replace(self, elements=elements)

    def encode(self, values: Any) -> Encoded:
        from keras import ops  # seconds, which commands without TensorFlow must not wait for

        assert self.elements is not None
        parts = [ops.cast(part, "float32") for part in standardized(values, self.elements)]
        return Encoded(steps=parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1))

    def order_of(self, trained: WindowFeature, where: str) -> list[int | None]:
        """Return the place of each channel of a trained feature among its own ones; None for a class without rows.

        Args:
            trained: The feature of the training.
            where: The name of the data set, for messages.

        Raises:
            UserError: If a channel is missing, or windows have a different length.
        """
        if self.shape[0] != trained.shape[0]:
            problem = f"{where} has windows of {self.shape[0]} steps, unlike the {trained.shape[0]} in training"
            raise UserError(problem, "windows of the same length (data.window)")
        places: dict[str, int | None] = {channel: place for place, channel in enumerate(self.channels)}
        past = {channel.rpartition("=")[0] for channel in self.channels if "=" in channel}
        for channel in trained.channels:
            if "=" in channel and channel.rpartition("=")[0] in past:
                places.setdefault(channel, None)
            if channel not in places:
                problem = f"{where} has no column {channel} that can be used, unlike in training"
                raise UserError(problem, f"the columns {', '.join(trained.channels)}, in any order")
        return [places[channel] for channel in trained.channels]

    def measured(self, column: Column) -> np.ndarray:
        """Return the last value of the first channel, as the mean of a window depends on trends much more."""
        rows = evenly_spread(column.shape[0], ROWS)
        size = BLOCK // column.shape[1] + 1
        parts = [column[rows[start : start + size]][:, -1, 0] for start in range(0, len(rows), size)]
        return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)

    @property
    def plain_columns(self) -> int:
        steps, channels = self.shape
        return min(steps, MOST_PLAIN // channels + 1) * channels

    def plain(self, values: np.ndarray) -> np.ndarray:
        """Return all values of a window; of a long one the means of its channels in parts of nearly equal length."""
        count = self.plain_columns // self.shape[1]
        ends = np.linspace(0, self.shape[0], count + 1).astype(np.int64)
        sums = np.add.reduceat(values.astype(np.float64), ends[:-1], axis=1)
        return np.asarray((sums / np.diff(ends)[:, np.newaxis]).reshape(len(values), -1))

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        values = values_for_statistics(split, name)
        return [
            (channel, self.kind, float(np.isnan(part).mean()), *describe_numbers(part), "", "")
            for channel, part in zip(self.channels, np.moveaxis(values, -1, 0), strict=True)
        ]

    @property
    def known(self) -> dict[str, Any]:
        learned = {} if self.elements is None else {"elements": [asdict(element) for element in self.elements]}
        return {"channels": list(self.channels), "targets": self.targets, **learned}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        elements = tuple(Moments(**element) for element in values["elements"]) if "elements" in values else None
        shape, channels = tuple(values.get("shape", (0, 0))), tuple(values.get("channels", ()))
        return cls(shape, channels, values.get("dtype", "float64"), elements, values.get("targets", 0), **common)


def channels_in_order(rows: Rows, order: Sequence[int | None]) -> Rows:
    """Return values with other channels: for each, its place in the last axis of `rows`; 0 for None."""

    def arranged(values: np.ndarray) -> np.ndarray:
        found = np.zeros((*values.shape[:-1], len(order)), values.dtype)
        for place, own in enumerate(order):
            if own is not None:
                found[..., place] = values[..., own]
        return found

    if isinstance(rows, np.ndarray):
        return arranged(rows)
    return Streamed(lambda some: arranged(rows[some]), (*rows.shape[:-1], len(order)), rows.dtype)


def moments_of_channels(column: Column) -> list[Moments]:
    """Return the statistics of each channel of windows, [N, steps, channels].

    Gathered windows count each row once; of others, some are used if there are many.
    """
    if isinstance(column, Gathered):
        rows = column.covered
        return moments_of(np.asarray(column.rows[rows[evenly_spread(len(rows), VALUES)]]))
    some = evenly_spread(column.shape[0], max(1, VALUES // math.prod(column.shape[1:])))
    return moments_of(np.asarray(column[some]).reshape(-1, column.shape[-1]))


@dataclass(frozen=True)
class CalendarFeature(StepFeature):
    """The times of several steps, in seconds since 1970, which the encoder turns into their places in the calendar.

    These are sines and cosines of periods, and the places of days if training is long enough to learn about a day.
    """

    kind: ClassVar[str] = "calendar"

    shape: tuple[int, ...] = (0,)
    periods: tuple[float, ...] = ()
    """The periods in seconds, such as those of a day, a week and a year."""
    dtype: str = "int64"
    span: float = 0.0
    """The time from the first to the last step of training, in seconds."""

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        times = np.asarray(column.rows[column.covered] if isinstance(column, Gathered) else column[:])
        return replace(self, span=float(times.max() - times.min()))

    @property
    def repeated(self) -> tuple[float, ...]:
        """The periods that training sees repeatedly; the shortest one if it sees none so."""
        return tuple(one for one in self.periods if self.span >= REPEATS * one) or self.periods[:1]

    @property
    def has_days(self) -> bool:
        """Whether the tensor has the channels PLACES_OF_DAYS."""
        return YEAR in self.periods and DAY * 7 in self.periods and self.span >= YEARS_FOR_DAYS * YEAR

    def with_bins(self, column: Column) -> Self:
        """Return the feature without a distribution, as later data always has later times."""
        return self

    def encode(self, values: Any) -> Encoded:
        """Return sines and cosines of each repeated period and its harmonics, and places of days from 0 to 1.

        The part of a period is computed in float64, so that all seconds since 1970 have the same precision.

        Returns:
            float32 [b, steps, 2 * HARMONICS * periods], or with `has_days` [b, steps, … + DAYS], see WAVES.
        """
        from keras import ops

        seconds = ops.expand_dims(ops.cast(values, "float64"), -1)
        periods = np.array(self.repeated, np.float64)
        turns = ops.expand_dims(ops.mod(seconds, periods) / periods, -1)
        angles = turns * (2 * np.pi * np.arange(1, HARMONICS + 1, dtype=np.float64))
        both = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
        waves = ops.reshape(ops.cast(both, "float32"), (-1, self.shape[0], 2 * HARMONICS * len(periods)))
        if not self.has_days:
            return Encoded(steps=waves)
        day = Calendar.of(values)
        later = ops.where(day.month > 2, 366 - day.days_of_year, 0)
        of_month = (day.month - 1) * 35 + ops.floor_divide(day.day - 1, 7) * 7 + day.weekday
        places = zip((day.day_of_year + later, of_month), DAYS.values(), strict=True)
        parts = [ops.cast(ops.cast(place, "float64") / count, "float32") for place, count in places]
        return Encoded(steps=ops.concatenate([waves, ops.stack(parts, axis=-1)], axis=-1))

    @property
    def plain_columns(self) -> int:
        return len(self.periods)

    def plain(self, values: np.ndarray) -> np.ndarray:
        """Return the place of the last step in each period."""
        return values[:, -1:].astype(np.float64) % np.array(self.periods)

    def measured(self, column: Column) -> np.ndarray:
        return means_of(column)

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        ends = np.asarray(split.features[name][evenly_spread(len(split), 2)])
        low, high = (str(np.datetime64(int(end), "s")) for end in (ends.min(), ends.max()))
        return [self._row(name, 0.0, "", "", low, high, "", "")]

    @property
    def known(self) -> dict[str, Any]:
        return {"periods": list(self.periods), "span": self.span}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        shape, periods = tuple(values.get("shape", (0,))), tuple(values.get("periods", ()))
        return cls(shape, periods, values.get("dtype", "int64"), values.get("span", 0.0), **common)
