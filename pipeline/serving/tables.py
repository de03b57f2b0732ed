"""Exported models of columns, asked about the rows of tables; any model, about the arrays of `.npz` files."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.data.tables import argument_names, read_files
from stages.data.typed_columns import Typed, read
from stages.errors import UserError
from stages.features.drift import Drift
from stages.settings.places import regular_file
from stages.settings.table import Header, TableSettings, files_of
from stages.storage.atomic import atomic_write

BATCH = 2**14
"""Rows that are answered at once."""

ARRAYS = ".npz"
"""Suffix of files of arrays."""

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


def answers(loaded: Any, paths: Sequence[Path], drift: Drift) -> Iterator[tuple[Block, dict[str, np.ndarray]]]:
    """Yield some rows after others, with what the model answers by name, a row a row; `drift` counts them.

    Raises:
        UserError: where a file lacks a column that the model takes, or a row cannot be used.
    """
    if any(path.suffix == ARRAYS for path in paths):
        for path in paths:
            given = _arrays(path, _arguments(loaded))
            drift.add(given)
            for start in range(0, len(next(iter(given.values()))), BATCH):
                yield Block(path.name, start + 1), _answer(loaded, given, start)
        return
    settings = TableSettings(files=[str(path) for path in paths])
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
        raise UserError(f"the model takes vectors as {wide}, which {header.files[0]} cannot have", f"a {ARRAYS} file")
    typed = [Typed(columns[name], KINDS[spec.dtype.name]) for name, spec in arguments.items()]
    rows = read_files(header, settings)
    values, texts, wrong = read(rows, typed, "skip")
    if wrong:
        raise UserError(": ".join(wrong[0]), "values as the model was trained on")
    given = {name: _values(values[columns[name]], texts.get(columns[name])) for name in arguments}
    drift.add(given)
    begin = 0
    for name, count in rows.parts:
        for start in range(0, count, BATCH):
            here = slice(begin + start, begin + min(start + BATCH, count))
            yield Block(name, start + 1), _answer(loaded, {key: part[here] for key, part in given.items()}, 0)
        begin += count


def _arguments(loaded: Any) -> dict[str, Any]:
    return dict(loaded.signatures["serving_default"].structured_input_signature[1])


def _arrays(path: Path, arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file that a model takes, by its arguments; a single one has any name, or `x`.

    Raises:
        UserError: where one is missing, has another type or shape, or cannot be read.
    """
    try:
        with np.load(regular_file(path), allow_pickle=False) as file:
            found = {name: file[column] for column, name in argument_names(file.files).items()}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error})", "arrays of numbers or texts, without pickles") from error
    if len(arguments) == 1 and not {*arguments} & {*found}:
        alone = next(iter(found.values())) if len(found) == 1 else found.get("x_test", found.get("x"))
        found = {} if alone is None else {next(iter(arguments)): alone}
    given = {}
    for name, spec in arguments.items():
        if name not in found:
            raise UserError(f"{path} has no array {name}", f"the arrays that the model takes: {', '.join(arguments)}")
        array = found[name][..., np.newaxis] if spec.shape.rank == found[name].ndim + 1 == 4 else found[name]
        is_text = spec.dtype.name == "string"
        if array.shape[1:] != tuple(spec.shape[1:]) or (array.dtype.kind in "US") != is_text:
            raise UserError(f"{path}: {name} is {array.dtype} {array.shape}", f"{spec.dtype.name} {tuple(spec.shape)}")
        given[name] = array.astype(object if is_text else spec.dtype.name)
    return given


def _values(values: np.ndarray, texts: list[str] | None) -> np.ndarray:
    return values if texts is None else np.array(texts, object)[values]


def _answer(loaded: Any, columns: dict[str, np.ndarray], start: int) -> dict[str, np.ndarray]:
    tensorflow = import_module("tensorflow")
    part = {name: tensorflow.constant(values[start : start + BATCH]) for name, values in columns.items()}
    answered = loaded.signatures["serving_default"](**part)
    return {name: answered[name].numpy() for name in sorted(answered)}  # in an order that TensorFlow does not keep


def write_answers(loaded: Any, paths: Sequence[Path], output: Path, drift: Drift) -> int:
    """Write the answers for all rows to a Parquet file, with `file` and `row`, from 1; return how many there are."""
    written = 0

    def write(partial: Path) -> None:
        nonlocal written
        writer = None
        for block, columns in answers(loaded, paths, drift):
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
