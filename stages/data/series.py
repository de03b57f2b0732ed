"""Time series: the rows of a table in the order of their series and times, and windows of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from stages.data.columns import Rows, Streamed
from stages.data.frequency import Frequency, shown_time
from stages.data.planned import Key, State, state_of_small
from stages.data.splits import cut_by_time
from stages.data.table_source import ORDER, TableSource, named_splits, read_rows
from stages.data.tables import read_files
from stages.errors import UserError
from stages.features.kinds import NO_NUMBER
from stages.metrics.forecasts import BLOCKS, blocks_of
from stages.settings.series import SeriesSettings
from stages.settings.table_files import files_of

BOOLEANS = {"False": 0.0, "True": 1.0, "": np.nan}
"""Numbers for texts of truth values, as tables have them."""


@dataclass(frozen=True)
class Timeline:
    """The rows of a table in the order of their series and times, with the steps that the table lacks."""

    before: np.ndarray
    """The row of the table that each step has its values from, int64 [R]; for a filled step, the row before it."""
    after: np.ndarray
    """The row after a filled step, int64 [R]; else that of `before`."""
    part: np.ndarray
    """The position of a filled step between `before` and `after`, from 0 to 1, float64 [R]; else 0."""
    times: np.ndarray
    """float64 [R]."""
    series: np.ndarray
    """The number of the series of each step, int64 [R]."""
    splits: np.ndarray
    """The place in ORDER of the split of each step, int8 [R]."""
    frequency: Frequency
    is_date: bool
    fill: str
    """The way in which filled steps get their values; see `SeriesSettings`."""

    def __len__(self) -> int:
        return len(self.before)

    @property
    def is_filled(self) -> np.ndarray:
        """Whether the table lacks a step, bool [R]."""
        return self.part > 0

    def values(self, columns: Sequence[np.ndarray], in_memory: bool) -> Rows:
        """Return columns of the table by steps, float64 [R, columns], read at each use unless `in_memory`.

        Args:
            columns: Of the table, each float64 or int64 [N], with NO_NUMBER for a missing whole number.
            in_memory: Whether the columns are in memory.
        """

        def read(steps: Any) -> np.ndarray:
            found = np.empty((len(self.before[steps]), len(columns)))
            filled = np.flatnonzero(self.part[steps] > 0)
            for place, column in enumerate(columns):
                values = _as_numbers(column[self.before[steps]])
                if len(filled) and self.fill == "zero":
                    values[filled] = 0.0
                elif len(filled) and self.fill == "interpolate":
                    rest = _as_numbers(column[self.after[steps][filled]]) - values[filled]
                    values[filled] += self.part[steps][filled] * rest
                found[:, place] = values
            return found

        streamed = Streamed(read, (len(self), len(columns)), np.dtype(np.float64))
        return streamed[:] if in_memory else streamed


def _as_numbers(values: np.ndarray) -> np.ndarray:
    return np.where(values == NO_NUMBER, np.nan, values) if values.dtype.kind == "i" else np.array(values, np.float64)


@dataclass(frozen=True)
class Times:
    """The times of the rows of a table, and the series that they belong to."""

    values: np.ndarray
    """Numbers, or dates in seconds since 1970, float64 [N]."""
    is_date: bool
    series: np.ndarray
    """The number of the series of each row, int64 [N]."""
    names: Sequence[str]
    """The names of the series; a single empty one without `group`."""
    group: str | None
    """The column with the names."""
    numbers: np.ndarray
    """The number of each row in the table, from 0, int64 [N]."""
    table: str
    """The name of the table, for messages."""

    @classmethod
    def of(cls, source: TableSource, settings: SeriesSettings) -> "Times":
        """Return the times of a table."""
        assert settings.time is not None
        group = settings.group
        series = (
            np.zeros(len(source.numbers), np.int64) if group is None else np.asarray(source.arrays[group], np.int64)
        )
        names = [""] if group is None else source.texts[group]
        values = np.asarray(source.arrays[settings.time])
        return cls(values, _is_date(source, settings), series, names, group, source.numbers, source.name)

    def named(self, row: int) -> str:
        """Return the beginning of a message about the series of a row."""
        return f"{self.table}: {f'{self.group}={self.names[self.series[row]]} has ' if self.group else ''}"


def timeline(times: Times, splits: np.ndarray, fill: str, frequency: Frequency | None = None) -> Timeline:
    """Return the rows of a table in order.

    Args:
        times: The times of the rows.
        splits: The place in ORDER of the split of each row, int8 [N].
        fill: Handling of missing times; see `SeriesSettings`.
        frequency: The steps between times; None: these are found.

    Raises:
        UserError: If a time occurs twice in a series, times are irregular, or one is missing and `fill` is `fail`.
    """
    order = np.lexsort((times.values, times.series))
    values, series = times.values[order], times.series[order]
    is_next = np.diff(series) == 0
    same = np.flatnonzero(is_next & (np.diff(values) == 0))
    if len(same):
        place = int(same[0])
        first, second = sorted(int(times.numbers[order[row]]) + 1 for row in (place, place + 1))
        shown = shown_time(values[place], times.is_date)
        problem = f"{times.named(order[place])}the time {shown} twice, in rows {first:,} and {second:,}"
        fix = "" if times.group else "data.group=<column>"
        raise UserError(problem, "each time once in each series; data.group names the series of each row", fix)
    known = frequency or Frequency.of(values, series, times.is_date)
    if known is None or not known.fits(values):
        shown = " and ".join(shown_time(float(value), times.is_date) for value in values[:2])
        steps = f"rows {frequency.described}, as in training" if frequency else "one row per day, hour or month"
        raise UserError(
            f"{times.named(order[0])}times at irregular steps, such as {shown}", f"equal steps, such as {steps}"
        )
    places = known.places(values)
    jumps = np.flatnonzero(is_next & (np.diff(places) > 1))
    if len(jumps) and fill == "fail":
        place = int(jumps[0])
        missing = shown_time(float(known.times(places[place : place + 1] + 1)[0]), times.is_date)
        count = int((np.diff(places)[jumps] - 1).sum())
        are_missing = f"{count:,} are missing" if count > 1 else "no other is missing"
        problem = f"{times.named(order[place])}no row for {missing} (rows are {known.described}; {are_missing})"
        raise UserError(problem, "a row for each step, or data.fill", "data.fill=previous")
    counts = np.ones(len(order), np.int64)
    counts[jumps] = np.diff(places)[jumps]
    before = np.repeat(np.arange(len(order)), counts)
    offset = np.arange(len(before)) - np.repeat(counts.cumsum() - counts, counts)
    after = np.where(offset > 0, np.minimum(before + 1, len(order) - 1), before)
    splits = splits[order]
    # Across the border of two splits, the values of the later one must not be used.
    after = np.where(splits[after] == splits[before], after, before)
    filled_times = np.where(offset > 0, known.times(places[before] + offset), values[before])
    return Timeline(
        before=order[before],
        after=order[after],
        part=offset / counts[before],
        times=filled_times,
        series=series[before],
        splits=splits[before],
        frequency=known,
        is_date=times.is_date,
        fill=fill,
    )


def rows_of_splits(source: TableSource, settings: SeriesSettings) -> dict[str, np.ndarray]:
    """Return the rows of each split, int64 in order. Splits that are not named are the last rows by time.

    If its fraction is not set, such a split has as many windows as steps to predict, or a quarter of the steps.
    """
    rows = named_splits(source, settings.table)
    times = np.asarray(source.arrays[str(settings.time)])
    steps = np.unique(times[rows["train"]])
    frequency = Frequency.of(steps, np.zeros(len(steps), np.int64), _is_date(source, settings))
    needed = min(_wanted_window(settings, frequency) + 2 * max(settings.horizon, 1) - 1, max(len(steps) // 4, 1))
    for name, given in {"test": settings.test_fraction, "val": settings.val_fraction}.items():
        if name not in rows:
            left = times[rows["train"]]
            last = np.unique(left)[-needed:][0]
            fraction = given or max(settings.held_out[name], float(np.mean(left >= last)))
            rows |= cut_by_time(times, rows["train"], {name: fraction})
    return rows


def _is_date(source: TableSource, settings: SeriesSettings) -> bool:
    return next(column.note for column in source.columns if column.name == settings.time) != "number"


def _wanted_window(settings: SeriesSettings, frequency: Frequency | None) -> int:
    """Return the number of past steps of a window that is set, or that long splits would have."""
    season = settings.season or (frequency.season if frequency else 1)
    return settings.window or max(3 * max(settings.horizon, 1), 2 * season)


@dataclass(frozen=True)
class Windows:
    """The windows of each split. No step is in windows of two splits."""

    timeline: Timeline
    window: int
    horizon: int
    season: int
    starts: Mapping[str, np.ndarray]
    """The first step of each window of a split, int64."""
    are_classes: bool = False
    """Whether the target is the class `horizon` steps after a window, and not the next values."""

    @property
    def length(self) -> int:
        """The number of steps of a window and of what follows it."""
        return self.window + self.horizon

    def first(self, starts: np.ndarray) -> np.ndarray:
        """Return the first step, or the only one, that each window predicts, int64 [N]."""
        return starts + (self.length - 1 if self.are_classes else self.window)

    def blocks(self, starts: np.ndarray) -> np.ndarray:
        """Return the block of time of each window, int64 [N]. Blocks of different splits have different numbers.

        Args:
            starts: The first step of each window.
        """
        line = self.timeline
        first = self.first(starts)
        places, splits = line.frequency.places(line.times[first]), line.splits[first]
        found = np.zeros(len(starts), np.int64)
        for split in np.unique(splits):
            rows = splits == split
            found[rows] = blocks_of(places[rows], max(self.horizon, 1)) + BLOCKS * split
        return found

    @property
    def described(self) -> str:
        """The windows of all splits, as a line."""
        counts = ", ".join(f"{len(starts):,} {name}" for name, starts in self.starts.items())
        series = len(np.unique(self.timeline.series))
        of_series = f" of {series:,} series" if series > 1 else ""
        filled = int(self.timeline.is_filled.sum())
        return (
            f"{len(self.timeline):,} steps{of_series}, {self.timeline.frequency.described}"
            f"{f' ({filled:,} filled)' if filled else ''}; windows of {self.window} + {self.horizon} steps: {counts}"
        )


def windows_of(source: TableSource, settings: SeriesSettings, splits: np.ndarray) -> Windows:
    """Return the windows of a table.

    Args:
        source: The table, with the columns of the times and of the series.
        settings: The settings.
        splits: The place in ORDER of the split of each row, int8 [N].

    Raises:
        UserError: If the rows cannot be ordered, or a split is shorter than a window with its horizon.
    """
    line = timeline(Times.of(source, settings), splits, settings.fill)
    by_frequency, horizon = line.frequency.season, settings.horizon
    is_end = np.append((np.diff(line.series) != 0) | (np.diff(line.splits) != 0), True)
    ends = np.flatnonzero(is_end)
    lengths = np.diff(np.append(-1, ends))
    of_splits = {name: int(lengths[line.splits[ends] == place].max()) for place, name in enumerate(ORDER)}
    shortest, most = min(of_splits.items(), key=lambda split: split[1])
    room = most - horizon
    window = settings.window or min(_wanted_window(settings, line.frequency), max(room - horizon + 1, room // 2, 1))
    season = settings.season or (by_frequency if by_frequency <= window else 1)
    if season > window:
        problem = f"data.season={season} is longer than the window of {window} steps"
        raise UserError(problem, "a window of at least one season", f"data.season={window}")
    rest = ends[np.searchsorted(ends, np.arange(len(line)))] - np.arange(len(line)) + 1 - window - horizon
    firsts = np.flatnonzero((rest >= 0) & (rest % settings.stride == 0))
    if settings.fill == "interpolate":  # the last steps of a window in a gap would tell the value behind the gap
        firsts = firsts[~line.is_filled[firsts + window - 1]]
    starts = {name: firsts[line.splits[firsts] == place] for place, name in enumerate(ORDER)}
    if not all(map(len, starts.values())):
        problem = (
            f"{source.name}: the {shortest} split has at most {most:,} steps of a series, but data.window={window} and "
            f"data.horizon={horizon} need {window + horizon:,}"
        )
        expected = "a shorter window and horizon, or a larger fraction of the rows"
        shorter = f"data.window={most - most // 2} data.horizon={most // 2}" if most > 1 else ""
        raise UserError(problem, expected, f"data.window={most - horizon}" if most > horizon else shorter)
    return Windows(line, window, horizon, season, starts, settings.predicts_classes)


def planned(settings: SeriesSettings) -> Windows | None:
    """Return the windows of a table, from its times, series and targets only; None if it has no files, or large ones.

    Raises:
        UserError: If the rows cannot be read or ordered, or a split is too short.
    """
    if not settings.is_of_files:
        return None
    settings = settings.of_files()
    state = state_of_small(files_of(settings.files))
    return None if state is None else _planned(state, Key(settings))


@lru_cache(maxsize=64)  # jobs of a sweep share their table
def _planned(state: State, key: Key[SeriesSettings]) -> Windows:
    table = replace(key.of.table, features=[])
    rows = read_files(table.header, table)
    source = read_rows(rows, table, partial(rows_of_splits, settings=key.of))
    return windows_of(source, key.of, source.splits)
