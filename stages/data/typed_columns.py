"""Typed columns of tables: values of blocks as numbers, rows that cannot be used told, digests of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stages.data.tables import BLOCK, NUMBER, Block, Rows, cast
from stages.errors import UserError
from stages.storage.cache import array_by_parts

NUMBERS = ""
"""Name of the column that has the numbers of the rows; none in a file has it."""

UNKNOWN = np.iinfo(np.int64).min
"""A missing value of a category of whole numbers: in no vocabulary."""


@dataclass(frozen=True)
class Typed:
    """A column as it is read.

    kind: `number` (float64, nan where it is missing), `date` (the same, in seconds), `category` (int32, places in
    `texts`), or `whole` (a category of whole numbers, int64).
    required: whether a missing value makes a row unusable. least, most: of the numbers, the
    latter whatever their sign.
    """

    name: str
    kind: str
    required: bool = False
    least: float | None = None
    most: float | None = None

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({"category": np.int32, "whole": np.int64}.get(self.kind, np.float64))


class Bad(NamedTuple):
    """Values of a block that cannot be used: rows, bool [n], and what is wrong with them."""

    rows: np.ndarray
    why: str


class Reading:
    """Reads blocks as typed columns. texts: of each category, by the numbers that stand for them."""

    def __init__(self, columns: Sequence[Typed]) -> None:
        self.columns = columns
        self.texts: dict[str, dict[str, int]] = {column.name: {} for column in columns if column.kind == "category"}

    def read(self, block: Block) -> tuple[dict[str, np.ndarray], list[tuple[int, str, str]]]:
        """Returns the columns of a block, and of each row that cannot be used: its place, where it is, and why."""
        values: dict[str, np.ndarray] = {}
        wrong: dict[int, tuple[int, str, str]] = {}
        for column in self.columns:
            array = block.columns[column.name]
            values[column.name], bad = self._typed(array, column)
            for row in np.flatnonzero(bad.rows) if bad.rows.any() else ():
                shown = array[int(row)].as_py()
                text = "the value is missing" if shown is None else f"{str(shown)[:60]!r} {bad.why}"
                wrong.setdefault(int(row), (int(row), block.where(int(row), column.name), text))
        return values, [wrong[row] for row in sorted(wrong)]

    def _typed(self, array: pa.Array, column: Typed) -> tuple[np.ndarray, Bad]:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        none = missing if column.required else np.zeros(len(array), bool)
        if column.kind == "category":
            return self._codes(array.cast(pa.string()), column.name), Bad(none, "")
        kind = pa.int64() if column.kind == "whole" else pa.float64()
        why = "is no number"
        if column.kind == "date":
            instants = pd.to_datetime(array.to_pandas(), errors="coerce", utc=True, format="ISO8601")
            seconds, why = (instants - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), "is no date (such as 2024-12-31)"
            array = pa.array(seconds, from_pandas=True)
        numbers = cast(array, kind)
        if numbers is None:
            is_number = pc.match_substring_regex(array, r"^\s*[+-]?\d{1,18}\s*$" if column.kind == "whole" else NUMBER)
            numbers = pc.if_else(is_number, array, pa.scalar(None, pa.string()))
            numbers = pc.utf8_trim_whitespace(numbers).cast(kind)
        wrong = numbers.is_null().to_numpy(zero_copy_only=False) & ~missing
        values = numbers.fill_null(UNKNOWN if column.kind == "whole" else np.nan).to_numpy(zero_copy_only=False)
        if not wrong.any():
            wrong, why = np.isinf(values), "is infinite"
        if not wrong.any() and column.least is not None:
            wrong, why = values < column.least, f"is less than {column.least:g}"
        if not wrong.any() and column.most is not None and column.kind == "number":
            wrong, why = np.abs(values) > column.most, "is too large for a float32"
        return values, Bad(wrong | none, why)

    def _codes(self, array: pa.Array, name: str) -> np.ndarray:
        """Returns the number of each text, int32 [n], the empty one's where it is missing."""
        known = self.texts[name]
        encoded = array.fill_null("").dictionary_encode()
        numbers = [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()]
        return np.array(numbers, np.int32)[encoded.indices.to_numpy(zero_copy_only=False)]


def read(
    rows: Rows, columns: Sequence[Typed], count: int, on_error: str, folder: Path | None = None
) -> tuple[dict[str, np.ndarray], dict[str, list[str]], list[tuple[str, str]]]:
    """Returns the typed columns of all rows that can be used, the texts of categories, and what is left out, and why.

    Args:
        count: rows that there are, at most.
        on_error: of the settings.
        folder: takes a file `column_<n>.npy` for each column, whose rows at the end are not used; None: all are held
            in memory. A last column, NUMBERS, has the numbers of the rows in the files, from 0.

    Raises:
        UserError: where a row cannot be used, and `on_error` is `fail`.
    """
    reading = Reading(columns)
    dtypes = {**{column.name: column.dtype for column in columns}, NUMBERS: np.dtype(np.int64)}
    sinks = {
        name: array_by_parts(None if folder is None else folder / f"column_{place}.npy", dtype, (count,))
        for place, (name, dtype) in enumerate(dtypes.items())
    }
    skipped: list[tuple[str, str]] = []
    ragged: list[str] = []
    first = 0
    for block in rows.blocks([column.name for column in columns], ragged):
        values, wrong = reading.read(block)
        if wrong and on_error == "fail":
            raise UserError(
                f"{wrong[0][1]}: {wrong[0][2]}",
                "values that can be used (data.features has the kinds of columns, data.missing what means no value)",
                "data.on_error=skip",
            )
        skipped += [(where, why) for _, where, why in wrong]
        here = len(next(iter(block.columns.values())))
        keep = np.ones(here, bool)
        keep[[row for row, _, _ in wrong]] = False
        for name, array in {**values, NUMBERS: np.arange(first, first + here)}.items():
            sinks[name].add(array[keep] if wrong else array)
        first += here
    skipped += [("a row", why) for why in ragged]
    texts = {name: list(known) for name, known in reading.texts.items()}
    return {name: sink.close() for name, sink in sinks.items()}, texts, skipped


def digests(columns: Sequence[np.ndarray], texts: Sequence[Sequence[str] | None]) -> np.ndarray:
    """Returns 64 bits of each row, uint64 [N], equal where all values are.

    Args:
        columns: [N], or vectors [N, d].
        texts: of each column, those that its numbers stand for; None: it has numbers of its own.
    """
    parts = []
    for start in range(0, len(columns[0]), BLOCK):
        values: list[Any] = []
        for column, words in zip(columns, texts, strict=True):
            part = column[start : start + BLOCK]
            # Of numbers -0.0 is 0.0.
            values += [*np.atleast_2d(part.T + 0)] if words is None else [pd.Categorical.from_codes(part, words)]
        parts.append(pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(values))), index=False).to_numpy())
    return np.concatenate(parts)
