"""The header of a file of a table: the names of its columns; of a text file the lines above it and the delimiter."""

import codecs
import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.settings.encodings import not_in_encoding

DELIMITERS = (",", "\t", ";", "|")
"""Separators, the likeliest first."""

BY_ROWS = ("\t", ";", "|", ",")
"""Separators, the likeliest first if each divides all rows alike: a comma may also be a decimal mark."""

UNNAMED = ("Unnamed: ", "__index_level_")
"""Starts of the names that pandas gives a column without one, such as an index, in CSV and in Parquet."""

MOST_COLUMNS = 2000
"""Each column of a table is an argument of the exported model; TensorFlow takes seconds for a thousand."""


LINES = 200
"""Lines of a file, at most, by which its delimiter is found."""

INVISIBLE = "[\u200b-\u200f\u2060\ufeff]"
"""Characters without a width, which are not part of a name or a number."""

SEPARATOR = re.compile(r'"?sep ?= ?(.)"?\s*$', re.IGNORECASE)
"""Line in which a spreadsheet writes the delimiter, which may be a tab."""

MARKS = ("\ufeff", "ï»¿")
"""Byte order mark, and that of UTF-8 in encodings with a byte for each letter."""


def _begin(lines: Iterable[str], delimiter: str | None) -> tuple[list[str], str, int]:
    """Return the names of the columns, the delimiter, and how many lines there are to the end of the header.

    Args:
        lines: of the file, with their ends.
        delimiter: null: found by the header and the rows below it.
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
    """Return whether the first of some lines is blank, a comment, or `sep=;`, and not the header."""
    line = lines[0].strip()
    if not line or SEPARATOR.match(lines[0]):
        return True
    is_name = bool(re.match(r"#\w", line)) and len(lines) > 1 and not lines[1].startswith("#")
    counts = [(line.count(mark), lines[-1].count(mark)) for mark in DELIMITERS]
    return line.startswith("#") and not (is_name and any(one == other > 0 for one, other in counts))


def _delimiter(lines: Sequence[str], is_whole: bool) -> str:
    """Return the delimiter that divides the rows as it divides the header; quoted ones do not count."""
    shares: dict[str, tuple[float, int]] = {}
    for delimiter in DELIMITERS:
        rows = [row for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if row]
        rows = rows if is_whole else rows[:-1]  # a quoted value may be cut short
        width = len(rows[0]) if rows else 0
        alike = sum(len(row) == width for row in rows[1:])
        shares[delimiter] = (alike / max(len(rows) - 1, 1) if width > 1 else -1.0, width)
    sure = [delimiter for delimiter in BY_ROWS if shares[delimiter][0] >= 0.9]
    return sure[0] if sure else max(DELIMITERS, key=lambda delimiter: shares[delimiter])


def names_in(path: Path, form: str | None, delimiter: str | None, encoding: str) -> tuple[list[str], str | None, int]:
    """Return the names of the columns, the delimiter, and how many lines there are to the end of the header.

    Args:
        form: the format of the file.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        if form != "csv":
            import pyarrow.dataset
            import pyarrow.parquet  # most of a second, which other data need not wait for

            if form == "parquet":
                return pyarrow.parquet.read_schema(path).names, None, 0  # a data set refuses names that are there twice
            return pyarrow.dataset.dataset(path, format=form).schema.names, None, 0
        opened: Any = gzip.open if path.suffix == ".gz" else Path.open
        with opened(path, "rt", encoding="utf-8-sig" if _is_utf8(encoding) else encoding, newline="") as file:
            found, chosen, count = _begin(file, delimiter)
            named = enumerate(found if any(map(str.strip, found)) else [])
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
    except (OSError, EOFError, ValueError, TypeError, csv.Error, zlib.error) as error:  # pyarrow's are among them
        raise UserError(
            f"{path} cannot be read ({str(error) or type(error).__name__})", "a CSV, TSV, Parquet or Feather file"
        ) from error


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def refuse_names(path: Path, columns: Sequence[str]) -> None:
    """Raise UserError for names that are missing, several times there, or too many."""
    if not any(column.strip() for column in columns):
        raise UserError(f"{path} is empty", "a header with the names of the columns, and rows below it")
    if "" in columns:  # of Parquet; a text file's get names
        raise UserError(f"{path}: column {columns.index('') + 1} has no name", "a name for each column")
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice:
        raise UserError(f"{path} has two columns named {twice[0]}", "unique column names")
    if len(columns) > MOST_COLUMNS:
        raise UserError(
            f"{path} has {len(columns):,} columns",
            f"at most {MOST_COLUMNS:,}; longer rows of numbers can be vectors of data=arrays",
        )
