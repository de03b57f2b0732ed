"""The rows of files and of requests as arguments of an exported model. Images are read, or decoded from base64."""

import base64
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipeline.serving.signatures import TEXT, accepts_texts, images_among_columns, row_arguments
from stages.data.convert import InvalidImageError, decode_each
from stages.errors import UserError
from stages.features.dates import FIRST, LAST
from stages.features.drift import Drift
from stages.settings.date_formats import DateFormat
from stages.settings.npz import arrays_in
from stages.settings.places import regular_file
from stages.settings.table import Header, TableSettings
from stages.settings.table_files import files_of, format_of

BATCH = 2**14
"""Number of rows that are predicted at once."""

IMAGE_BATCH = 64
"""The same of rows with images."""

REQUEST = "the table"
"""Name for rows that do not come from a file, for errors."""

KINDS = {"float64": "number", "int64": "whole", "string": "category"}
"""Kinds of columns by the dtypes of the model's arguments."""


def rows_of_files(
    loaded: Any, settings: TableSettings, drift: Drift
) -> Iterator[tuple[str, int, dict[str, np.ndarray]]]:
    """Yield the file, the number of the first row, and the rows as arguments of the model; a text file is one row."""
    from stages.data.tables import names_of, read_files  # imports pandas, which takes half a second
    from stages.load.folders import read_text

    files = files_of(settings.files)
    texts = [file for file in files if file.suffix.lower() == ".txt"] if accepts_texts(loaded) else []
    for text in texts:
        yield str(text), 1, {TEXT: np.array([read_text(text, settings.encoding)], object)}
    packed = [file for file in files if format_of(file) == "npz"]
    for file, path in zip(names_of(packed), packed, strict=True):
        for first, arrays in _rows_of_arrays(loaded, path, settings, drift):
            yield file, first, arrays
    paths = [file for file in files if file not in texts and file not in packed]
    headers = [Header.of([path], settings.delimiter, settings.encoding) for path in paths]
    named = [_columns(loaded, drift, header.columns, str(header.files[0])) for header in headers]
    for file, header, columns in zip(names_of(paths), headers, named, strict=True):
        with TemporaryDirectory() as scratch:  # a table may be larger than memory
            rows = read_files(header, settings, Path(scratch)).with_names(_names_in_training(columns, drift))
            read_slice = _reader(loaded, rows, columns, Path(scratch))
            root = Path(settings.root).expanduser() if settings.root else header.files[0].parent
            images = images_among_columns(loaded)
            size = IMAGE_BATCH if images else BATCH
            for start in range(0, len(rows), size):
                arrays = read_slice(slice(start, start + size))
                for name in images:
                    where = [f"{file} row {start + place + 1}, column {columns[name]}" for place in range(size)]
                    arrays[name] = _images(arrays[name].tolist(), where, partial(_content, root))
                yield file, start + 1, arrays


def _rows_of_arrays(
    loaded: Any, path: Path, settings: TableSettings, drift: Drift
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield the number of the first row, and arrays [N, …] of an `.npz` file as arguments of the model.

    The array of a model with a single argument may be called `x`, as in training.

    Raises:
        UserError: If the file cannot be read, lacks an array, or has one that the model does not accept.
    """
    import pandas as pd

    if images_among_columns(loaded):
        raise UserError(f"{path}: the model accepts image files next to columns, and no arrays", "a table")
    arguments, arrays = row_arguments(loaded), arrays_in(path)
    names = [*arguments, *(drift.columns.get(name, name) for name in arguments), "x"]
    alone = next((name for name in names if name in arrays), None) if len(arguments) == 1 else None
    columns = _columns(loaded, drift, list(arrays), str(path)) if alone is None else dict.fromkeys(arguments, alone)
    given = {name: arrays[column] for name, column in columns.items()}
    for name, array in given.items():
        spec = arguments[name]
        if 1 < array.ndim == spec.shape.rank - 1 and spec.shape[-1] == 1:
            given[name] = array = array[..., np.newaxis]  # gray images, and series with a single channel
        if not spec.shape.is_compatible_with(array.shape) or len(array) != len(next(iter(given.values()))):
            shown = ", ".join(map(str, ["N", *spec.shape[1:]]))
            problem = f"{path}: {columns[name]} has the shape {array.shape}"
            raise UserError(problem, f"the shape [{shown}], with the same N in all arrays")
    plain = {name: column for name, column in columns.items() if arguments[name].shape.rank == 1}
    if plain:
        frame = pd.DataFrame({column: given[name] for name, column in plain.items()})
        given |= _typed(loaded, settings, drift, frame, plain, str(path))
    size = IMAGE_BATCH if any(array.ndim == 4 for array in given.values()) else BATCH
    for start in range(0, len(next(iter(given.values()))), size):
        part = {name: array[start : start + size] for name, array in given.items()}
        wide = {name: arguments[name].dtype.as_numpy_dtype for name in part if name not in plain}
        yield start + 1, part | {name: part[name].astype(dtype) for name, dtype in wide.items()}


def _typed(
    loaded: Any, settings: TableSettings, drift: Drift, frame: Any, columns: Mapping[str, str], where: str
) -> dict[str, np.ndarray]:
    """Return columns of a data frame as arguments of the model, read like the columns of a CSV file.

    Args:
        loaded: The SavedModel.
        settings: How to read values.
        drift: The columns of the training data.
        frame: The data frame.
        columns: The columns by arguments of the model.
        where: The name of the file or the request, for errors.

    Raises:
        UserError: If a column has a value that the model does not accept.
    """
    import pyarrow as pa

    from stages.data.tables import Rows, reading_of

    texts = as_texts(frame[[*dict.fromkeys(columns.values())]], settings)
    rows = Rows(where, pa.table(texts), [(where, len(frame))], **reading_of(settings))
    rows = rows.with_names(_names_in_training(columns, drift))
    seconds = [name for name in columns.values() if _are_seconds(name, frame[name], rows.date_of(name), where)]
    formats = {column: pattern for column, pattern in rows.date_format.items() if column not in seconds}
    return _reader(loaded, replace(rows, date_format=formats), columns)(slice(None))


def arguments_of(loaded: Any, settings: TableSettings, drift: Drift, data: Any) -> dict[str, np.ndarray]:
    """Return the columns of a request as arguments of the model, read like the columns of a CSV file.

    Args:
        loaded: The SavedModel.
        settings: How to read values.
        drift: The columns of the training data.
        data: A data frame, columns by name, or the values of the only column.

    Raises:
        UserError: If a column is missing, or contains a value that the model does not accept.
        ValueError, TypeError: If the vectors of a column do not make an array.
    """
    import pandas as pd

    arguments = row_arguments(loaded)
    by_name = data if hasattr(data, "items") else {next(iter(arguments)): data}
    frame = pd.DataFrame({str(name): list(map(_unwrapped, values)) for name, values in by_name.items()})
    columns = _columns(loaded, drift, list(frame), REQUEST)
    wide = {name: column for name, column in columns.items() if arguments[name].shape.rank > 1}
    images = {name: columns[name] for name in images_among_columns(loaded)}
    plain = {name: column for name, column in columns.items() if name not in wide and name not in images}
    arrays = _typed(loaded, settings, drift, frame, plain, REQUEST)
    for name, column in images.items():
        where = [f"{REQUEST} row {place + 1}, column {column}" for place in range(len(frame))]
        arrays[name] = _images(frame[column].tolist(), where, _decoded)
    for name, column in wide.items():
        arrays[name] = np.stack(frame[column]).astype(arguments[name].dtype.as_numpy_dtype)
        if not arguments[name].shape.is_compatible_with(arrays[name].shape):  # TensorFlow would abort the process
            problem = f"{column} has the shape {arrays[name].shape[1:]}"
            raise UserError(problem, f"the shape {arguments[name].shape[1:]} for each row")
    return arrays


def _reader(
    loaded: Any, rows: Any, columns: Mapping[str, str], folder: Path | None = None
) -> Callable[[slice], dict[str, np.ndarray]]:
    """Return a function from a slice of the rows to the arguments of the model.

    Args:
        loaded: The SavedModel.
        rows: The rows of a file or of a request.
        columns: The columns by arguments of the model.
        folder: The folder for the values as files; None keeps them in memory.

    Raises:
        UserError: If the model does not accept a value.
    """
    from stages.data.tables import Typed, read

    arguments = row_arguments(loaded)
    images = images_among_columns(loaded)
    kinds = {column: KINDS[arguments[name].dtype.name] for name, column in columns.items()}
    kinds |= dict.fromkeys(rows.date_format, "date")
    typed = [Typed(column, kinds[column], name in images) for name, column in columns.items()]
    values, texts, wrong = read(rows, typed, "skip", folder)
    if wrong:
        raise UserError(": ".join(wrong[0]), "values of the same type as in training")
    words = {name: np.array(texts[column], object) for name, column in columns.items() if column in texts}

    def read_slice(part: slice) -> dict[str, np.ndarray]:
        arrays = {name: values[column][part] for name, column in columns.items()}
        return {name: words[name][array] if name in words else array for name, array in arrays.items()}

    return read_slice


def _images(values: Sequence[Any], where: Sequence[str], read: Callable[[Any], bytes]) -> np.ndarray:
    """Return encoded images, object [n], that TensorFlow decodes; other formats are converted as for training.

    Args:
        values: The paths, or the contents, of the images.
        where: The place of each value, for errors.
        read: Returns the content of a value. It raises InvalidImageError if there is none.

    Raises:
        UserError: If an image cannot be read.
    """
    tensorflow = import_module("tensorflow")

    def decodable(contents: list[bytes]) -> list[bytes]:
        for content in contents:
            tensorflow.io.decode_jpeg(content, 3)  # also reads PNG
        return contents

    images = np.empty(len(values), object)
    for place, value in enumerate(values):
        try:
            [image] = decode_each([read(value)], decodable, tensorflow.errors.OpError)
        except InvalidImageError as error:
            image = error
        if isinstance(image, InvalidImageError):
            raise UserError(f"{where[place]}: {str(value)[:60]!r}: {image}", "an image, as in training")
        images[place] = image
    return images


def _content(root: Path, path: str) -> bytes:
    try:
        return regular_file(root / path).read_bytes()
    except (OSError, ValueError) as error:  # an impossible path
        raise InvalidImageError(getattr(error, "strerror", None) or str(error)) from error


def _decoded(value: Any) -> bytes:
    """Return the content of an image in a request: bytes, or text in base64."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode("".join(str(value).split()), validate=True)
    except ValueError as error:
        raise InvalidImageError(f"expected an image in base64 ({error})") from error


def _names_in_training(columns: Mapping[str, str], drift: Drift) -> dict[str, str]:
    """Return the name in training of each column, by its own name, which may be that of an argument."""
    return {column: drift.columns.get(name, name) for name, column in columns.items()}


def _are_seconds(column: str, values: Any, date: DateFormat, where: str) -> bool:
    """Return whether given dates are numbers: seconds since 1970, as in the signature of the model.

    Raises:
        UserError: If such a number may also be a date in the notation of training, or milliseconds.
    """
    given = [value for value in values.dropna() if isinstance(value, numbers.Real) and not isinstance(value, bool)]
    if given and date.is_of_numbers and not date.is_in_seconds:
        notation = f"{date.pattern} in {date.zone}" if date.zone else date.pattern
        problem = f"{where}, column {column}: the number {given[0]} may be {notation}, or seconds as in the signature"
        raise UserError(problem, f'a date as a text, such as "{date.example}"')
    are_seconds = bool(date.pattern) and len(given) == values.notna().sum()
    other = next((value for value in given if not FIRST <= float(value) <= LAST), None) if are_seconds else None
    if other is not None:
        problem = f"{where}, column {column}: the number {other} is not a time in seconds since 1970"
        raise UserError(problem, f'a year from 1 to 9999, or a date as a text, such as "{date.example}"')
    return are_seconds


def _columns(loaded: Any, drift: Drift, given: Sequence[str], where: str) -> dict[str, str]:
    """Return the column for each argument of the model.

    A column may have its name in training, or the name of the argument.

    Args:
        loaded: The SavedModel.
        drift: The columns of the training data.
        given: The columns of a file or a request.
        where: The name of the file or the request, for errors.

    Raises:
        UserError: If a column is missing.
    """
    from stages.data.tables import argument_names

    trained = {name: column for column, name in argument_names(given).items()} | drift.columns
    columns = {name: trained.get(name, name) for name in row_arguments(loaded)}
    columns = {name: column if column in given or name not in given else name for name, column in columns.items()}
    missing = next((column for column in columns.values() if column not in given), None)
    if missing is not None:
        expected = f"the columns that the model requires: {', '.join(columns.values())}"
        raise UserError(f"{where} has no column {missing}", expected)
    return columns


def as_texts(frame: Any, settings: TableSettings) -> dict[str, Any]:
    """Return the columns of a data frame as Arrow columns of texts, by name, as a file would have them."""
    import pyarrow as pa

    texts: dict[str, Any] = {}
    for column in frame:
        values = zip(frame[column].tolist(), frame[column].isna(), strict=True)
        cells = [None if is_missing else _as_text(value, settings) for value, is_missing in values]
        texts[column] = pa.array(cells, pa.string())
    return texts


def _as_text(value: Any, settings: TableSettings) -> str:
    """Return a value of a request as a file would have it, possibly with a decimal comma."""
    is_float = isinstance(value, (float, np.floating))
    return str(value).removesuffix(".0").replace(".", settings.decimal) if is_float else str(value)


def _unwrapped(value: Any) -> Any:
    """Return a value of a request; MLflow wraps some values in arrays without axes."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value
