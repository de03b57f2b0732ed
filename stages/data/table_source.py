"""The columns of a table by the kinds that were found, in memory or mapped from the cache."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stages.data.columns import Column, Streamed
from stages.data.free_memory import memory_for_data
from stages.data.tables import Profile, Rows, argument_names, read_files, scan
from stages.data.typed_columns import NUMBERS, Typed, read
from stages.errors import UserError
from stages.features.kinds import Feature
from stages.reporter import Reporter
from stages.settings.table import Header, TableSettings, files_of, format_of
from stages.storage.cache import Contents, cached

DTYPES = {"number": "float64", "category": "string", "whole": "int64", "text": "string"}
"""Of features, by how they are read."""

MOST_SKIPPED = 10_000
"""Rows that are listed, of those that are left out."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column of the files.

    feature: its name as an argument of the model. kind: how it is read, of DTYPES; or `image` (paths of files),
    `leave_out`, `target`, or the setting that names it. note: why it is left out. different: values, 0 where they
    are not counted.
    """

    name: str
    feature: str
    kind: str
    note: str
    different: int
    missing: int


@dataclass(frozen=True)
class TableSource:
    """A table as typed columns, in memory or mapped from the cache.

    texts: of categories, by the numbers that stand for them. skipped: rows that are left out, and where the first are.
    numbers: of the rows in the files, from 0.
    """

    name: str
    columns: Sequence[ColumnFacts]
    texts: Mapping[str, Sequence[str]]
    skipped: int
    listed: Sequence[Sequence[str]]
    arrays: Mapping[str, np.ndarray]
    numbers: np.ndarray
    is_mapped: bool

    @property
    def used(self) -> list[ColumnFacts]:
        """The columns that are features."""
        return [column for column in self.columns if column.kind in DTYPES]

    def take(self, rows: np.ndarray, skipped: Sequence[tuple[str, str]]) -> "TableSource":
        """Returns some rows, int64 [n], in memory.

        Args:
            skipped: where the other rows are, and why they are left out.
        """
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        return replace(
            self,
            arrays=arrays,
            numbers=self.numbers[rows],
            is_mapped=False,
            skipped=self.skipped + len(skipped),
            listed=[*self.listed, *skipped][:MOST_SKIPPED],
        )

    def of(self, name: str) -> np.ndarray:
        """Returns all values of a column; of a category texts, object."""
        values = self.arrays[name]
        return np.array(self.texts[name], object)[values] if name in self.texts else values

    def column(self, name: str, rows: np.ndarray) -> Column:
        """Returns rows of a column, in memory or read at each use."""
        texts = np.array(self.texts[name], object) if name in self.texts else None
        values = self.arrays[name]
        if not self.is_mapped:
            return values[rows] if texts is None else texts[values[rows]]
        if texts is None:
            return Streamed(values.__getitem__, rows, (), values.dtype)
        return Streamed(lambda chosen: texts[values[chosen]], rows, (), texts.dtype)


def feature_of_column(column: ColumnFacts) -> Feature:
    """Returns the feature that a column is; its facts have the column's name where that is another one."""
    facts = {"column": column.name} if column.name != column.feature else {}
    kind = "category" if column.kind == "whole" else column.kind
    return Feature(kind, DTYPES[column.kind], facts=facts)


def read_table(settings: TableSettings, cache: Path | None, reporter: Reporter) -> TableSource:
    """Returns the table: in memory where it fits or there is no cache, else mapped from the cache."""
    header = Header.of(files_of(settings.files), settings.delimiter, settings.encoding)
    if cache is None or settings.cache == "off" or _bytes_of(header) <= memory_for_data(settings.memory_gib):
        return read_rows(read_files(header, settings), settings)
    status = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in header.files]
    of_splits = ("split_seed", "memory_gib", "val_fraction", "test_fraction", "task")
    facts = sorted((key, str(value)) for key, value in vars(settings).items() if key not in of_splits)
    facts.append(("task", settings.predicts))
    place = cache / f"table-{hashlib.sha256(repr((status, facts)).encode()).hexdigest()[:32]}"

    def make(folder: Path) -> Contents:
        with TemporaryDirectory(dir=folder) as scratch:
            return _contents(read_files(header, settings, Path(scratch)), settings, folder)

    entry, is_new = cached(place, make, reporter)
    reporter.log(f"{'converted' if is_new else 'found'} {header.name} in {place}: training reads it from the disk")
    return _source(header.name, entry, is_mapped=True)


def read_rows(rows: Rows, settings: TableSettings) -> TableSource:
    """Returns the table in memory."""
    return _source(rows.name, _contents(rows, settings, None), is_mapped=False)


def _source(name: str, contents: Contents, is_mapped: bool) -> TableSource:
    arrays = {column: contents.arrays[f"column_{place}"] for place, column in enumerate(contents.facts["read"])}
    numbers = arrays.pop(NUMBERS)
    columns = [ColumnFacts(**column) for column in contents.facts["columns"]]
    texts, skipped, listed = (contents.facts[key] for key in ("texts", "skipped", "listed"))
    return TableSource(name, columns, texts, skipped, listed, arrays, numbers, is_mapped)


def _bytes_of(header: Header) -> float:
    """Returns about how many bytes the columns take in memory; compressed files grow about eightfold."""
    are_packed = [path.suffix == ".gz" or format_of(path) == "parquet" for path in header.files]
    return sum(
        path.stat().st_size * (8 if is_packed else 1.5)
        for path, is_packed in zip(header.files, are_packed, strict=True)
    )


def _contents(rows: Rows, settings: TableSettings, folder: Path | None) -> Contents:
    """Finds the kinds of the columns, then takes their values.

    Args:
        folder: takes the columns as files; None: they are held in memory.
    """
    profiles = scan(rows)
    names = argument_names(rows.columns)
    facts = [_facts(profiles[name], settings, feature, rows.takes_texts) for name, feature in names.items()]
    reads = [_typed(column, profiles[column.name]) for column in facts if column.kind != "leave_out"]
    arrays, texts, skipped = read(rows, reads, settings.on_error, folder)
    if not len(arrays[NUMBERS]):
        raise UserError(f"{rows.name}: no row can be used ({skipped[0][0]}: {skipped[0][1]})", "rows that can be")
    named = {f"column_{place}": array for place, array in enumerate(arrays.values())}
    content = {
        "columns": [asdict(column) for column in facts],
        "read": list(arrays),
        "texts": texts,
        "skipped": len(skipped),
        "listed": skipped[:MOST_SKIPPED],
    }
    return Contents(content, {}, list(named)) if folder is not None else Contents(content, named)


def _facts(profile: Profile, settings: TableSettings, feature: str, takes_texts: bool) -> ColumnFacts:
    role = "target" if profile.name in settings.targets else None
    role = next((role for role, column in settings.roles.items() if column == profile.name), role)
    found, note = ("text", "") if takes_texts and profile.is_prose else profile.kind()
    kind = settings.declared.get(profile.name, found)
    if kind != found:
        note = "" if kind != "leave_out" else "by data.features"
    if unused := _unused(profile.name, settings) if role is None else "":
        kind, note = "leave_out", unused
    elif role in (None, "target") and profile.name not in settings.declared:
        _refuse_texts(profile)
    is_whole = profile.is_whole and profile.is_number and not profile.missing
    kind = "whole" if kind == "category" and is_whole else kind
    kind = "category" if kind == "text" and role is not None else kind
    if role == "target":
        _refuse_target(profile, kind, note)
        if settings.predicts == "regression" and not profile.is_number:
            problem = f"task=regression, and data.target={profile.name} has texts"
            raise UserError(problem, "a column of numbers, or classes", "task=classification")
    different = profile.different if kind != "number" else 0
    return ColumnFacts(profile.name, feature, role or kind, note if role is None else kind, different, profile.missing)


def _unused(column: str, settings: TableSettings) -> str:
    """Returns why the settings leave a column out; empty where they do not."""
    if isinstance(settings.features, list) and column not in settings.features:
        return "not in data.features"
    return "beside images" if settings.image not in (None, column) else ""


def _refuse_texts(profile: Profile) -> None:
    """Refuses numbers that other texts, or marks, would make a category or an identifier."""
    if profile.wrong is None or not (profile.is_marked or profile.is_mixed):
        return
    text, row = profile.wrong
    where = f"column {profile.name} has {text!r} in row {row:,}"
    if profile.is_marked:
        raise UserError(
            where, "numbers such as -1234.5, without other marks", f"'data.features={{{profile.name}: leave_out}}'"
        )
    raise UserError(
        f"{where}, and {profile.numbers:,} of {profile.present:,} values are numbers",
        "numbers alone, or the column's kind in data.features",
        f"'data.missing=[\"{text}\"]'",
    )


def _refuse_target(profile: Profile, kind: str, note: str) -> None:
    if kind == "leave_out":
        raise UserError(
            f"data.target={profile.name} has {note}", "a column of numbers, or of several values that repeat"
        )


def _typed(column: ColumnFacts, profile: Profile) -> Typed:
    """Returns how a column is read, by what it is for; only features may have missing values."""
    kinds = {"target": column.note, "weight": "number", "time": "number" if profile.is_number else "date"}
    is_plain = column.kind in ("number", "whole")
    kind = kinds.get(column.kind, column.kind if is_plain else "category")
    least = 0.0 if column.kind == "weight" else None
    most = float(np.finfo(np.float32).max) if column.kind == "target" else None
    return Typed(column.name, kind, column.kind not in DTYPES, least, most)
