"""Tables as typed columns: files, or arrays, read in blocks; the kinds of their columns; rows that cannot be used."""

import csv
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset

from stages.errors import UserError
from stages.settings.table import Header, TableSettings, format_of, not_in_encoding, text_of

BLOCK = 2**23
"""Bytes of a text file, and about the rows times columns of another one, that are read at once."""

ROWS = 2**20
"""Rows of arrays that are read at once."""

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
DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?$"
_IDENTIFIER = re.compile(r"(^|[^A-Za-z])(id|uuid|key|index|rownames)$|[a-z]I[dD]$|^Unnamed: \d+$", re.IGNORECASE)


class Block(NamedTuple):
    """Rows of a file, or of a split, from the one numbered `first` on, counted from 1 without the header."""

    name: str
    first: int
    columns: dict[str, pa.Array]

    def where(self, row: int, column: str) -> str:
        """Names a value by its place in the block."""
        return f"{self.name} row {self.first + row:,}, column {column}"


class Rows(Protocol):
    """Rows that are read in blocks, in order, any number of times.

    takes_texts: whether a column of sentences is a feature without being declared.
    """

    takes_texts: bool

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> Sequence[str]: ...

    def blocks(self, columns: Sequence[str], ragged: list[str] | None = None) -> Iterator[Block]:
        """Yields all rows in order; each column is int64, float64 or string.

        Args:
            ragged: takes what is said of rows that are left out, where `on_error` is `skip`.

        Raises:
            UserError: for rows that are ragged or in another encoding, and values of a type that no feature has.
        """


@dataclass(frozen=True)
class FileRows:
    """Rows of files; see `Rows`."""

    header: Header
    settings: TableSettings
    takes_texts = False

    @property
    def name(self) -> str:
        files = self.header.files
        return files[0].name + (f" and {len(files) - 1} more" if len(files) > 1 else "")

    @property
    def columns(self) -> Sequence[str]:
        return self.header.columns

    def blocks(self, columns: Sequence[str], ragged: list[str] | None = None) -> Iterator[Block]:
        """See `Rows`."""
        are_texts: dict[str, bool] = {}
        for path in self.header.files:
            first = 1
            try:
                for batch in _batches(path, self.header, self.settings, ragged if ragged is not None else []):
                    block = Block(path.name, first, {name: _plain(batch.column(name), path, name) for name in columns})
                    if self.header.delimiter is None:
                        self._refuse_other_types(path, block, are_texts)
                    yield block
                    first += len(batch)
            except pa.ArrowInvalid as error:
                damage = _damage(path, self.header, self.settings)
                raise damage or UserError(f"{path} cannot be read ({error})", "a table") from error
            except OSError as error:  # of a compressed file that ends too early
                raise UserError(f"{path} cannot be read ({error})", "a whole file") from error

    def _refuse_other_types(self, path: Path, block: Block, are_texts: dict[str, bool]) -> None:
        """Refuses a column of texts in one typed file and of numbers in another."""
        for name, array in block.columns.items():
            is_text = pa.types.is_string(array.type)
            if array.null_count < len(array) and are_texts.setdefault(name, is_text) != is_text:
                here, there = ("texts", "numbers") if is_text else ("numbers", "texts")
                raise UserError(
                    f"{path}: the column {name} holds {here}, and {there} in {self.header.files[0].name}",
                    "columns of the same types in all files",
                )


@dataclass(frozen=True)
class ArrayRows:
    """Rows of columns in memory, by their splits; see `Rows`."""

    name: str
    splits: Mapping[str, Mapping[str, pa.Array]]
    takes_texts = True

    @property
    def columns(self) -> Sequence[str]:
        return list(next(iter(self.splits.values())))

    def blocks(self, columns: Sequence[str], ragged: list[str] | None = None) -> Iterator[Block]:
        """See `Rows`."""
        for split, arrays in self.splits.items():
            for start in range(0, len(next(iter(arrays.values()))), ROWS):
                part = {name: _plain(arrays[name].slice(start, ROWS), split, name) for name in columns}
                yield Block(split, start + 1, part)


def _batches(path: Path, header: Header, settings: TableSettings, ragged: list[str]) -> Iterator[pa.RecordBatch]:
    if header.delimiter is None:
        kind = {"feather": "ipc"}.get(str(format_of(path)), "parquet")
        rows = max(BLOCK // (8 * len(header.columns)), 1)
        yield from pa.dataset.dataset(path, format=kind).to_batches(batch_size=rows, batch_readahead=2)
        return
    names = Header.of([path], settings.delimiter, settings.encoding).columns

    def leave_out(row: pa.csv.InvalidRow) -> str:
        ragged.append(f"{row.actual_columns} values for {row.expected_columns} columns: {row.text[:60]}")
        return "skip"

    yield from pa.csv.open_csv(
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


def _plain(array: pa.Array, where: object, name: str) -> pa.Array:
    """Returns a column as int64, float64 or string; NaN is missing."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_integer(kind):
        return array.cast(pa.int64(), safe=False)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
        return pc.if_else(pc.is_nan(array), pa.scalar(None, pa.float64()), array)
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    ):
        return array.cast(pa.string())
    if pa.types.is_temporal(kind):
        return array.cast(pa.string())
    raise UserError(f"{where}: the column {name} holds {kind}", "numbers, texts or dates", "without this column")


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


@dataclass
class Profile:
    """Facts of a column, known once all its blocks have been added.

    numbers: values that are numbers. values: different ones, until there are too many; wrong: the first value that is
    no number, and its row.
    """

    name: str
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    spaces: int = 0
    dates: int = 0
    wrong: tuple[str, int] | None = None
    is_whole: bool = True
    has_leading_zeros: bool = False
    values: set[Any] = field(default_factory=set)
    low: int | None = None
    high: int | None = None

    def add(self, array: pa.Array) -> None:
        """Counts the values of a block."""
        self.rows += len(array)
        self.missing += array.null_count
        present = array.drop_null()
        if not len(present):
            return
        is_text = pa.types.is_string(present.type)
        numbers = present if not is_text else cast(present, pa.int64()) if self.is_whole else None
        if numbers is None or not pa.types.is_integer(numbers.type):
            self.is_whole = False
            numbers = cast(present, pa.float64())
        else:
            ends = pc.min_max(numbers).as_py()
            self.low = min(ends["min"], self.low if self.low is not None else ends["min"])
            self.high = max(ends["max"], self.high if self.high is not None else ends["max"])
        if numbers is not None:
            self.numbers += len(numbers)
        else:
            different, times = present.value_counts().flatten()  # each text is looked at once
            is_number = pc.match_substring_regex(different, NUMBER)
            self.numbers += pc.sum(pc.if_else(is_number, times, 0)).as_py()
            self.spaces += pc.sum(pc.multiply(pc.count_substring(different, " "), times)).as_py()
            self.dates += pc.sum(pc.if_else(pc.match_substring_regex(different, DATE), times, 0)).as_py()
            if self.wrong is None and (place := pc.index(is_number, False).as_py()) >= 0:
                row = pc.index(array, different[place]).as_py()
                self.wrong = different[place].as_py(), self.rows - len(array) + row + 1
        if is_text and not self.has_leading_zeros and pc.any(pc.starts_with(present, "0")).as_py():
            self.has_leading_zeros = pc.any(pc.match_substring_regex(present, r"^0\d")).as_py()
        if len(self.values) <= MOST_VALUES and (numbers is None or self.is_whole):
            self.values.update(pc.unique(present).to_pylist())

    @property
    def present(self) -> int:
        return self.rows - self.missing

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers, or so many that the others must be mistakes."""
        return self.present > 0 and self.numbers >= NEARLY_ALL * self.present and not self.has_leading_zeros

    @property
    def is_mixed(self) -> bool:
        """Whether numbers are in the majority, of many different ones, and yet too many others beside them."""
        half = self.present / 2 <= self.numbers < NEARLY_ALL * self.present
        return half and len(self.values) > FEW and not self.has_leading_zeros

    @property
    def is_date(self) -> bool:
        return 0 < self.present == self.dates

    @property
    def is_prose(self) -> bool:
        """Whether it holds different sentences."""
        is_worded = self.spaces >= (WORDS - 1) * self.present
        return is_worded and not self.is_number and not self.is_date and len(self.values) > FEW

    def kind(self) -> tuple[str, str]:
        """Returns `number`, `category` or `leave_out`, and why it is left out."""
        different, name = len(self.values), self.name
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


def cast(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
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
    """Returns what is known of each column, reading all rows once.

    Raises:
        UserError: where there is no row.
    """
    profiles = {name: Profile(name) for name in rows.columns}
    with ThreadPoolExecutor() as pool:
        for block in rows.blocks(rows.columns):
            list(pool.map(Profile.add, profiles.values(), block.columns.values()))
    if not profiles[rows.columns[0]].rows:
        raise UserError(f"{rows.name} has a header and no rows", "rows below it")
    return profiles
