"""The latest window of each series in a table, from which an exported model forecasts the next values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from stages.data.frequency import Frequency, shown_time
from stages.data.series import BOOLEANS, Times, timeline
from stages.data.tables import NUMBERS, Rows, Typed, read
from stages.errors import UserError
from stages.features.kinds import HISTORY


@dataclass(frozen=True)
class WindowReading:
    """Facts for making windows of further rows as in training. They are saved with exported models."""

    window: int
    horizon: int
    targets: tuple[str, ...]
    channels: Mapping[str, tuple[str, ...]]
    """The columns of `history`, and of `known` if there are any."""
    booleans: tuple[str, ...]
    """The columns of truth values among these."""
    time: str
    calendar: str | None
    """The feature with the times of all steps, if there is one."""
    group: str | None
    series: str | None
    """The feature with the name of the series, if there is one."""
    is_date: bool
    fill: str
    frequency: Frequency
    past: tuple[str, ...] = ()
    """The first channels of `history` that are the past of a class, such as `state=on`."""
    are_classes: bool = False
    """Whether the target is the class `horizon` steps after a window, and not the next values."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the facts that `to_json` has written."""
        return cls(**{**values, "frequency": Frequency(**values["frequency"])})

    @property
    def columns(self) -> list[str]:
        """The columns that a table must have."""
        group = [*([self.group] if self.group else []), *(self.targets if self.past else ())]
        return [self.time, *group, *(column for columns in self.channels.values() for column in columns)]


@dataclass(frozen=True)
class Latest:
    """The latest windows of a table."""

    arguments: Mapping[str, np.ndarray]
    """The features of the windows by name, [N, ...]."""
    names: list[str]
    """The names of the series."""
    times: list[list[str]]
    """The times of the predicted steps of each series."""


def latest_windows(rows: Rows, reading: WindowReading) -> Latest:
    """Return the window of each series that ends with the last row that has values of the targets.

    Rows behind it, without targets, have the values of columns that are known in advance.

    Raises:
        UserError: If a value cannot be read, a series is too short, or a value of a target or one that must be known
            is missing.
    """
    typed = [Typed(reading.time, "date" if reading.is_date else "number", True)]
    typed += [Typed(reading.group, "category", True)] if reading.group else []
    numbers = [column for columns in reading.channels.values() for column in columns]
    typed += [Typed(name, "category" if name in reading.booleans else "number") for name in numbers]
    typed += [Typed(name, "category") for name in (reading.targets if reading.past else ())]
    arrays, texts, _ = read(rows, typed, "fail")
    for name in reading.booleans:
        arrays[name] = np.array([BOOLEANS.get(text, np.nan) for text in texts[name]])[arrays[name]]
    series = arrays[reading.group].astype(np.int64) if reading.group else np.zeros(len(rows), np.int64)
    names = texts[reading.group] if reading.group else [""]
    times = Times(arrays[reading.time], reading.is_date, series, names, reading.group, arrays[NUMBERS], rows.name)
    line = timeline(times, np.zeros(len(rows), np.int8), reading.fill, reading.frequency)
    values = {
        feature: np.asarray(line.values([arrays[name] for name in columns], True))
        for feature, columns in reading.channels.items()
    }
    targets = values[HISTORY][:, : len(reading.targets)]
    if reading.past:
        targets = np.asarray(line.values(_past(reading, arrays, texts), True))
        values[HISTORY] = np.concatenate([targets, values[HISTORY]], axis=1)
    elif reading.are_classes:
        targets = np.where(np.isnan(values[HISTORY]).all(axis=1, keepdims=True), np.nan, 0.0)
    found: dict[str, list[Any]] = {feature: [] for feature in values}
    steps, ends = [], []
    for code in np.unique(series):
        places = np.flatnonzero(line.series == code)
        where = times.named(int(line.before[places[0]]))
        last = _last(targets, places, reading, where)
        for feature, column in values.items():
            end = last + 1 if feature == HISTORY else last + 1 + reading.horizon
            if end > places[-1] + 1:
                known = ", ".join(reading.channels[feature])
                after = shown_time(float(line.times[last]), reading.is_date)
                problem = f"{where}only {places[-1] - last} rows after {after}, the last one with {reading.targets[0]}"
                raise UserError(problem, f"{reading.horizon} rows with {known}, which are known in advance")
            found[feature].append(column[last + 1 - reading.window : end])
        place = reading.frequency.places(line.times[last : last + 1])
        steps.append(reading.frequency.times(place + np.arange(1 - reading.window, reading.horizon + 1)))
        ends.append(names[code])
    arguments = {feature: np.stack(parts) for feature, parts in found.items()}
    if reading.calendar is not None:
        arguments[reading.calendar] = np.rint(np.stack(steps)).astype(np.int64)
    if reading.series is not None:
        arguments[reading.series] = np.array(ends, object)
    first = -1 if reading.are_classes else reading.window
    shown = [[shown_time(float(time), reading.is_date) for time in part[first:]] for part in steps]
    return Latest(arguments, ends, shown)


def _past(reading: WindowReading, arrays: Mapping[str, np.ndarray], texts: Mapping[str, list[str]]) -> list[np.ndarray]:
    """Return channels of the past of a class, float64 [N] each: 1 or 0; nan if the class is missing."""
    [name] = reading.targets
    channels = np.array([f"{name}={text}" for text in texts[name]], object)[arrays[name]]
    is_missing = np.array([not text for text in texts[name]])[arrays[name]]
    return [np.where(is_missing, np.nan, (channels == channel).astype(np.float64)) for channel in reading.past]


def _last(targets: np.ndarray, places: np.ndarray, reading: WindowReading, where: str) -> int:
    """Return the last step of a series that has values of all targets, and a complete window before it."""
    present = ~np.isnan(targets[places]).any(axis=1)
    count = int(np.flatnonzero(present)[-1]) + 1 if present.any() else 0
    if count < reading.window:
        problem = f"{where}only {count} rows up to the last one with {', '.join(reading.targets)}"
        raise UserError(problem, f"at least {reading.window}, the window of the model")
    if not present[count - reading.window : count].all():
        problem = f"{where}no {', '.join(reading.targets)} in a row of the last {reading.window} ones"
        raise UserError(problem, "a value in each of these rows")
    return int(places[count - 1])
