"""The columns of a table by the kinds that were found, in memory or mapped from the cache."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from stages.data.columns import Column, Streamed
from stages.data.free_memory import available_memory
from stages.data.loading import HELD_SHARE
from stages.data.tables import Profile, argument_names, scan
from stages.data.typed_columns import NUMBERS, Coded, Typed, read
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

    feature: its name as an argument of the model. kind: how it is read, of DTYPES; or `leave_out`, `target`, or the
    setting that names it. note: why it is left out. different: values, 0 where they are not counted.
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
    numbers: of the rows in the files, from 0. key: changes with the files and with how they are read.
    """

    name: str
    columns: Sequence[ColumnFacts]
    texts: Mapping[str, Sequence[str]]
    skipped: int
    listed: Sequence[Sequence[str]]
    arrays: Mapping[str, np.ndarray]
    numbers: np.ndarray
    is_mapped: bool
    key: str

    @property
    def used(self) -> list[ColumnFacts]:
        """The columns that are features."""
        return [column for column in self.columns if column.kind in DTYPES]

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
        column: Column = values if texts is None else Coded(values, texts)
        return Streamed(column.__getitem__, rows, (), column.dtype)


def feature_of(column: ColumnFacts) -> Feature:
    """Returns the feature that a column is; its facts have the column's name where that is another one."""
    facts = {"column": column.name} if column.name != column.feature else {}
    kind = "category" if column.kind == "whole" else column.kind
    return Feature(kind, DTYPES[column.kind], facts=facts)


def read_table(settings: TableSettings, cache: Path | None, reporter: Reporter) -> TableSource:
    """Returns the table: in memory where it fits or there is no cache, else mapped from the cache."""
    header = Header.of(files_of(settings.files), settings.delimiter, settings.encoding)
    name = header.files[0].name + (f" and {len(header.files) - 1} more" if len(header.files) > 1 else "")
    status = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in header.files]
    of_splits = ("split_seed", "memory_gib", "val_fraction", "test_fraction")
    facts = sorted((key, str(value)) for key, value in vars(settings).items() if key not in of_splits)
    key = hashlib.sha256(repr((status, facts)).encode()).hexdigest()[:32]
    allowed = settings.memory_gib * 2**30 if settings.memory_gib is not None else HELD_SHARE * available_memory()
    is_mapped = cache is not None and _bytes_of(header) > allowed
    if is_mapped:
        assert cache is not None
        place = cache / f"table-{key}"
        entry, is_new = cached(place, partial(_contents, header, settings), reporter)
        reporter.log(f"{'converted' if is_new else 'found'} {name} in {place}: training reads it from the disk")
        contents = Contents(entry.facts, entry.arrays)
    else:
        contents = _contents(header, settings, None)
    count = contents.facts["rows"]
    arrays = {column: contents.arrays[f"column_{place}"][:count] for place, column in enumerate(contents.facts["read"])}
    numbers = arrays.pop(NUMBERS)
    columns = [ColumnFacts(**column) for column in contents.facts["columns"]]
    texts, skipped, listed = (contents.facts[key] for key in ("texts", "skipped", "listed"))
    return TableSource(name, columns, texts, skipped, listed, arrays, numbers, is_mapped, key)


def _bytes_of(header: Header) -> float:
    """Returns about how many bytes the columns take in memory."""
    formats = [format_of(path) for path in header.files]
    rows = sum(
        pq.read_metadata(path).num_rows for path, kind in zip(header.files, formats, strict=True) if kind == "parquet"
    )
    sizes = [path.stat().st_size * (8 if path.suffix == ".gz" else 1.5) for path in header.files]
    return rows * len(header.columns) * 8 + sum(
        size for size, kind in zip(sizes, formats, strict=True) if kind != "parquet"
    )


def _contents(header: Header, settings: TableSettings, folder: Path | None) -> Contents:
    """Reads the table twice: for the kinds of its columns, then for their values.

    Args:
        folder: takes the columns as files; None: they are held in memory.
    """
    profiles = scan(header, settings)
    roles = {column: role for role, column in settings.roles.items()} | dict.fromkeys(settings.targets, "target")
    facts = [
        _facts(profiles[name], roles, settings, feature) for name, feature in argument_names(header.columns).items()
    ]
    reads = [_typed(column, profiles[column.name]) for column in facts if column.kind != "leave_out"]
    rows = profiles[header.columns[0]].rows
    arrays, texts, skipped = read(header, settings, reads, rows, folder)
    if not len(arrays[NUMBERS]):
        raise UserError(f"{header.files[0]}: no row can be used ({skipped[0][0]}: {skipped[0][1]})", "rows that can be")
    if not any(column.kind in DTYPES for column in facts):
        left_out = "; ".join(f"{column.name}: {column.note}" for column in facts if column.kind == "leave_out")
        raise UserError(f"{header.files[0]} has no feature ({left_out})", "a number or a category besides the target")
    named = {f"column_{place}": array for place, array in enumerate(arrays.values())}
    content = {
        "columns": [asdict(column) for column in facts],
        "read": list(arrays),
        "rows": len(arrays[NUMBERS]),
        "texts": texts,
        "skipped": len(skipped),
        "listed": skipped[:MOST_SKIPPED],
    }
    return Contents(content, {}, list(named)) if folder is not None else Contents(content, named)


def _facts(profile: Profile, roles: Mapping[str, str], settings: TableSettings, feature: str) -> ColumnFacts:
    found, note = profile.kind()
    kind = settings.declared.get(profile.name, found)
    if kind != found:
        note = "" if kind != "leave_out" else "by data.features"
    if isinstance(settings.features, list) and profile.name not in settings.features and profile.name not in roles:
        kind, note = "leave_out", "not in data.features"
    is_whole = profile.is_whole and profile.is_number and not profile.missing
    kind = "whole" if kind == "category" and is_whole else kind
    role = roles.get(profile.name)
    kind = "category" if kind == "text" and role is not None else kind
    if role == "target":
        _refuse_target(profile, kind, note)
    different = len(profile.values) if kind != "number" else 0
    return ColumnFacts(profile.name, feature, role or kind, note if role is None else kind, different, profile.missing)


def _refuse_target(profile: Profile, kind: str, note: str) -> None:
    if kind == "leave_out":
        raise UserError(
            f"data.target={profile.name} has {note}", "a column of numbers, or of several values that repeat"
        )


def _typed(column: ColumnFacts, profile: Profile) -> Typed:
    """Returns how a column is read, by what it is for."""
    if column.kind == "target":
        return Typed(column.name, column.note, required=True)
    if column.kind == "weight":
        return Typed(column.name, "number", required=True, least=0.0)
    if column.kind == "time":
        return Typed(column.name, "number" if profile.is_number else "date", required=True)
    if column.kind in ("group", "split_column"):
        return Typed(column.name, "category", required=True)
    return Typed(column.name, "category" if column.kind == "text" else column.kind)
