"""Typed columns of tables: values as numbers, rows that cannot be used told, digests of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stages.data.tables import BLOCK, NUMBER, Rows, Values, cast
from stages.errors import UserError

NUMBERS = ""
"""Name of the column that has the numbers of the rows; none in a file has it."""

UNKNOWN = np.iinfo(np.int64).min
"""A missing value of a category of whole numbers: in no vocabulary."""


@dataclass(frozen=True)
class Typed:
    """A column as it is read.

    kind: `number` (float64, nan where it is missing), `date` (the same, in seconds), `category` (int32, places in
    `texts`), or `whole` (a category of whole numbers, int64).
    required: whether a missing value makes a row unusable. least, most: of the numbers, the latter whatever their sign.
    """

    name: str
    kind: str
    required: bool = False
    least: float | None = None
    most: float | None = None


class Converted(NamedTuple):
    """A typed column. texts: of a category, by the numbers that stand for them. bad: rows without a use, and why."""

    values: np.ndarray
    texts: list[str] | None
    bad: list[tuple[np.ndarray, str]]


def converted(array: Values, column: Typed) -> Converted:
    """Returns a column as `column` says."""
    missing = array.is_null().to_numpy()
    bad = [(missing, "")] if column.required else []
    if column.kind == "category":
        encoded = array.cast(pa.string()).fill_null("").dictionary_encode().combine_chunks()
        return Converted(encoded.indices.to_numpy(), encoded.dictionary.to_pylist(), bad)
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
    values = numbers.fill_null(UNKNOWN if column.kind == "whole" else np.nan).to_numpy(zero_copy_only=False)
    bad += [(numbers.is_null().to_numpy(zero_copy_only=False) & ~missing, why), (np.isinf(values), "is infinite")]
    if column.least is not None:
        bad.append((values < column.least, f"is less than {column.least:g}"))
    if column.most is not None and column.kind == "number":
        bad.append((np.abs(values) > column.most, "is too large for a float32"))
    return Converted(values, None, bad)


def read(
    rows: Rows, columns: Sequence[Typed], on_error: str, folder: Path | None = None
) -> tuple[dict[str, np.ndarray], dict[str, list[str]], list[tuple[str, str]]]:
    """Returns the typed columns of all rows that can be used, the texts of categories, and what is left out, and why.

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
        arrays[name] = values if folder is None else _saved(folder / f"column_{place}.npy", values)

    for column in columns:
        given = rows.column(column.name)
        values, words, bad = converted(given, column)
        for row, why in [(int(row), why) for part, why in bad for row in np.flatnonzero(part)]:
            shown = given[row].as_py()
            text = "the value is missing" if shown is None else f"{str(shown)[:60]!r} {why}"
            wrong.setdefault(row, (rows.where(row, column.name), text))
        if words is not None:
            texts[column.name] = words
        keep(column.name, values)
    if wrong and on_error == "fail":
        where, why = wrong[min(wrong)]
        raise UserError(
            f"{where}: {why}",
            "values that can be used (data.features has the kinds of columns, data.missing what means no value)",
            "data.on_error=skip",
        )
    numbers = np.delete(np.arange(len(rows)), list(wrong))
    for name, values in list(arrays.items()) if wrong else ():
        keep(name, values[numbers])
    keep(NUMBERS, numbers)
    return arrays, texts, [*(wrong[row] for row in sorted(wrong)), *(("a row", why) for why in rows.ragged)]


def _saved(path: Path, values: np.ndarray) -> np.ndarray:
    """Returns values from a file that has them."""
    np.save(path, values)
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


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
