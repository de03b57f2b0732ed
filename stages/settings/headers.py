"""The header of a table's file: the names of the columns and, for text files, the delimiter and the lines above."""

import codecs
import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.settings.encodings import not_in_encoding
from stages.settings.npz import layout_in

DELIMITERS = (",", "\t", ";", "|")
"""Delimiters, the most likely first."""

BY_ROWS = ("\t", ";", "|", ",")
"""Delimiters, the most likely first if several divide all rows equally, because a comma may also be a decimal mark."""

UNNAMED = ("Unnamed: ", "__index_level_")
"""Prefixes of the names that pandas gives to columns without a name, such as an index, in CSV and in Parquet."""

MAX_COLUMNS = 2000
"""Maximum number of columns. Each is an argument of the exported model, and TensorFlow takes seconds for a thousand."""


LINES = 200
"""Maximum number of lines for detecting the delimiter."""

INVISIBLE = "[\u200b-\u200f\u2060\ufeff]"
"""Zero-width characters, which are not part of a name or a number."""

SEPARATOR = re.compile(r'"?sep ?= ?(.)"?\s*$', re.IGNORECASE)
"""A line in which a spreadsheet declares the delimiter, which may be a tab."""

MARKS = ("\ufeff", "ï»¿")
"""The byte order mark, and the mark of UTF-8 as read in a single-byte encoding."""


def _begin(lines: Iterable[str], delimiter: str | None) -> tuple[list[str], str, int]:
    """Return the names of the columns, the delimiter, and the number of lines up to the end of the header.

    Args:
        lines: The lines of the file, with their line ends.
        delimiter: The delimiter; None detects it from the header and the rows below it.
    """
    first = list(islice(lines, LINES))
    is_whole = len(first) < LINES
    for mark in MARKS:
        first[:1] = [line.removeprefix(mark) for line in first[:1]]
    above = 0
    while above < len(first) and _is_above(first[above : above + 2]):
        if given := SEPARATOR.match(first[above]):
            delimiter = delimiter or given[1]
        above += 1
    lines = first[above:]
    chosen = delimiter or _delimiter(lines, is_whole)
    reader = csv.reader(lines, delimiter=chosen, skipinitialspace=True)
    return next(reader, []), chosen, above + reader.line_num


def _is_above(lines: Sequence[str]) -> bool:
    """Return whether the first line is above the header: blank, a comment, or `sep=;`."""
    line = lines[0].strip()
    if not line or SEPARATOR.match(lines[0]):
        return True
    is_name = bool(re.match(r"#\w", line)) and len(lines) > 1 and not lines[1].startswith("#")
    counts = [(line.count(mark), lines[-1].count(mark)) for mark in DELIMITERS]
    return line.startswith("#") and not (is_name and any(one == other > 0 for one, other in counts))


def _delimiter(lines: Sequence[str], is_whole: bool) -> str:
    """Return the delimiter that divides the rows into as many values as the header; quoted ones do not count."""
    shares: dict[str, tuple[float, int]] = {}
    for delimiter in DELIMITERS:
        rows = [row for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if row]
        rows = rows if is_whole else rows[:-1]  # a quoted value may be cut short
        width = len(rows[0]) if rows else 0
        alike = sum(len(row) == width for row in rows[1:])
        shares[delimiter] = (alike / max(len(rows) - 1, 1) if width > 1 else -1.0, width)
    sure = [delimiter for delimiter in BY_ROWS if shares[delimiter][0] >= 0.9]
    return sure[0] if sure else max(DELIMITERS, key=lambda delimiter: shares[delimiter])


def names_in(
    path: Path, form: str | None, delimiter: str | None, encoding: str, needed: Collection[str] = ()
) -> tuple[list[str], str | None, int]:
    """Return the names of the columns, the delimiter, and the number of lines up to the end of the header.

    Args:
        path: The file.
        form: The format of the file.
        delimiter: The delimiter; None detects it.
        encoding: The encoding of a text file.
        needed: Columns that are used. Some of an `.npz` file are made only then, see `Layout.names`.

    Raises:
        UserError: If the file cannot be read.
    """
    if form == "npz":
        return layout_in(path).names(needed), None, 0
    try:
        if form != "csv":
            import pyarrow.dataset
            import pyarrow.parquet  # takes most of a second to import, and other data does not need it

            if form == "parquet":
                return (
                    pyarrow.parquet.read_schema(path).names,
                    None,
                    0,
                )  # a pyarrow data set would refuse repeated names
            return pyarrow.dataset.dataset(path, format=form).schema.names, None, 0
        opened: Any = gzip.open if path.suffix == ".gz" else Path.open
        with opened(path, "rt", encoding="utf-8-sig" if _is_utf8(encoding) else encoding, newline="") as file:
            names, chosen, count = _begin(file, delimiter)
            named = enumerate(names if any(map(str.strip, names)) else [])
            columns = [
                re.sub(r"\r?\n|\r", " ", re.sub(INVISIBLE, "", one)).strip() or f"{UNNAMED[0]}{place}"
                for place, one in named
            ]
            return columns, chosen, count
    except UnicodeError as error:
        raise not_in_encoding(path, encoding) from error
    except LookupError as error:
        raise UserError(
            f"data.encoding={encoding} is unknown", "an encoding such as utf8 or cp1252", "data.encoding=utf8"
        ) from error
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        csv.Error,
        zlib.error,
    ) as error:  # including the errors of pyarrow
        raise UserError(
            f"{path} cannot be read ({str(error) or type(error).__name__})", "a CSV, TSV, Parquet or Feather file"
        ) from error


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def refuse_names(path: Path, columns: Sequence[str]) -> None:
    """Raise UserError for missing or repeated names, or too many columns."""
    if not any(column.strip() for column in columns):
        raise UserError(f"{path} is empty", "a header with the names of the columns, and rows below it")
    if "" in columns:  # only in Parquet files; unnamed columns of text files get names
        raise UserError(f"{path}: column {columns.index('') + 1} has no name", "a name for each column")
    repeated = [column for column, count in Counter(columns).items() if count > 1]
    if repeated:
        raise UserError(f"{path} has two columns named {repeated[0]}", "unique column names")
    if len(columns) > MAX_COLUMNS:
        raise UserError(
            f"{path} has {len(columns):,} columns",
            f"at most {MAX_COLUMNS:,}; longer rows of numbers can be vectors of data=arrays",
        )
