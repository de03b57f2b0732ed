"""Tables: files, or arrays, read as one table; the kinds of its columns."""

import csv
import errno
import keyword
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset

from stages.errors import UserError
from stages.settings.table import Header, TableSettings, format_of, not_in_encoding, text_of

BLOCK = 2**23
"""Bytes of a text file, and about the rows times columns of another one, that are read at once."""

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "<NA>"]
"""Texts that mean a missing value."""

FEW = 10
"""Different whole numbers that make a category, at most: a class of cabin, a grade."""

MOST_VALUES = 100_000
"""Different values of a category, at most."""

NEARLY_ALL = 0.95
"""Share of different values from which a column is an identifier, and of numbers from which it is one of numbers."""

WORDS = 4
"""Words of a value, on average, from which a column of different texts is one of sentences."""

NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$|^(?i:\s*[+-]?inf(inity)?\s*)$"
MARKED = r"^\s*[+-]?[$€£¥]?\s?(\d{1,3}([.,]\d{3})+|\d+)([.,]\d+)?\s?[%$€£¥]?\s*$"
"""Numbers as people write them: 1.234,5 or $1,200.00 or 12 %."""

DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?$"
_IDENTIFIER = re.compile(r"(^|[^A-Za-z])(id|uuid|key|index|rownames)$|[a-z]I[dD]$|^Unnamed: \d+$", re.IGNORECASE)


Values: TypeAlias = Any
"""Values of a column, a `pyarrow.ChunkedArray`."""


@dataclass(frozen=True)
class Rows:
    """Rows of files, or of splits, in order.

    parts: the files or splits, and how many rows each has. takes_texts: whether a column of sentences is a feature
    without being declared. ragged: what is said of rows that are left out.
    """

    name: str
    table: pa.Table
    parts: Sequence[tuple[str, int]]
    takes_texts: bool = False
    ragged: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def column(self, name: str) -> Values:
        """Returns a column as int64, float64 or string; NaN is missing.

        Raises:
            UserError: for values of a type that no feature has.
        """
        array = self.table.column(name)
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        kind = array.type
        if pa.types.is_integer(kind):
            return array.cast(pa.int64(), safe=False)
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            array = array.cast(pa.float64())
            return pc.if_else(pc.is_nan(array), pa.scalar(None, pa.float64()), array)
        are_texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_null)
        if any(is_text(kind) for is_text in (*are_texts, pa.types.is_temporal)):
            return array.cast(pa.string())
        expected = "numbers, texts or dates"
        raise UserError(f"{self.parts[0][0]}: the column {name} holds {kind}", expected, "without this column")

    def where(self, row: int, column: str) -> str:
        """Names a value by the number of its row in its file or split, from 1 without the header."""
        for part, count in self.parts:
            if row < count:
                return f"{part} row {row + 1:,}, column {column}"
            row -= count
        raise IndexError(row)


def read_files(header: Header, settings: TableSettings, folder: Path | None = None) -> Rows:
    """Returns the rows of files.

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
        except pa.ArrowInvalid as error:
            damage = _damage(path, header, settings)
            raise damage or UserError(f"{path} cannot be read ({error})", "a table") from error
        except OSError as error:  # of a compressed file that ends too early
            if error.errno == errno.ENOSPC:
                raise
            raise UserError(f"{path} cannot be read ({error})", "a whole file") from error
        tables.append(table.select(list(header.columns)))
    parts = [(path.name, len(table)) for path, table in zip(header.files, tables, strict=True)]
    try:
        whole = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(f"{header.name}: {error}", "columns of the same types in all files") from error
    return Rows(header.name, whole, parts, ragged=ragged)


def _batches(
    path: Path, header: Header, settings: TableSettings, ragged: list[str]
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    if header.delimiter is None:
        data = pa.dataset.dataset(path, format={"feather": "ipc"}.get(str(format_of(path)), "parquet"))
        rows = max(BLOCK // (8 * len(header.columns)), 1)
        return data.schema, data.to_batches(batch_size=rows, batch_readahead=2)
    names = Header.of([path], settings.delimiter, settings.encoding).columns

    def leave_out(row: pa.csv.InvalidRow) -> str:
        ragged.append(f"{row.actual_columns} values for {row.expected_columns} columns: {row.text[:60]}")
        return "skip"

    reader = pa.csv.open_csv(
        pa.input_stream(str(path), compression="detect"),
        read_options=pa.csv.ReadOptions(
            block_size=BLOCK, encoding=settings.encoding, column_names=list(names), skip_rows=1
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=header.delimiter,
            newlines_in_values=True,
            invalid_row_handler=leave_out if settings.on_error == "skip" else None,
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[*MISSING, *settings.missing],
            strings_can_be_null=True,
        ),
    )
    return reader.schema, reader


def _mapped(place: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Returns rows that have been written to the file `place`."""
    with pa.ipc.new_file(str(place), schema) as file:
        for batch in batches:
            file.write_batch(batch)
    return pa.ipc.open_file(pa.memory_map(str(place))).read_all()


def _damage(path: Path, header: Header, settings: TableSettings) -> UserError | None:
    """Returns the error that names the first row that is ragged or no text; None where plain reading finds none."""
    binary = text_of(path, "latin1")
    for number, cells in enumerate(csv.reader(binary, delimiter=header.delimiter or ",")):
        for name, cell in zip(header.columns, cells, strict=False):
            try:
                cell.encode("latin1").decode(settings.encoding)
            except UnicodeDecodeError:
                return not_in_encoding(f"{path.name} row {number:,}, column {name}", settings.encoding)
        if cells and len(cells) != len(header.columns):
            return UserError(
                f"{path.name} row {number:,} has {len(cells)} values for {len(header.columns)} columns "
                f"(the last in place: {header.columns[min(len(cells), len(header.columns)) - 1]})",
                "a value for each column",
                "data.on_error=skip",
            )
    return None


@dataclass(frozen=True)
class Profile:
    """Facts of a column.

    present: values that are not missing. numbers: those that are numbers; wrong: the first that is none, and its row;
    marked: those that are, or would be without marks of thousands, currencies and the like. others: different texts
    that are no numbers.
    different: values; 0 of numbers that are not whole.
    """

    name: str
    missing: int = 0
    present: int = 0
    numbers: int = 0
    marked: int = 0
    others: int = 0
    spaces: int = 0
    dates: int = 0
    wrong: tuple[str, int] | None = None
    is_whole: bool = True
    has_leading_zeros: bool = False
    different: int = 0
    low: int | None = None
    high: int | None = None

    @classmethod
    def of(cls, name: str, column: Values) -> "Profile":
        """Counts the values of a column."""
        facts: dict[str, Any] = {"missing": column.null_count, "present": len(column) - column.null_count}
        if not facts["present"]:
            return cls(name, **facts)
        present = column.drop_null()
        is_text = pa.types.is_string(present.type)
        whole = present if pa.types.is_integer(present.type) else cast(present, pa.int64()) if is_text else None
        facts |= {"is_whole": whole is not None, "numbers": len(present)}
        if whole is not None:
            ends = pc.min_max(whole).as_py()
            facts |= {"low": ends["min"], "high": ends["max"]}
        elif is_text and cast(present, pa.float64()) is None:
            texts, times = present.value_counts().flatten()  # each text is looked at once
            is_number = pc.match_substring_regex(texts, NUMBER)
            facts["numbers"] = pc.sum(pc.if_else(is_number, times, 0)).as_py()
            is_marked = pc.match_substring_regex(texts, MARKED)
            facts["marked"] = pc.sum(pc.if_else(pc.or_(is_number, is_marked), times, 0)).as_py()
            facts["spaces"] = pc.sum(pc.multiply(pc.count_substring(texts, " "), times)).as_py()
            facts["dates"] = pc.sum(pc.if_else(pc.match_substring_regex(texts, DATE), times, 0)).as_py()
            facts["different"] = len(texts)
            facts["others"] = len(texts) - pc.sum(is_number).as_py()
            if (place := pc.index(is_number, False).as_py()) >= 0:
                facts["wrong"] = texts[place].as_py(), pc.index(column, texts[place]).as_py() + 1
        if whole is not None:
            facts["different"] = len(present.unique())
        if is_text:
            facts["has_leading_zeros"] = pc.any(pc.match_substring_regex(present, r"^0\d")).as_py()
        return cls(name, **facts)

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers, or so many that the others must be mistakes."""
        return self.present > 0 and self.numbers >= NEARLY_ALL * self.present and not self.has_leading_zeros

    @property
    def is_mixed(self) -> bool:
        """Whether few different texts, such as `?`, are beside many different numbers, and often."""
        is_often = self.numbers < NEARLY_ALL * self.present
        return is_often and self.others <= FEW < self.different - self.others and not self.has_leading_zeros

    @property
    def is_marked(self) -> bool:
        """Whether its many different numbers are written with marks, so that most are read as texts."""
        return self.different > FEW and self.numbers < NEARLY_ALL * self.present <= self.marked

    @property
    def is_date(self) -> bool:
        return 0 < self.present == self.dates

    @property
    def is_prose(self) -> bool:
        """Whether it holds different sentences."""
        is_worded = self.spaces >= (WORDS - 1) * self.present
        return is_worded and not self.is_number and not self.is_date and self.different > FEW

    def kind(self) -> tuple[str, str]:
        """Returns `number`, `category` or `leave_out`, and why it is left out."""
        different, name = self.different, self.name
        shown = f"{different:,}" if different <= MOST_VALUES else f"more than {MOST_VALUES:,}"
        are_all_different = different > max(NEARLY_ALL * min(self.present, MOST_VALUES), FEW)
        if not self.present:
            return "leave_out", "no values"
        if different == 1 and (self.is_whole or not self.is_number):
            return "leave_out", "one value alone"
        if self.is_number and not (self.is_whole and different <= FEW):
            is_counted = self.high is not None and self.low is not None and self.high - self.low == self.present - 1
            is_identifier = self.is_whole and are_all_different and (_IDENTIFIER.search(name) or is_counted)
            return ("leave_out", f"an identifier, {shown} different values") if is_identifier else ("number", "")
        if self.is_date:
            return "leave_out", "dates"
        if not self.is_number and (are_all_different or different > MOST_VALUES):
            return "leave_out", f"{'a text' if self.is_prose else 'an identifier'}, {shown} different values"
        return "category", ""


def cast(array: Values, kind: pa.DataType) -> Values | None:
    """Returns an array as another type, None where a value has none; a few are tried first, as each failure is slow."""
    try:
        array[:8].cast(kind)
        return array.cast(kind)
    except pa.ArrowInvalid:
        return None


def argument_names(columns: Sequence[str]) -> dict[str, str]:
    """Returns for each column a name that an argument of a function can have; its own, where that can be one."""
    names: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"\W", "_", column, flags=re.ASCII)
        name = name if name[0].isalpha() else f"_{name}"
        while keyword.iskeyword(name) or name in names.values():
            name += "_"
        names[column] = name
    return names


def scan(rows: Rows) -> dict[str, Profile]:
    """Returns what is known of each column.

    Raises:
        UserError: where there is no row.
    """
    if not len(rows):
        raise UserError(f"{rows.name} has a header and no rows", "rows below it")
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda name: Profile.of(name, rows.column(name)), rows.columns))
    return {profile.name: profile for profile in found}
