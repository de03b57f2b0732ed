"""Exported models of columns, asked about the rows of tables."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.data.tables import Block, FileRows, argument_names
from stages.data.typed_columns import Reading, Typed
from stages.errors import UserError
from stages.settings.table import Header, TableSettings, files_of
from stages.storage.atomic import atomic_write

BATCH = 2**14
"""Rows that are answered at once."""

KINDS = {"float64": "number", "int64": "whole", "string": "category"}
"""Kinds of columns, by the dtypes of the model's arguments."""


def takes_columns(loaded: Any) -> bool:
    """Return whether a loaded SavedModel takes columns, a value for each row, and no images."""
    is_default = "serving_default" in loaded.signatures
    return is_default and all(spec.shape.rank == 1 for spec in _arguments(loaded).values())


def answers(loaded: Any, paths: Sequence[Path]) -> Iterator[tuple[Block, dict[str, np.ndarray]]]:
    """Yield some rows after others, with what the model answers by name, a row a row.

    Raises:
        UserError: where a file lacks a column that the model takes, or a row cannot be used.
    """
    settings = TableSettings(files=[str(path) for path in paths])
    header = Header.of(files_of(settings.files), settings.delimiter, settings.encoding)
    columns = {name: column for column, name in argument_names(header.columns).items()}
    arguments = _arguments(loaded)
    missing = next((name for name in arguments if name not in columns), None)
    if missing is not None:
        raise UserError(
            f"{header.files[0]} has no column {missing}", f"the columns that the model takes: {', '.join(arguments)}"
        )
    reading = Reading([Typed(columns[name], KINDS[spec.dtype.name]) for name, spec in arguments.items()])
    for block in FileRows(header, settings).blocks([columns[name] for name in arguments]):
        values, wrong = reading.read(block)
        if wrong:
            raise UserError(f"{wrong[0][1]}: {wrong[0][2]}", "values as the model was trained on")
        given = {name: _values(values[columns[name]], reading.texts.get(columns[name])) for name in arguments}
        parts = [_answer(loaded, given, start) for start in range(0, len(next(iter(given.values()))), BATCH)]
        yield block, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _arguments(loaded: Any) -> dict[str, Any]:
    return dict(loaded.signatures["serving_default"].structured_input_signature[1])


def _values(values: np.ndarray, texts: dict[str, int] | None) -> np.ndarray:
    return values if texts is None else np.array([*texts], object)[values]


def _answer(loaded: Any, columns: dict[str, np.ndarray], start: int) -> dict[str, np.ndarray]:
    tensorflow = import_module("tensorflow")
    part = {name: tensorflow.constant(values[start : start + BATCH]) for name, values in columns.items()}
    answered = loaded.signatures["serving_default"](**part)
    return {name: answered[name].numpy() for name in sorted(answered)}  # in an order that TensorFlow does not keep


def write_answers(loaded: Any, paths: Sequence[Path], output: Path) -> int:
    """Write the answers for all rows to a Parquet file, with `file` and `row`, from 1; return how many there are."""
    written = 0

    def write(partial: Path) -> None:
        nonlocal written
        writer = None
        for block, columns in answers(loaded, paths):
            count = len(next(iter(columns.values())))
            named = {"file": pa.array([block.name] * count), "row": np.arange(block.first, block.first + count)}
            table = pa.table({**named, **{name: _arrow(values) for name, values in columns.items()}})
            writer = writer or pq.ParquetWriter(partial, table.schema)
            writer.write_table(table)
            written += count
        if writer is None:
            raise UserError(f"{paths[0]} has no rows", "rows below the header")
        writer.close()

    atomic_write(output, write)
    return written


def _arrow(values: np.ndarray) -> pa.Array:
    """Return answers as a column: of texts, numbers, or lists of numbers."""
    if values.dtype == object:
        return pa.array([value.decode() for value in values])
    return pa.array(values) if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
