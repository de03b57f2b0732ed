"""Settings of time series: a table whose next values are predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import II

from stages.errors import UserError
from stages.settings.data import FRACTIONS, DataSettings, refuse_missing
from stages.settings.first_rows import has_words
from stages.settings.folders import name_of_file
from stages.settings.npz import SERIES, TIME, Layout, layout_in
from stages.settings.ranges import choice, number, option, text
from stages.settings.table import TableSettings
from stages.settings.table_files import files_of, format_of
from stages.settings.train import ClassificationSettings, RegressionSettings

KINDS = ("number", "leave_out")
"""Kinds that a column can be declared to have."""


@option("data", "series")
@dataclass(kw_only=True)
class SeriesSettings(DataSettings):
    """Time series: a table with a row for each time, or for each time of several series, whose next values are
    predicted."""

    _target_: str = "stages.load.series.series"
    files: Any = None
    """A file, or a list of files and patterns such as `demand/*.parquet`; or one of these per split, such as
    `{train: a.csv, test: b.csv}`. Splits that are not given are cut from the training rows by time. An `.npz` file has
    arrays [N, T] or [N, T, C], of N series with T steps each, and arrays [T] or [N]."""
    target: Any = None
    """Name of the column to predict, or a list of names."""
    time: str | None = None
    """Column with the time of each row: dates, or numbers. The steps between the times must be equal. null: of arrays,
    the array `time`, or the numbers of their steps."""
    group: str | None = None
    """Column with the name of the series, such as the store. null: all rows are one series, or those of arrays are."""
    window: int | None = number(None, at_least=1, at_most=100_000, unit="steps")
    """Number of past steps from which the next ones are predicted. null: three times `horizon`, but at least two
    seasons, or fewer if a split is short."""
    horizon: int = number(1, at_least=0, at_most=10_000, unit="steps")
    """Number of next steps to predict. Of a class, the number of steps from the end of the window to it; 0: the class
    of the last step of the window, whose earlier classes are not used."""
    test_fraction: float | None = number(None, above=0, below=1)  # type: ignore[assignment]
    """Fraction of the rows, the last ones by time, to hold out for the test split. null: 0.2, or more if that has fewer
    than `horizon` windows, up to a quarter of the steps."""
    val_fraction: float | None = number(None, above=0, below=1)  # type: ignore[assignment]
    """Fraction of the rows before the test split to hold out for validation. null: 0.1, or more as for
    `test_fraction`."""
    stride: int = number(1, at_least=1, at_most=100_000, unit="steps")
    """Number of steps between the windows of a split."""
    season: int | None = number(None, at_least=1, at_most=100_000, unit="steps")
    """Number of steps after which values tend to repeat, for the seasonal naive forecast. null: by the steps between
    times: 7 for days, 24 for hours, 12 for months; 1, the last value, if there is none or `window` is shorter."""
    fill: str = choice("fail", "fail", "previous", "zero", "interpolate")
    """Handling of missing times. `fail`: end the run with an error that names the first one. `previous`: the values of
    the row before. `zero`: zeros. `interpolate`: numbers on the line between the rows before and after; windows
    whose past ends between two rows are left out, as these numbers would tell their next values."""
    known: list[str] | None = None
    """Columns whose values are known in advance for the predicted steps, such as planned promotions."""
    calendar: bool = True
    """Whether the hour, the weekday and the day of the year are known in advance, if times are dates."""
    features: Any = None
    """A list of the only columns whose past is used, or a mapping from columns to kinds (`number`, `leave_out`). null:
    all columns of numbers. The past of the target is always used."""
    delimiter: str | None = None
    """Character between the values of a text file. null: detected among comma, tab, semicolon and vertical bar."""
    encoding: str = "utf8"
    """Encoding of text files, such as `cp1252`."""
    decimal: str = choice(".", ".", ",")
    """Decimal mark of numbers that are stored as text."""
    thousands: str | None = text(None, "[.,]", "a comma or a point", r"\,")
    """Thousands separator: a comma or a point."""
    date_format: Any = None
    """Pattern of the times, such as `%d/%m/%Y %H:%M`, as for tables. null: detected."""
    time_zone: Any = None
    """The time zone to which times with a zone are converted, as for tables. null: the zone that all times have, or
    UTC."""
    task: Any = II("task")
    missing: list[str] | None = None
    """Texts that mean a missing value, as for tables."""
    on_error: str = choice("fail", "fail", "skip")
    """Handling of rows that cannot be used. `fail`: end the run with an error that names the first one. `skip`: leave
    them out, so their times are missing, and list them in `data/skipped.csv`."""
    memory_gib: float | None = number(None, at_least=0, unit="GiB of memory for a table")
    """Memory that the table may use, in GiB. A larger one is converted once, and read from the disk during training.
    null: a third of the free memory."""

    def __post_init__(self) -> None:
        """Convert numbers to names of columns, as tables do."""
        table = TableSettings(target=self.target, features=self.features)
        self.target, self.features = table.target, table.features

    @property
    def held_out(self) -> dict[str, float]:
        """The fraction of each split that is cut from the rows, in the order of the cuts; of short series, more."""
        return {name: getattr(self, f"{name}_fraction") or part for name, part in FRACTIONS.items()}

    @property
    def is_without_images(self) -> bool:
        return True

    @property
    def source(self) -> str:
        return name_of_file(files_of(self.files)[0]) if self.files else ""

    @property
    def predicts_classes(self) -> bool:
        """Whether the target is a class: `task=classification`, or words, also True and False."""
        kind = getattr(self.task, "kind", "auto")
        if kind != "auto" or not self.is_of_files:
            return bool(kind == "classification")
        settings = self.of_files()
        return has_words(replace(settings, task=RegressionSettings()).table)

    @property
    def is_of_files(self) -> bool:
        """Whether the data is in files, and does not come from a function of the user."""
        return self._target_ == SeriesSettings._target_

    def of_files(self) -> "SeriesSettings":
        """Return the settings with the columns that the arrays of `.npz` files are; unchanged for other files."""
        files = files_of(self.files) if self.files else []
        return self.of_arrays(layout_in(files[0])) if files and format_of(files[0]) == "npz" else self

    def of_arrays(self, layout: Layout) -> "SeriesSettings":
        """Return the settings with the columns that arrays are, instead of the names of the arrays."""
        is_mapping = isinstance(self.features, Mapping)
        named: Any = self.features
        if is_mapping:
            named = {column: kind for name, kind in self.features.items() for column in layout.named([name])}
        elif isinstance(self.features, Sequence) and not isinstance(self.features, str):
            named = layout.named(self.features)
        has_series = SERIES in layout.columns or SERIES in layout.made
        return replace(
            self,
            target=layout.named([self.target] if isinstance(self.target, str) else list(self.target or [])),
            time=self.time or TIME,
            group=self.group or (SERIES if has_series else None),
            known=layout.named(self.known) if self.known else self.known,
            features=named,
        )

    @property
    def table(self) -> TableSettings:
        """The settings with which the rows are read."""
        names = (
            *("files", "target", "time", "group", "features", "delimiter", "encoding", "decimal", "thousands"),
            *("date_format", "time_zone", "missing", "on_error", "memory_gib"),
        )
        features = self.features
        if isinstance(features, Sequence) and not isinstance(features, str):
            features = [*features, *(self.known or [])]
        fractions = {f"{name}_fraction": part for name, part in self.held_out.items()}
        given = {name: getattr(self, name) for name in names} | {"features": features} | fractions
        return TableSettings(**given, task=ClassificationSettings() if self.predicts_classes else RegressionSettings())

    def check(self, path: str) -> None:
        if not self.is_of_files:
            return
        TableSettings(files=self.files, target=self.target).check_files_and_target(path)
        of_arrays = self.of_files()
        if of_arrays != self:
            of_arrays.check(path)
            return
        if self.time is None:
            raise UserError(f"{path}.time is not set", "the column with the time of each row", f"{path}.time=<column>")
        replace(self.table, group=None).check(path)
        self.check_columns(path, self.table.header.columns, files_of(self.files)[0])

    def check_columns(self, path: str, columns: Sequence[str], where: object) -> None:
        """Raise UserError for roles of columns that do not exist, or do not fit each other.

        Args:
            path: The group of the data.
            columns: The names of the columns.
            where: What has these columns, for messages.
        """
        group = [self.group] if self.group else []
        named = {"target": self.table.targets, "time": [str(self.time)], "group": group, "known": self.known or []}
        for name, given in named.items():
            refuse_missing(f"{path}.{name}", given, columns, where)
        roles = [column for given in named.values() for column in given]
        if repeated := next((name for name in roles if roles.count(name) > 1), None):
            problem = f"{path}: the column {repeated} has two roles"
            raise UserError(problem, "different columns for target, time, group and known")
        if not self.horizon and not self.predicts_classes:
            problem = f"{path}.horizon=0 does not predict a next value"
            raise UserError(problem, "at least 1, or a class as the target (task=classification)", f"{path}.horizon=1")
        kinds = self.features if isinstance(self.features, Mapping) else {}
        if wrong := next((name for name, kind in kinds.items() if kind not in KINDS), None):
            problem = f"{path}.features: the column {wrong} has the kind {kinds[wrong]}"
            raise UserError(problem, KINDS, f"'{path}.features={{{wrong}: number}}'")
        if self.season and self.window and self.season > self.window:
            problem = f"{path}.season={self.season} is longer than {path}.window={self.window}"
            raise UserError(problem, "a window of at least one season", f"{path}.season={self.window}")
