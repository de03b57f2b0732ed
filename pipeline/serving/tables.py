"""Exported models of columns, asked about the rows of tables."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.run_folder.runs import CONFIG, read_config
from stages.data.tables import Typed, argument_names, read, read_files
from stages.errors import UserError
from stages.features.drift import Drift
from stages.settings.table import Header, TableSettings, files_of
from stages.storage.atomic import atomic_write

BATCH = 2**14
"""Rows that are answered at once."""

KINDS = {"float64": "number", "int64": "whole", "string": "category"}
"""Kinds of columns, by the dtypes of the model's arguments."""


class Block(NamedTuple):
    """Rows of a file, from the one numbered `first` on, counted from 1 without the header."""

    name: str
    first: int


def takes_columns(loaded: Any) -> bool:
    """Return whether a loaded SavedModel takes columns, a value or a vector for each row, and no images."""
    is_default = "serving_default" in loaded.signatures
    return is_default and all(spec.shape.rank <= 2 for spec in _arguments(loaded).values())


def as_trained(saved: Path, paths: Sequence[Path]) -> TableSettings:
    """Return how to read tables: as the run in whose folder the SavedModel `saved` is read its own, if it had any."""
    folder = saved.parents[1]
    data = read_config(folder).get("data") or {} if (folder / CONFIG).is_file() else {}
    same = {name: data[name] for name in ("delimiter", "encoding", "missing") if "missing" in data}
    return TableSettings(files=[str(path) for path in paths], **same)


def answers(loaded: Any, settings: TableSettings, drift: Drift) -> Iterator[tuple[Block, dict[str, np.ndarray]]]:
    """Yield some rows after others, with what the model answers by name, a row a row; `drift` counts them.

    Raises:
        UserError: where a file lacks a column that the model takes, or a row cannot be used.
    """
    header = Header.of(files_of(settings.files), settings.delimiter, settings.encoding)
    columns = {name: column for column, name in argument_names(header.columns).items()}
    arguments = _arguments(loaded)
    missing = next((name for name in arguments if name not in columns), None)
    if missing is not None:
        raise UserError(
            f"{header.files[0]} has no column {missing}", f"the columns that the model takes: {', '.join(arguments)}"
        )
    wide = next((name for name, spec in arguments.items() if spec.shape.rank > 1), None)
    if wide is not None:
        raise UserError(f"the model takes vectors as {wide}, which {header.files[0]} cannot have", "Python and MLflow")
    typed = [Typed(columns[name], KINDS[spec.dtype.name]) for name, spec in arguments.items()]
    with TemporaryDirectory() as scratch:  # a table may be larger than memory
        rows = read_files(header, settings, Path(scratch))
        values, texts, wrong = read(rows, typed, "skip", Path(scratch))
        if wrong:
            raise UserError(": ".join(wrong[0]), "values as the model was trained on")
        words = {name: np.array(found, object) for name, found in texts.items()}
        begin = 0
        for file, count in rows.parts:
            for start in range(0, count, BATCH):
                here = slice(begin + start, begin + min(start + BATCH, count))
                given = {name: _values(values[columns[name]][here], words.get(columns[name])) for name in arguments}
                drift.add(given)
                yield Block(file, start + 1), _answer(loaded, given)
            begin += count


def _arguments(loaded: Any) -> dict[str, Any]:
    return dict(loaded.signatures["serving_default"].structured_input_signature[1])


def _values(values: np.ndarray, words: np.ndarray | None) -> np.ndarray:
    return values if words is None else words[values]


def _answer(loaded: Any, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensorflow = import_module("tensorflow")
    answered = loaded.signatures["serving_default"](
        **{name: tensorflow.constant(part) for name, part in columns.items()}
    )
    return {name: answered[name].numpy() for name in sorted(answered)}  # in an order that TensorFlow does not keep


def write_answers(loaded: Any, settings: TableSettings, output: Path, drift: Drift) -> int:
    """Write the answers for all rows to a Parquet file, with `file` and `row`, from 1; return how many there are."""
    written = 0

    def write(partial: Path) -> None:
        nonlocal written
        writer = None
        for block, columns in answers(loaded, settings, drift):
            count = len(next(iter(columns.values())))
            named = {"file": pa.array([block.name] * count), "row": np.arange(block.first, block.first + count)}
            table = pa.table({**named, **{name: _arrow(values) for name, values in columns.items()}})
            writer = writer or pq.ParquetWriter(partial, table.schema)
            writer.write_table(table)
            written += count
        if writer is None:
            raise UserError(f"{settings.files[0]} has no rows", "rows below the header")
        writer.close()

    atomic_write(output, write)
    return written


def _arrow(values: np.ndarray) -> pa.Array:
    """Return answers as a column: of texts, numbers, or lists of numbers."""
    if values.dtype == object:
        return pa.array([value.decode() for value in values])
    return pa.array(values) if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
