"""Tables: files, or arrays, read as one table; columns as numbers, rows that cannot be used told, digests of rows."""

import errno
import gzip
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset

from stages.data.array_tables import table_in
from stages.data.written_dates import seconds_of
from stages.data.written_numbers import NumberFormat
from stages.errors import UserError
from stages.features.kinds import IMAGES, NO_NUMBER
from stages.settings.date_formats import ISO, DateFormat
from stages.settings.encodings import not_in_encoding
from stages.settings.table import Header, TableSettings, declaring
from stages.settings.table_files import format_of
from stages.storage.cache import load_mapped

BLOCK = 2**23
"""Bytes of a text file, and about the rows times columns of another one, that are read at once."""

WHOLE = r"^-?\d{1,18}(\.0*)?$"

WHOLE_FLOAT = r"^([+-]?\d+)\.0*$"
"""A whole number as pandas writes it where the column has missing values."""

SPELLINGS = {WHOLE_FLOAT: r"\1", "^(?i:true)$": "True", "^(?i:false)$": "False"}
"""Texts of a category, and the one that pandas gives them, so that a value is the same in any file."""

NUMBERS = ""
"""Name of the column that has the numbers of the rows; none in a file has it."""

Values: TypeAlias = Any
"""Values of a column, a `pyarrow.ChunkedArray`."""


@dataclass(frozen=True)
class Rows:
    """Rows of files, or of splits, in order.

    parts: the files or splits, and how many rows each has. takes_texts: whether a column of sentences is a feature
    without being declared. ragged: what is said of rows that are left out. missing: texts that mean a missing value,
    in addition to the empty one. format: of numbers that are texts. units: of columns that have one. date_format,
    time_zone: as in `TableSettings`.
    """

    name: str
    table: pa.Table
    parts: Sequence[tuple[str, int]]
    takes_texts: bool = False
    ragged: Sequence[str] = ()
    missing: Sequence[str] = ()
    format: NumberFormat = NumberFormat()
    units: Mapping[str, str] = field(default_factory=dict)
    date_format: Any = None
    time_zone: Any = None

    @classmethod
    def of(cls, name: str, tables: Mapping[str, pa.Table], **others: Any) -> "Rows":
        """Return the rows of several files, or splits.

        Raises:
            UserError: where their columns have several types.
        """
        try:
            whole = pa.concat_tables(tables.values(), promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(f"{name}: {error}", "the same column types in all files or splits") from error
        return cls(name, whole, [(part, len(table)) for part, table in tables.items()], **others)

    def __len__(self) -> int:
        return len(self.table)

    def format_of(self, column: str) -> NumberFormat:
        """Return the format of a column's numbers."""
        return replace(self.format, unit=self.units.get(column, ""))

    def date_of(self, column: str) -> DateFormat:
        """Return the notation of a column's dates, as far as it is known; ISO if the file has a type for dates."""
        kind = self.table.column(column).type
        pattern, zone = _of(self.date_format, column), _of(self.time_zone, column)
        if not _is_of_dates(kind):
            return DateFormat(pattern or "", zone or "")
        return DateFormat(ISO, (getattr(kind, "tz", None) or "") if zone is None else zone)

    def has_date_format(self, column: str) -> bool:
        """Return whether the notation of a column's dates is known, and not only that of dates in general."""
        is_named = isinstance(self.date_format, Mapping) and column in self.date_format
        return is_named or _is_of_dates(self.table.column(column).type)

    def with_names(self, names: Mapping[str, str]) -> "Rows":
        """Return the rows with settings of dates by their own columns; `names` has those of the settings."""

        def renamed(setting: Any) -> dict[str, str]:
            return {column: setting[name] for column, name in names.items() if name in (setting or {})}

        return replace(self, date_format=renamed(self.date_format), time_zone=renamed(self.time_zone))

    def column(self, name: str, places: np.ndarray | None = None) -> Values:
        """Return a column as int64, float64 or string, without spaces around texts; NaN is missing.

        Args:
            places: of the rows, int64 [n]; None: all.

        Raises:
            UserError: for values of a type that no feature has.
        """
        array = self.table.column(name) if places is None else self.table.column(name).take(pa.array(places))
        kind = array.type
        if pa.types.is_integer(kind):
            whole = cast(array, pa.int64())
            return whole if whole is not None else array.cast(pa.string())  # of uint64, beyond 2**63, as in a CSV
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            array = array.cast(pa.float64())
            return pc.if_else(pc.is_nan(array), pa.scalar(None, pa.float64()), array)
        if pa.types.is_boolean(kind):
            return pc.if_else(array, "True", "False")  # as pandas writes them to CSV
        are_texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
        if any(is_text(kind) for is_text in (*are_texts, pa.types.is_temporal)):
            texts = without_spaces(array.cast(pa.string()))
            is_missing = pc.is_in(texts, pa.array(["", *self.missing]))
            return pc.if_else(is_missing, pa.scalar(None, pa.string()), texts)
        problem = f"{self.parts[0][0]}: the column {name} has the type {kind}"
        raise UserError(problem, "numbers, strings or dates", declaring({name: "leave_out"}))


def _is_of_dates(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _of(setting: Any, column: str) -> str | None:
    """Return the value of a setting that may be a mapping from columns."""
    value = setting.get(column) if isinstance(setting, Mapping) else setting
    return None if value is None else str(value)


def without_spaces(texts: Values) -> Values:
    """Return texts without spaces around them, nor the quotation marks of a CSV that stand behind a space."""
    is_quoted = pc.match_substring_regex(texts, r'^\s+".*"\s*$')
    if pc.any(is_quoted).as_py():
        inside = pc.replace_substring(pc.replace_substring_regex(texts, r'^\s+"(.*)"\s*$', r"\1"), '""', '"')
        texts = pc.if_else(is_quoted, inside, texts)
    return pc.utf8_trim_whitespace(texts)


def place_of(parts: Sequence[tuple[str, int]], row: int, column: str) -> str:
    """Name a value by the number of its row in its file or split, from 1 without the header.

    Args:
        parts: see `Rows`. row: from 0, of all of them.
    """
    for part, count in parts:
        if row < count:
            return f"{part} row {row + 1:,}, column {column}"
        row -= count
    raise IndexError(row)


def read_files(header: Header, settings: TableSettings, folder: Path | None = None) -> Rows:
    """Return the rows of files.

    Args:
        folder: takes them as files, which are mapped; None: they are held in memory.

    Raises:
        UserError: where a file cannot be read, is ragged or in another encoding, or columns have several types.
    """
    ragged: list[str] = []
    tables: list[pa.Table] = []
    for path in header.files:
        try:
            schema, batches = _batches(path, header, settings, ragged)
            place = None if folder is None else folder / f"rows_{len(tables)}.arrow"
            table = pa.Table.from_batches(batches, schema) if place is None else _mapped(place, schema, batches)
        except (pa.ArrowInvalid, UnicodeError, OSError) as error:  # the last of a compressed file that ends too early
            if getattr(error, "errno", None) == errno.ENOSPC:  # of the cache, which says so
                raise
            if isinstance(error, UnicodeError) or "UTF8" in str(error):
                raise not_in_encoding(path, settings.encoding) from error
            expected = "a complete table, with a value for each column in each row"
            is_row = "CSV parse error" in str(error) and not _is_first_row_ragged(path, settings, error)
            raise UserError(f"{path} cannot be read ({error})", expected, "data.on_error=skip" * is_row) from error
        tables.append(table)
    parts = dict(zip(names_of(header.files), tables, strict=True))
    return Rows.of(header.name, parts, ragged=ragged, **reading_of(settings))


def _is_first_row_ragged(path: Path, settings: TableSettings, error: Exception) -> bool:
    """Return whether an error names the first row, so that the header probably fits none of the rows."""
    lines = Header.of([path], settings.delimiter, settings.encoding).lines
    opened: Any = gzip.open if path.suffix == ".gz" else Path.open
    with opened(path, "rt", encoding=settings.encoding, newline="") as file:
        row = next(islice(file, lines, None), "").strip()
    return bool(row) and str(error).endswith(f": {row}")


def reading_of(settings: TableSettings) -> dict[str, Any]:
    """Return fields of `Rows` that say how texts are read."""
    marks = NumberFormat(settings.decimal, settings.thousands)
    units = {column: str(unit) for column, unit in (settings.units or {}).items()}
    dates = {"date_format": settings.date_format, "time_zone": settings.time_zone}
    return {"missing": settings.missing_texts, "format": marks, "units": units, **dates}


def names_of(files: Sequence[Path]) -> list[str]:
    """Return the names of files; their paths, where two have one name."""
    names = [path.name for path in files]
    return names if len({*names}) == len(names) else list(map(str, files))


def _batches(
    path: Path, header: Header, settings: TableSettings, ragged: list[str]
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    if format_of(path) == "npz":
        arrays = table_in(path).select(list(header.columns))
        return arrays.schema, arrays.to_batches()
    if header.delimiter is None:
        data = pa.dataset.dataset(path, format={"feather": "ipc"}.get(str(format_of(path)), "parquet"))
        rows = max(BLOCK // (8 * len(header.columns)), 1)
        # Each batch may have a dictionary of its own, and a column of a file only one.
        plain = pa.schema([(name, _plain_type(data.schema.field(name).type)) for name in header.columns])
        batches = data.to_batches(columns=plain.names, batch_size=rows, batch_readahead=2)
        return plain, (batch.cast(plain) for batch in batches)
    own = Header.of([path], settings.delimiter, settings.encoding)
    names = own.columns

    def leave_out(row: pa.csv.InvalidRow) -> str:
        ragged.append(f"{row.actual_columns} values for {row.expected_columns} columns: {row.text[:60]}")
        return "skip"

    reader = pa.csv.open_csv(
        pa.input_stream(str(path), compression="detect"),
        read_options=pa.csv.ReadOptions(
            block_size=BLOCK, encoding=settings.encoding, column_names=list(names), skip_rows=own.lines
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=header.delimiter,
            newlines_in_values=True,
            invalid_row_handler=leave_out if settings.on_error == "skip" else None,
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), include_columns=list(header.columns)
        ),
    )
    return reader.schema, reader


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _mapped(place: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return rows that have been written to the file `place`."""
    with pa.ipc.new_file(str(place), schema) as file:
        for batch in batches:
            file.write_batch(batch)
    return pa.ipc.open_file(pa.memory_map(str(place))).read_all()


@dataclass(frozen=True)
class Typed:
    """A column as it is read.

    kind: `number` (float64, nan where it is missing), `date` (the same, in seconds since 1970), `category` (int32,
    places in `texts`), or `whole` (a category of whole numbers, int64).
    required: whether a missing value makes a row unusable.
    """

    name: str
    kind: str
    required: bool = False


def _converted(
    array: Values, column: Typed, rows: Rows
) -> tuple[np.ndarray, list[str] | None, list[tuple[np.ndarray, str]]]:
    """Return a column as `column` says; the texts of a category, by the numbers that stand for them; rows without a
    use, and why.
    """
    missing = array.is_null().to_numpy()
    bad = [(missing, "")] if column.required else []
    if column.kind == "category":
        encoded = array.cast(pa.string()).fill_null("").dictionary_encode().combine_chunks()
        texts = encoded.dictionary
        for pattern, spelling in SPELLINGS.items():
            texts = pc.replace_substring_regex(texts, pattern, spelling)
        plain = texts.dictionary_encode()
        codes = plain.indices.to_numpy()[encoded.indices.to_numpy()]
        return codes, plain.dictionary.to_pylist(), bad
    if column.kind == "date":
        date = rows.date_of(column.name)
        values, is_wrong, is_in_other_zone = seconds_of(array, date)
        other = f"has {'no' if date.zone else 'a'} time zone, unlike the other dates of the column"
        return values, None, [*bad, (is_wrong, f"is not a date (such as {date.example})"), (is_in_other_zone, other)]
    form = rows.format_of(column.name)
    kind = pa.int64() if column.kind == "whole" else pa.float64()
    why = "is not a whole number" if column.kind == "whole" else "is not a number"
    is_as_arrow_reads = form.decimal == "." or not pa.types.is_string(array.type)
    numbers = cast(array, kind) if is_as_arrow_reads else None
    if numbers is None:
        numbers = (form if pa.types.is_string(array.type) else NumberFormat()).plain(array.cast(pa.string()))
        if column.kind == "whole":
            is_whole = pc.match_substring_regex(numbers, WHOLE)
            numbers = pc.if_else(is_whole, numbers, pa.scalar(None, pa.string()))
        numbers = pc.replace_substring_regex(numbers, WHOLE_FLOAT, r"\1").cast(kind)
    values = numbers.fill_null(NO_NUMBER if column.kind == "whole" else np.nan).to_numpy(zero_copy_only=False)
    bad += [(numbers.is_null().to_numpy(zero_copy_only=False) & ~missing, why), (np.isinf(values), "is infinite")]
    return values, None, bad


def read(
    rows: Rows, columns: Sequence[Typed], on_error: str, folder: Path | None = None
) -> tuple[dict[str, np.ndarray], dict[str, list[str]], list[tuple[str, str]]]:
    """Return the typed columns of all rows that can be used, the texts of categories, and what is left out, and why.

    Args:
        on_error: of the settings.
        folder: takes a file `column_<n>.npy` for each column, which is mapped; None: all are held in memory. A last
            column, NUMBERS, has the numbers of the rows in the files, from 0.

    Raises:
        UserError: where a row cannot be used, and `on_error` is `fail`.
    """
    arrays: dict[str, np.ndarray] = {}
    texts: dict[str, list[str]] = {}
    wrong: dict[int, tuple[str, str]] = {}

    def keep(name: str, values: np.ndarray) -> None:
        place = list(arrays).index(name) if name in arrays else len(arrays)
        arrays[name] = values
        if folder is not None:
            path = folder / f"column_{place}.npy"
            np.save(path, values)
            arrays[name] = load_mapped(path)

    for column in columns:
        given = rows.column(column.name)
        values, words, bad = _converted(given, column, rows)
        for row, why in [(int(row), why) for part, why in bad for row in np.flatnonzero(part)]:
            shown = given[row].as_py()
            text = "the value is missing" if shown is None else f"{str(shown)[:60]!r} {why}"
            wrong.setdefault(row, (place_of(rows.parts, row, column.name), text))
        if words is not None:
            texts[column.name] = words
        keep(column.name, values)
    if wrong and on_error == "fail":
        where, why = wrong[min(wrong)]
        raise UserError(
            f"{where}: {why}",
            "valid values (data.features sets the kinds of columns, data.missing the texts that mean a missing value, "
            "data.date_format how dates are written)",
            "data.on_error=skip" if len(wrong) < len(rows) else "",
        )
    numbers = np.delete(np.arange(len(rows)), list(wrong))
    for name, values in list(arrays.items()) if wrong else ():
        keep(name, values[numbers])
    keep(NUMBERS, numbers)
    return arrays, texts, [*(wrong[row] for row in sorted(wrong)), *(("a row", why) for why in rows.ragged)]


def cast(array: Values, kind: pa.DataType) -> Values | None:
    """Return an array as another type, None where a value has none; a few are tried first, as each failure is slow."""
    try:
        array[:8].cast(kind)
        return array.cast(kind)
    except pa.ArrowInvalid:
        return None


RESERVED = ("self", IMAGES, "numbers")
"""Names that Python, images, and the tensor of all numbers have."""


def argument_names(columns: Sequence[str]) -> dict[str, str]:
    """Return for each column a name that an argument of an exported function can have; its own, if that can be one.

    Names differ by more than the case of their letters, which TensorFlow ignores, and begin with a letter.
    """
    names: dict[str, str] = {}
    taken = {*RESERVED}
    for column in columns:
        name = re.sub(r"\W", "_", column, flags=re.ASCII)
        name = name if name[0].isalpha() else f"column_{name}"
        while keyword.iskeyword(name) or name.lower() in taken:
            name += "_"
        names[column] = name
        taken.add(name.lower())
    return names
