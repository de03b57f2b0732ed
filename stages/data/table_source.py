"""The kinds of the columns of a table, and the columns by these, in memory or mapped from the cache."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import pyarrow.compute as pc

from stages.data.columns import Column, Described, Streamed
from stages.data.free_memory import memory_for_data
from stages.data.profiles import Profile, date_format_of, refuse_texts, scan
from stages.data.split import Split
from stages.data.tables import NUMBERS, Rows, Typed, argument_names, place_of, read, read_files
from stages.errors import UserError
from stages.features.kinds import Feature, Schema
from stages.features.schema import feature_of
from stages.reporter import Reporter
from stages.settings.date_formats import DateFormat
from stages.settings.folders import SPLITS
from stages.settings.npz import bytes_in
from stages.settings.table import Header, TableSettings
from stages.settings.table_files import format_of
from stages.settings.trained_table import TrainedTableSettings
from stages.storage.cache import Contents, cached

ORDER = ("train", "val", "test")
"""The splits, by the numbers that stand for them."""

SPLIT = " "
"""Name of the column that has these; none in a file has it."""

DTYPES = {"number": "float64", "date": "float64", "category": "string", "whole": "int64", "text": "string"}
"""Of features, by how they are read."""

VERSION = 8
"""Of what a table becomes in the cache."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column of the files.

    feature: its name as an argument of the model. kind: how it is read, of DTYPES; or `image` (paths of files),
    `leave_out`, `target`, or the setting that names it. note: why it is left out. different: values, 0 where they
    are not counted. date_format, time_zone: of dates, see `DateFormat`.
    """

    name: str
    feature: str
    kind: str
    note: str
    different: int
    missing: int
    date_format: str = ""
    time_zone: str = ""


@dataclass(frozen=True)
class TableSource:
    """A table as typed columns, in memory or mapped from the cache.

    texts: of categories, by the numbers that stand for them. skipped: where rows are that are left out, and why.
    numbers: of the rows in the files, from 0. parts: files, and how many rows each has. splits: the place in ORDER
    of each row's split, int8 (none before they are cut).
    """

    name: str
    columns: Sequence[ColumnFacts]
    texts: Mapping[str, Sequence[str]]
    skipped: Sequence[Sequence[str]]
    arrays: Mapping[str, np.ndarray]
    numbers: np.ndarray
    parts: Sequence[tuple[str, int]]
    is_mapped: bool
    splits: np.ndarray

    @property
    def used(self) -> list[ColumnFacts]:
        """The columns that are features."""
        return [column for column in self.columns if column.kind in DTYPES]

    def take(self, rows: np.ndarray, skipped: Sequence[tuple[str, str]]) -> "TableSource":
        """Return some rows, int64 [n], in memory.

        Args:
            skipped: where the other rows are, and why they are left out.
        """
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        return replace(
            self,
            arrays=arrays,
            numbers=self.numbers[rows],
            is_mapped=False,
            skipped=[*self.skipped, *skipped],
            splits=self.splits[rows],
        )

    def of(self, name: str) -> np.ndarray:
        """Return all values of a column; of a category texts, object."""
        values = self.arrays[name]
        return np.array(self.texts[name], object)[values] if name in self.texts else values

    def where(self, row: int, column: str) -> str:
        """Name a value by its file or split, and its row in it."""
        return place_of(self.parts, int(self.numbers[row]), column)

    def column(self, name: str) -> Column:
        """Return a column, in memory or read at each use."""
        if not self.is_mapped:
            return self.of(name)
        values = Streamed.of(self.arrays[name])
        texts = np.array(self.texts[name], object) if name in self.texts else None
        return values if texts is None else replace(values, read=lambda rows: texts[values[rows]], dtype=texts.dtype)


@dataclass(frozen=True)
class Wide:
    """Columns with several numbers per row, vectors or images, in addition to those of a table."""

    columns: Mapping[str, Column]
    features: Callable[[Split], Schema]
    """Return the description of the columns from the training split."""
    described: Mapping[str, Described] = field(default_factory=dict)
    """Facts about each column of images, by the feature's name, if they were read."""
    files: Sequence[str] | None = None
    """The file of each row, if it has one."""

    @property
    def has_images(self) -> bool:
        """Whether any column has images."""
        return any(len(column.shape) == 4 for column in self.columns.values())


def feature_of_column(column: ColumnFacts) -> Feature:
    """Return the feature that a column is."""
    kind = "category" if column.kind == "whole" else column.kind
    name = column.name if column.name != column.feature else None
    date = {"date_format": column.date_format, "time_zone": column.time_zone}
    return feature_of({"kind": kind, "dtype": DTYPES[column.kind], "column": name, **date})


Cut: TypeAlias = Callable[[TableSource], Mapping[str, np.ndarray]]
"""From a table without features to the rows of each split, int64."""


def read_table(settings: TableSettings, cut: Cut, cache: Path | None, reporter: Reporter) -> TableSource:
    """Return the table: in memory if it fits or there is no cache, else mapped from the cache."""
    header = settings.header
    if cache is None or settings.cache == "off" or _bytes_of(header) <= memory_for_data(settings.memory_gib):
        return read_rows(read_files(header, settings), settings, cut)
    status = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in header.files]
    facts = sorted((key, str(value)) for key, value in vars(settings).items() if key not in ("memory_gib", "task"))
    facts.append(("task", settings.predicts))
    place = cache / f"table-{hashlib.sha256(repr((VERSION, status, facts)).encode()).hexdigest()[:32]}"

    def make(folder: Path) -> Contents:
        with TemporaryDirectory(dir=folder) as scratch:
            return _contents(read_files(header, settings, Path(scratch)), settings, cut, folder)

    entry, is_new = cached(place, make, reporter)
    reporter.log(f"{'converted' if is_new else 'found'} {header.name} in {place}: training reads it from the disk")
    return _source(header.name, entry, is_mapped=True)


def read_rows(rows: Rows, settings: TableSettings, cut: Cut) -> TableSource:
    """Return the table in memory."""
    return _source(rows.name, _contents(rows, settings, cut, None), is_mapped=False)


def _source(name: str, contents: Contents, is_mapped: bool) -> TableSource:
    arrays = {column: contents.arrays[f"column_{place}"] for place, column in enumerate(contents.facts["read"])}
    numbers, splits = arrays.pop(NUMBERS), arrays.pop(SPLIT, np.empty(0, np.int8))
    columns = [ColumnFacts(**column) for column in contents.facts["columns"]]
    texts, skipped, parts = (contents.facts[key] for key in ("texts", "skipped", "parts"))
    return TableSource(name, columns, texts, skipped, arrays, numbers, parts, is_mapped, splits)


def _bytes_of(header: Header) -> float:
    """Return about how many bytes the columns take in memory; compressed files grow about eightfold."""
    sizes = {path: bytes_in(path) if format_of(path) == "npz" else path.stat().st_size for path in header.files}
    packed = [path for path in header.files if path.suffix == ".gz" or format_of(path) == "parquet"]
    return sum(size * (8 if path in packed else 1.5) for path, size in sizes.items())


def _contents(rows: Rows, settings: TableSettings, cut: Cut, folder: Path | None) -> Contents:
    """Find the splits, then the kinds of features in the training rows alone, then take the values of all rows.

    The kinds of targets, by which the splits may be cut, are found in the rows that are not named as of another split.

    Args:
        folder: takes the columns as files; None: they are held in memory.
    """
    if not len(rows):
        raise UserError(f"{rows.name} has a header but no rows", "rows below the header")
    names = rows.table.column_names
    named = [name for name in names if name == settings.split_column]
    source = _source(rows.name, _read(rows, settings, dict.fromkeys(named)), is_mapped=False)
    places: dict[str, np.ndarray | None] = dict.fromkeys(named)
    train = source.numbers[named_splits(source, settings)["train"]]
    places |= {name: train for name in names if name not in named and _role(name, settings) is not None}
    source = _source(rows.name, _read(rows, settings, places), is_mapped=False)
    splits = np.full(len(rows), -1, np.int8)
    for name, part in cut(source).items():
        splits[source.numbers[part]] = ORDER.index(name)
    train = np.flatnonzero(splits == ORDER.index("train"))
    contents = _read(rows, settings, {name: places.get(name, train) for name in names}, folder)
    numbers = contents.arrays[f"column_{contents.facts['read'].index(NUMBERS)}"]
    read_as = [*contents.facts["read"], SPLIT]
    arrays = {**contents.arrays, f"column_{len(read_as) - 1}": splits[numbers]}
    return Contents({**contents.facts, "read": read_as}, arrays)


def _read(
    rows: Rows, settings: TableSettings, places: Mapping[str, np.ndarray | None], folder: Path | None = None
) -> Contents:
    """Return columns as they are read.

    Args:
        places: from each column to the rows, int64, in which its kind is found; None: in all.
    """
    names = {name: feature for name, feature in argument_names(rows.table.column_names).items() if name in places}
    left_out = {name: Profile(name) for name in names if _left_out(name, settings)}
    dates = [name for name in names if settings.declared.get(name) == "date" or name == settings.time]
    profiles = left_out | scan(rows, {name: places[name] for name in names if name not in left_out}, dates)
    facts = [_facts(rows, profiles[name], settings, feature, places[name]) for name, feature in names.items()]
    patterns = {column.name: column.date_format for column in facts if column.date_format}
    zones = {column.name: column.time_zone for column in facts if column.date_format}
    rows = replace(rows, date_format=patterns, time_zone=zones)
    reads = [_typed(column, settings) for column in facts if column.kind != "leave_out"]
    arrays, texts, skipped = read(rows, reads, settings.on_error, folder)
    if not len(arrays[NUMBERS]):
        raise UserError(f"{rows.name}: none of the rows can be used ({skipped[0][0]}: {skipped[0][1]})", "valid rows")
    content = {
        "columns": [asdict(column) for column in facts],
        "read": list(arrays),
        "texts": texts,
        "skipped": skipped,
        "parts": rows.parts,
    }
    return Contents(content, {f"column_{place}": array for place, array in enumerate(arrays.values())})


def named_splits(source: TableSource, settings: TableSettings) -> dict[str, np.ndarray]:
    """Return the rows of each named split, by file or by `data.split_column`; without either, all are for training.

    The parts of arrays are called by their splits.

    Raises:
        UserError: if the column has another value, or a split has no row.
    """
    if of_each := settings.split_of_each or [part for part, _ in source.parts if part in SPLITS]:
        ends = np.cumsum([count for _, count in source.parts])
        files = np.searchsorted(ends, source.numbers, side="right")
        rows = {name: np.flatnonzero((np.array(of_each) == name)[files]) for name in dict.fromkeys(of_each)}
    elif settings.split_column is None:
        rows = {"train": np.arange(len(source.numbers))}
    else:
        column = settings.split_column
        named = [SPLITS.get(text.lower(), "") for text in source.texts[column]]
        splits = np.array(named, object)[source.arrays[column]]
        if "" in splits:
            row = int(np.argmax(splits == ""))
            problem = (
                f"data.split_column: {source.where(row, column)} is {source.of(column)[row]}, which is not a split"
            )
            raise UserError(problem, tuple(SPLITS))
        rows = {name: np.flatnonzero(splits == name) for name in dict.fromkeys(["train", *named]) if name}
    refuse_empty(source, rows)
    return rows


def refuse_empty(source: TableSource, rows: Mapping[str, np.ndarray]) -> None:
    """Raise UserError if a split has no row."""
    for name, part in rows.items():
        if not len(part):  # all of its rows are left out, or it has never had any
            raise UserError(f"{source.name} has no {name} rows that can be used", "at least one")


def _facts(
    rows: Rows, profile: Profile, settings: TableSettings, feature: str, places: np.ndarray | None
) -> ColumnFacts:
    role = _role(profile.name, settings)
    found, note = ("text", "") if rows.takes_texts and profile.is_prose else profile.kind()
    if role == "target" and profile.different == 1 and len(settings.targets) > 1:
        found, note = "category", ""  # a label that all examples have, or none
    kind = settings.declared.get(profile.name, found)
    if why := _left_out(profile.name, settings):
        kind, note = "leave_out", why
    elif kind != found:
        note = "by data.features" if kind == "leave_out" else ""
    elif role in (None, "target") and profile.name not in settings.declared:
        refuse_texts(rows, profile, role == "target", places)
    fits = profile.high is not None and profile.high <= np.iinfo(np.int64).max
    is_found = role is not None or not isinstance(settings, TrainedTableSettings)
    kind = "whole" if kind == "category" and is_found and fits and profile.is_number and not profile.missing else kind
    kind = "category" if kind == "text" and role is not None else kind
    if role == "target" and kind in ("leave_out", "date"):
        why = note or "dates"
        has = f"is left out {note}" if note == "by data.features" else f"cannot be used as the target ({why})"
        raise UserError(f"data.target={profile.name} {has}", "a column of numbers, or of a few values that repeat")
    different = 0 if kind == "number" else profile.different
    if kind == "category" and not different and profile.present:  # of numbers that are not whole, declared as one
        different = pc.count_distinct(rows.column(profile.name, places)).as_py()
    is_feature = role is None
    if role == "time":
        declared = settings.declared.get(profile.name)
        is_feature = profile.name in (settings.features or ()) and declared in (None, "number", "date")
        kind, note = ("number" if profile.is_number and declared != "date" else "date"), ""
    is_read = kind == "date" and role in (None, "time")  # dates that group rows are compared as texts
    date = _date_format(rows, profile, settings) if is_read else DateFormat()
    if role == "time" and not is_feature and settings.time_zone is None and date.zone[:1] not in ("", "+", "-"):
        date = replace(date, zone="UTC")  # local times occur twice at the end of daylight saving time
    used, note = (kind, note) if is_feature else (str(role), kind)
    return ColumnFacts(profile.name, feature, used, note, different, profile.missing, date.pattern, date.zone)


def _date_format(rows: Rows, profile: Profile, settings: TableSettings) -> DateFormat:
    """Return how the dates of a column are written. A trained model reads them as in training."""
    is_known = isinstance(settings, TrainedTableSettings) and profile.name in settings.dates
    return rows.date_of(profile.name) if is_known else date_format_of(rows, profile)


def _role(column: str, settings: TableSettings) -> str | None:
    """Return what a column is for: `target`, or the setting that names it; None: a feature, if anything."""
    role = "target" if column in settings.targets else None
    return next((role for role, named in settings.roles.items() if named == column), role)


def _left_out(column: str, settings: TableSettings) -> str:
    """Return why the settings leave a column out; empty where they do not."""
    role = _role(column, settings)
    if settings.declared.get(column) == "leave_out" and role in (None, "target"):
        return "by data.features"
    if role is not None:
        return ""
    if isinstance(settings.features, list) and column not in settings.features:
        return "not in data.features"
    if isinstance(settings, TrainedTableSettings) and column not in settings.declared:
        return "not used in training"
    return "by data.only_images" if settings.is_beside_images(column) else ""


def _typed(column: ColumnFacts, settings: TableSettings) -> Typed:
    """Return how a column is read, by what it is for; only features may have missing values."""
    kinds = {"target": column.note, "weight": "number", "time": column.note}
    is_plain = column.kind in ("number", "whole", "date")
    kind = kinds.get(column.kind, column.kind if is_plain else "category")
    return Typed(column.name, kind, column.kind not in DTYPES or column.name == settings.time)
