"""Time series: windows of a table whose next values are predicted."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.array_tables import table_of
from stages.data.columns import Column, Gathered
from stages.data.columns import Rows as Values
from stages.data.latest import WindowReading
from stages.data.loading import report_left_out
from stages.data.series import BOOLEANS, Windows, rows_of_splits, windows_of
from stages.data.split import Split
from stages.data.splits import dataset_of
from stages.data.table_source import ORDER, ColumnFacts, TableSource, read_rows, read_table
from stages.data.tables import Rows, argument_names
from stages.errors import UserError
from stages.features.categories import CategoryFeature
from stages.features.kinds import HISTORY, Feature
from stages.features.windows import KNOWN, TIME, CalendarFeature, WindowFeature, moments_of_channels
from stages.load.table import codes_of
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.settings.npz import Layout
from stages.settings.series import SeriesSettings
from stages.storage.atomic import write_csv
from stages.tasks.forecast import ForecastTargets, naive_errors
from stages.tasks.parts import Targets
from stages.tasks.window_classes import WindowClassTargets

MOST_NAIVE = 2**22
"""Maximum number of training rows from which the error of the seasonal naive forecast is computed."""

MOST_CLASSES = 32
"""Maximum number of classes whose past is an input of the network, with a channel for each."""

NUMBERS = ("number", "whole")
"""Kinds of columns of a table that are numbers in a window."""


def series(
    settings: SeriesSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Return the windows of time series, whose targets are the next values.

    The features are `history`, the past of the targets and of all other numbers; `known`, the columns that are known in
    advance, past and future; `time`, the times of all steps; and the name of the series. The values of a window are
    gathered from the table at each use.

    Args:
        settings: The settings of the series.
        reporter: Receives the description of the columns and of the windows.
        folder: The run's folder for `data/columns.csv`, and for `data/skipped.csv` if rows are left out; None writes no
            files.
        cache: The folder that runs share, for a table that is larger than memory.

    Raises:
        UserError: If a column or a row cannot be used, or the rows do not make series and windows; see
            `stages.data.series`.
    """
    reporter, settings = reporter or Reporter(), settings.of_files()
    source = read_table(settings.table, partial(rows_of_splits, settings=settings), cache, reporter)
    return dataset_of_windows(source, settings, reporter, folder)


def series_of_result(
    result: object, settings: SeriesSettings, reporter: Reporter | None = None, folder: Path | None = None
) -> Dataset:
    """Return the result of a user's function, arrays by name or a tuple of these for each split, as windows.

    Args:
        result: The arrays, as in an `.npz` file.
        settings: The settings of the series.
        reporter: Receives the description of the columns and of the windows.
        folder: The folder of the run.

    Raises:
        UserError: If the result has a different form, or as in `series`.
    """
    parts = result if isinstance(result, tuple) else (result,)
    names = ORDER if len(parts) != 2 else ("train", "test")
    given = {name: part for name, part in zip(names, parts, strict=False) if part is not None}
    if len(parts) > len(ORDER) or "train" not in given or not all(isinstance(part, Mapping) for part in given.values()):
        shown = ", ".join(type(part).__name__ for part in parts)
        raise UserError(f"the data function returned {shown}", "arrays by name, or a tuple (train, val, test) of these")
    arrays = {split: {str(name): np.asarray(array) for name, array in part.items()} for split, part in given.items()}
    shapes = {name: array.shape for name, array in arrays["train"].items()}
    settings = settings.of_arrays(layout := Layout.of(shapes, "train"))
    tables = {split: table_of(part, split) for split, part in arrays.items()}
    columns = layout.names(settings.table.needed)
    settings.check_columns("data", columns, "train")
    for split, part in tables.items():
        if absent := next((name for name in columns if name not in part.column_names), None):
            raise UserError(f"{split} has no column {absent}, unlike train", "the same arrays in all splits")
    rows = Rows.of("data", {split: part.select(columns) for split, part in tables.items()})
    source = read_rows(rows, settings.table, partial(rows_of_splits, settings=settings))
    return dataset_of_windows(source, settings, reporter or Reporter(), folder)


def dataset_of_windows(
    source: TableSource, settings: SeriesSettings, reporter: Reporter, folder: Path | None
) -> Dataset:
    """Return the windows of a table as a data set."""
    windows = windows_of(source, settings, source.splits)
    classes = Classes.of(source, settings) if windows.are_classes else None
    columns = _columns(source, settings)
    for name in settings.table.targets:
        if (source.arrays[name] == source.arrays[name][0]).all():
            raise UserError(f"data.target={name} is {source.of(name)[0]} in all rows", "a column with different values")
    reporter.log(f"{source.name}: {windows.described}")
    for kind in ("target", "history", "known", "leave_out"):
        if shown := [_shown(column, source) for column in columns if column.kind == kind]:
            reporter.log(f"  {kind:<9} {', '.join(shown)}")
    made = _Made.of(source, settings, windows, columns, classes)
    whole = made.split(np.concatenate([*windows.starts.values()]))
    borders = np.cumsum([0, *map(len, windows.starts.values())])
    splits = {
        name: whole.take(np.arange(borders[place], borders[place + 1])) for place, name in enumerate(windows.starts)
    }
    if classes is not None:
        classes.refuse_unknown(source, {name: split.target_values for name, split in splits.items()})
        targets: Targets = WindowClassTargets(classes.names, bool(classes.past))
    else:
        targets = _targets(splits["train"].features[HISTORY], settings, windows)
    dataset = dataset_of(source.name, splits, targets.task(), made.features)
    line = windows.timeline
    params = {
        "held_in": "disk" if source.is_mapped else "memory",
        "data/skipped": len(source.skipped),
        "window": windows.window,
        "horizon": windows.horizon,
        "season": windows.season,
        "steps": line.frequency.described,
        "filled": int(line.is_filled.sum()),
        "left_out": ", ".join(column.name for column in columns if column.kind == "leave_out"),
    }
    files = _write(source, columns, reporter, folder)
    dates = [column for column in source.columns if column.kind == "time" and column.date_format]
    reading = {
        **settings.table.reading,
        "date_format": {column.name: column.date_format for column in dates},
        "time_zone": {column.name: column.time_zone for column in dates},
        "windows": made.reading(settings, source).to_json(),
    }
    return replace(dataset, record=Record(params, files=files), reading=reading)


def _targets(history: Column, settings: SeriesSettings, windows: Windows) -> ForecastTargets:
    """Return the targets, a name for each of each step, such as `sales+1`, standardized as their own past is.

    Args:
        history: The past of the training windows.
        settings: The settings of the series.
        windows: The windows.
    """
    assert isinstance(history, Gathered)
    columns = settings.table.targets
    moments = moments_of_channels(history)[: len(columns)] * windows.horizon
    names = tuple(f"{name}+{step}" for step in range(1, windows.horizon + 1) for name in columns)
    line = windows.timeline
    rows = np.flatnonzero(line.splits == ORDER.index("train"))
    some = rows[:MOST_NAIVE]
    errors = naive_errors(np.asarray(history.rows[some])[:, : len(columns)], line.series[some], windows.season)
    return ForecastTargets(
        names,
        tuple(one.mean for one in moments),
        tuple(one.std for one in moments),
        tuple(columns),
        errors * windows.horizon,
        windows.season,
    )


def _columns(source: TableSource, settings: SeriesSettings) -> list[ColumnFacts]:
    """Return the columns of the table with their roles in windows.

    Raises:
        UserError: If a column that is known in advance is not numbers.
    """
    targets, known = settings.table.targets, settings.known or []
    found = []
    for column in source.columns:
        if column.kind in ("time", "group", "target"):
            found.append(column)
            continue
        is_number = column.kind in NUMBERS or {*source.texts.get(column.name, ["?"])} <= {*BOOLEANS}
        if column.name in known and not is_number:
            what = column.note or f"a {column.kind} of {column.different} values"
            problem = f"data.known: the column {column.name} is not numbers ({what})"
            raise UserError(problem, "columns of numbers, or of true and false")
        if column.kind == "leave_out" or not is_number:
            note = column.note or f"a {column.kind}, {column.different:,} values"
            found.append(replace(column, kind="leave_out", note=note))
        else:
            found.append(replace(column, kind="known" if column.name in known else "history"))
    return sorted(found, key=lambda column: targets.index(column.name) if column.name in targets else len(targets))


def _shown(column: ColumnFacts, source: TableSource) -> str:
    if column.kind == "leave_out":
        return f"{column.name} ({column.note})"
    return f"{column.name} ({column.missing:,} missing)" if column.missing else column.name


@dataclass(frozen=True)
class Classes:
    """The classes of the rows of a table."""

    names: tuple[str, ...]
    codes: np.ndarray
    """The class of each row, int32 [N]."""
    past: Mapping[str, np.ndarray]
    """Channels of windows: whether each row has a class, bool [N]; none if the past of the classes is not used."""

    @classmethod
    def of(cls, source: TableSource, settings: SeriesSettings) -> "Classes":
        """Return the classes of the target.

        Raises:
            UserError: If there are several targets.
        """
        if len(settings.table.targets) > 1:
            problem = f"task=classification needs one target, but data.target has {len(settings.table.targets)}"
            raise UserError(problem, "one target", f"data.target={settings.table.targets[0]}")
        [name] = settings.table.targets
        codes, names = codes_of(source, name)
        known = names if settings.horizon and len(names) <= MOST_CLASSES else ()
        return cls(names, codes, {f"{name}={value}": codes == place for place, value in enumerate(known)})

    def refuse_unknown(self, source: TableSource, targets: Mapping[str, np.ndarray]) -> None:
        """Raise UserError for a class that no training window has. targets: Of each split, int32 [n]."""
        for split, values in targets.items():
            if len(unknown := np.setdiff1d(values, targets["train"])):
                name = self.names[unknown[0]]
                problem = f"{source.name}: the class {name} of the {split} split has no training window"
                raise UserError(problem, "only classes that also occur in the training split")


@dataclass(frozen=True)
class _Made:
    """The rows from which windows are gathered, and the features that they are."""

    rows: dict[str, Values]
    features: dict[str, Feature]
    targets: Values
    windows: Windows
    names: np.ndarray
    """The names of the series, object [S]."""
    group: str | None
    """The feature that has the name of the series."""
    numbers: np.ndarray
    """The number of the row of each step in the files, int64 [R]."""
    past: tuple[str, ...] = ()
    """The channels of the past of a class."""

    @classmethod
    def of(
        cls,
        source: TableSource,
        settings: SeriesSettings,
        windows: Windows,
        columns: list[ColumnFacts],
        classes: Classes | None,
    ) -> "_Made":
        line = windows.timeline
        rows: dict[str, Values] = {}
        features: dict[str, Feature] = {}
        for feature, kinds, steps in (
            (HISTORY, ("history",) if classes else ("target", "history"), windows.window),
            (KNOWN, ("known",), windows.length),
        ):
            channels = {column.name: _numbers(source, column.name) for column in columns if column.kind in kinds}
            if feature == HISTORY and classes is not None:
                channels = {**classes.past, **channels}
            if channels:
                rows[feature] = line.values([*channels.values()], not source.is_mapped)
                predicted = len(settings.table.targets) if feature == HISTORY and classes is None else 0
                features[feature] = WindowFeature((steps, len(channels)), tuple(channels), targets=predicted)
        periods = line.frequency.periods
        if settings.calendar and line.is_date and periods:
            rows[TIME] = np.rint(line.times).astype(np.int64)
            features[TIME] = CalendarFeature((windows.length,), periods)
        group = None
        names = np.array([""], object)
        if settings.group is not None:
            names = np.array(source.texts[settings.group], object)
            if len(names) > 1:
                taken = [HISTORY, KNOWN, TIME, settings.group]
                group = (
                    argument_names(taken)[settings.group] if settings.group not in taken[:3] else f"{settings.group}_"
                )
                features[group] = CategoryFeature(column=settings.group if group != settings.group else None)
        if HISTORY not in features:
            what = ", ".join(column.name for column in columns if column.kind == "leave_out") or "none"
            problem = f"{source.name} has no columns of numbers for the past of the windows (left out: {what})"
            raise UserError(problem, "columns of numbers, or data.horizon=1 for the past of the classes")
        if classes is not None:
            answers: Values = classes.codes[line.before]
        else:
            targets = [_numbers(source, name) for name in settings.table.targets]
            answers = _as_float32(line.values(targets, not source.is_mapped))
        past = () if classes is None else tuple(classes.past)
        return cls(rows, features, answers, windows, names, group, source.numbers[line.before], past)

    def split(self, starts: np.ndarray) -> Split:
        """Return the windows that begin at some steps, int64 [N]."""
        windows = self.windows
        columns: dict[str, Column] = {
            name: Gathered(rows, starts, self.features[name].shape[0]) for name, rows in self.rows.items()
        }
        if self.group is not None:
            columns[self.group] = Gathered(self.names, windows.timeline.series[starts])
        first = windows.first(starts)
        steps = None if windows.are_classes else windows.horizon
        targets = Gathered(self.targets, first, steps, is_flat=steps is not None)
        return Split(columns, targets, numbers=self.numbers[first], groups=windows.blocks(starts))

    def reading(self, settings: SeriesSettings, source: TableSource) -> WindowReading:
        """Return the facts for making windows of further rows."""
        windows = self.windows
        channels = {
            name: tuple(channel for channel in feature.channels if name != HISTORY or channel not in self.past)
            for name, feature in self.features.items()
            if isinstance(feature, WindowFeature)
        }
        return WindowReading(
            windows.window,
            windows.horizon,
            tuple(settings.table.targets),
            channels,
            tuple(name for columns in channels.values() for name in columns if name in source.texts),
            str(settings.time),
            TIME if TIME in self.features else None,
            settings.group,
            self.group,
            windows.timeline.is_date,
            settings.fill,
            windows.timeline.frequency,
            tuple(self.past),
            windows.are_classes,
        )


def _as_float32(values: Values) -> Values:
    if isinstance(values, np.ndarray):
        return values.astype(np.float32)
    return replace(values, read=lambda rows: values[rows].astype(np.float32), dtype=np.dtype(np.float32))


def _numbers(source: TableSource, name: str) -> np.ndarray:
    """Return a column of numbers, or of truth values, as float64 or int64 [N]."""
    if name not in source.texts:
        return source.arrays[name]
    return np.array([BOOLEANS[text] for text in source.texts[name]])[source.arrays[name]]


def _write(source: TableSource, columns: list[ColumnFacts], reporter: Reporter, folder: Path | None) -> dict[str, Any]:
    left_out = report_left_out(source.skipped, source.name, reporter, folder)
    if folder is None:
        return {}
    path = folder / "data" / "columns.csv"
    write_csv(path, [list(ColumnFacts.__dataclass_fields__), *(list(asdict(part).values()) for part in columns)])
    return {"data": [path, *left_out]}
