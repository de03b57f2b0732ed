"""Find exported models by their run or their address in MLflow, and predict for images and the rows of tables."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.runs.finding import Runs
from pipeline.serving import masks
from pipeline.serving.masks import MASK
from pipeline.system.environment import quiet_stderr
from pipeline.tracking.models import ADDRESSES, model_folder
from pipeline.tracking.store import Store
from stages.data.convert import decode_each
from stages.errors import UserError
from stages.exporters.reload import load_saved_model
from stages.features.drift import Drift
from stages.settings.folders import IMAGE_SUFFIXES, TEXT_SUFFIXES
from stages.settings.places import regular_folder
from stages.settings.table import MISSING, Header, TableSettings
from stages.settings.table_files import NAMES, files_of
from stages.storage.atomic import atomic_write

BYTES = "serve_bytes"
"""The signature of a SavedModel that accepts encoded images."""

TEXT = "text"
"""The only argument of a model of texts that are stored in one file each."""

FIX = "--tracking-uri=<address>"
"""The option for a model in another tracking server, for errors."""

BATCH = 2**14
"""Number of rows that are predicted at once."""

REQUEST = "the table"
"""Name for rows that do not come from a file, for errors."""

KINDS = {"float64": "number", "int64": "whole", "string": "category"}
"""Kinds of columns by the dtypes of the model's arguments."""


def saved_model(model: str, uri: str | None, outputs: Path) -> Path:
    """Return the folder of a SavedModel on this machine, without creating a database in `outputs`.

    Args:
        model: A run, tracked or not, by its folder or the beginning of its id, whose export is used; or an address in
            MLflow, such as `models:/digits@champion`.
        uri: The MLflow server of an address. None means the database in `outputs`.
        outputs: The folder of all results.

    Raises:
        UserError: If the run, the database or the model does not exist.
    """
    if not model.startswith(ADDRESSES):
        run = Runs(outputs).find(model)
        folder = run.folder / "export" / "saved_model"
        if not folder.is_dir():
            problem = f"{shorter(run.folder)} has no exported SavedModel"
            raise UserError(
                problem,
                "a run with an exported SavedModel",
                f"python -m pipeline from=export run={model} export=saved_model",
            )
        try:
            return regular_folder(folder)
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}", "an unchanged SavedModel") from error
    settings = TrackingSettings("server" if uri else "local", uri)
    settings.check("tracking")
    if not uri and not (outputs / "mlflow.db").is_file():
        raise UserError(
            f"there is no mlflow.db in {shorter(outputs)}", "the outputs in which the model was registered", FIX
        )
    folder = model_folder(model, Store(settings, outputs), "MODEL", FIX)
    return next((path.parent for path in folder.rglob("saved_model.pb")), folder)


def load(folder: Path) -> Any:
    """Return the SavedModel in `folder`. TensorFlow is imported here."""
    with quiet_stderr():
        return load_saved_model(str(folder))


def drift_of(loaded: Any) -> Drift:
    """Return the comparison of new rows with the training data of a SavedModel; no-op for older exports."""
    known = getattr(loaded, "trained_on", None)
    decoder = import_module("stages.data.decode").Decoder  # imports TensorFlow, which the model has imported already
    return Drift("{}" if known is None else known.numpy().decode(), decoder)


def class_names(loaded: Any) -> list[str]:
    """Return the names of a SavedModel's classes, labels or targets, in the order of its outputs."""
    return [name.decode() for name in loaded.class_names.numpy()] if hasattr(loaded, "class_names") else []


def predicts_masks(loaded: Any) -> bool:
    """Return whether a SavedModel predicts a class for each pixel."""
    return any(MASK in signature.structured_outputs for signature in loaded.signatures.values())


def resize_of(loaded: Any) -> str:
    """Return the way in which images were resized in training, `stretch`, `crop` or `pad`."""
    return masks.resize_of(json.loads(loaded.trained_on.numpy()) if hasattr(loaded, "trained_on") else {})


def encoded_function(loaded: Any) -> Any:
    """Return the function of a SavedModel that accepts encoded images, string [N].

    Raises:
        UserError: If it does not have one.
    """
    if BYTES not in loaded.signatures:
        raise UserError(
            f"the model does not accept encoded images (it has no {BYTES})",
            "a model of gray or color images, exported by this version",
        )
    return loaded.signatures[BYTES]


def scores(classify: Any, encoded: list[bytes]) -> list[dict[str, Any] | str]:
    """Return the outputs for each encoded image by name, numbers last, or the reason why it cannot be decoded.

    The names are `class_name`, `score` and `probabilities` for classes, `probabilities` for labels, `prediction` for
    numbers, and `mask` for classes of pixels, whose probabilities are left out.

    Args:
        classify: The signature `serve_bytes` of a SavedModel.
        encoded: The contents of image files.
    """
    tensorflow = import_module("tensorflow")

    def classified(contents: list[bytes]) -> list[dict[str, Any]]:
        outputs = classify(tensorflow.constant(contents, tensorflow.string))
        names = [MASK] if MASK in outputs else sorted(outputs, key=lambda name: (np.ndim(outputs[name]), name))
        columns = {name: outputs[name].numpy() for name in names}
        texts = {name: [text.decode() for text in column] for name, column in columns.items() if column.dtype == object}
        values = [texts.get(name, column.tolist()) for name, column in columns.items()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]

    results = decode_each(encoded, classified, tensorflow.errors.OpError)
    return [result if isinstance(result, dict) else f"the image cannot be decoded: {result}" for result in results]


def accepts_columns(loaded: Any) -> bool:
    """Return whether a SavedModel accepts columns, with a value or a vector per row, and not images."""
    is_default = "serving_default" in loaded.signatures
    return is_default and all(spec.shape.rank <= 2 for spec in _arguments(loaded).values())


def accepts_texts(loaded: Any) -> bool:
    """Return whether a SavedModel accepts texts that are stored in one file each, as with `data=text_folder`."""
    known = {"delimiter": None} if not hasattr(loaded, "reading") else json.loads(loaded.reading.numpy())
    return "delimiter" not in known and accepts_columns(loaded) and [*_arguments(loaded)] == [TEXT]


def suffixes_of(loaded: Any) -> tuple[str, ...]:
    """Return the suffixes of the files in a folder that a SavedModel accepts."""
    return TEXT_SUFFIXES if accepts_texts(loaded) else NAMES if accepts_columns(loaded) else IMAGE_SUFFIXES


def reading_settings(loaded: Any, paths: Sequence[Path] = ()) -> TableSettings:
    """Return the settings for reading tables, which are the same as in training."""
    known = json.loads(loaded.reading.numpy()) if hasattr(loaded, "reading") else {}
    if "decimal" not in known:  # older exports always read these as missing values
        known["missing"] = [*MISSING, *known.get("missing", ())]
    return TableSettings(files=[str(path) for path in paths], **known)


def predictions(loaded: Any, settings: TableSettings, drift: Drift, by_class: bool = False) -> Iterator[Any]:
    """Yield Arrow tables of predictions for the rows of files, with the columns `file` and `row`.

    Rows are counted from 1, without the header.

    The schema's metadata contains the names of the classes, as in `predictions.parquet`.

    Args:
        loaded: The SavedModel.
        settings: How to read the files, and their paths.
        drift: Counts the rows.
        by_class: Whether to return one column per class, such as `probabilities.cat`, instead of lists.

    Raises:
        UserError: If a file lacks a column that the model requires, or a row cannot be used.
    """
    import pyarrow as pa

    metadata = {"class_names": json.dumps(class_names(loaded))}
    for name, first, arguments in _rows_of_files(loaded, settings, drift):
        drift.add(arguments)
        columns = prediction_columns(loaded, arguments, by_class)
        count = len(next(iter(columns.values())))
        place = {"file": pa.array([name] * count), "row": np.arange(first, first + count)}
        yield pa.table({**place, **columns}, metadata=metadata)


def prediction_columns(loaded: Any, arguments: Mapping[str, np.ndarray], by_class: bool = False) -> dict[str, Any]:
    """Return predictions for rows as Arrow columns by name: texts, numbers, or lists of numbers."""
    import pyarrow as pa

    classes, columns = class_names(loaded), dict[str, Any]()
    for name, values in outputs_of(loaded, arguments).items():
        if values.dtype == object:
            columns[name] = pa.array([value.decode() for value in values])
        elif values.ndim == 1 or values.shape[1] == 1:
            columns[name] = pa.array(values.ravel())
        elif by_class:
            parts = classes if len(classes) == values.shape[1] else range(values.shape[1])
            columns |= {f"{name}.{part}": pa.array(column) for part, column in zip(parts, values.T, strict=True)}
        else:
            columns[name] = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
    return columns


def _rows_of_files(
    loaded: Any, settings: TableSettings, drift: Drift
) -> Iterator[tuple[str, int, dict[str, np.ndarray]]]:
    """Yield the file, the number of the first row, and the rows as arguments of the model; a text file is one row."""
    from stages.data.tables import names_of, read_files  # imports pandas, which takes half a second
    from stages.load.folders import read_text

    files = files_of(settings.files)
    texts = [file for file in files if file.suffix.lower() == ".txt"] if accepts_texts(loaded) else []
    for text in texts:
        yield str(text), 1, {TEXT: np.array([read_text(text, settings.encoding)], object)}
    paths = [file for file in files if file not in texts]
    headers = [Header.of([path], settings.delimiter, settings.encoding) for path in paths]
    named = [_columns(loaded, drift, header.columns, str(header.files[0])) for header in headers]
    for file, header, columns in zip(names_of(paths), headers, named, strict=True):
        with TemporaryDirectory() as scratch:  # a table may be larger than memory
            rows = read_files(header, settings, Path(scratch))
            read_slice = _reader(loaded, rows, columns, Path(scratch))
            for start in range(0, len(rows), BATCH):
                yield file, start + 1, read_slice(slice(start, start + BATCH))


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
    import pyarrow as pa

    from stages.data.tables import Rows, reading_of

    arguments = _arguments(loaded)
    by_name = data if hasattr(data, "items") else {next(iter(arguments)): data}
    frame = pd.DataFrame({str(name): list(map(_unwrapped, values)) for name, values in by_name.items()})
    columns = _columns(loaded, drift, list(frame), REQUEST)
    wide = {name: column for name, column in columns.items() if arguments[name].shape.rank > 1}
    plain = {name: column for name, column in columns.items() if name not in wide}
    texts: dict[str, Any] = {}
    for column in plain.values():
        values = zip(frame[column].tolist(), frame[column].isna(), strict=True)
        cells = [None if is_missing else _as_text(value, settings) for value, is_missing in values]
        texts[column] = pa.array(cells, pa.string())
    rows = Rows(REQUEST, pa.table(texts), [(REQUEST, len(frame))], **reading_of(settings))
    arrays = _reader(loaded, rows, plain)(slice(None))
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

    arguments = _arguments(loaded)
    typed = [Typed(column, KINDS[arguments[name].dtype.name]) for name, column in columns.items()]
    values, texts, wrong = read(rows, typed, "skip", folder)
    if wrong:
        raise UserError(": ".join(wrong[0]), "values of the same type as in training")
    words = {name: np.array(texts[column], object) for name, column in columns.items() if column in texts}

    def read_slice(part: slice) -> dict[str, np.ndarray]:
        arrays = {name: values[column][part] for name, column in columns.items()}
        return {name: words[name][array] if name in words else array for name, array in arrays.items()}

    return read_slice


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
    columns = {name: trained.get(name, name) for name in _arguments(loaded)}
    columns = {name: column if column in given or name not in given else name for name, column in columns.items()}
    missing = next((column for column in columns.values() if column not in given), None)
    if missing is not None:
        expected = f"the columns that the model requires: {', '.join(columns.values())}"
        raise UserError(f"{where} has no column {missing}", expected)
    return columns


def _as_text(value: Any, settings: TableSettings) -> str:
    """Return a value of a request as a file would have it, possibly with a decimal comma."""
    is_float = isinstance(value, (float, np.floating))
    return str(value).removesuffix(".0").replace(".", settings.decimal) if is_float else str(value)


def _unwrapped(value: Any) -> Any:
    """Return a value of a request; MLflow wraps some values in arrays without axes."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _arguments(loaded: Any) -> dict[str, Any]:
    return dict(loaded.signatures["serving_default"].structured_input_signature[1])


def outputs_of(loaded: Any, arguments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of the model by name, one row per input row."""
    tensorflow = import_module("tensorflow")
    outputs = loaded.signatures["serving_default"](
        **{name: tensorflow.constant(values) for name, values in arguments.items()}
    )
    return {name: outputs[name].numpy() for name in sorted(outputs)}  # TensorFlow does not keep an order


def write_predictions(loaded: Any, settings: TableSettings, output: Path, drift: Drift) -> int:
    """Write the predictions for all rows to a Parquet or CSV file; return their number."""
    import pyarrow.csv
    import pyarrow.parquet as pq

    is_csv, total = output.suffix == ".csv", 0

    def write(partial: Path) -> None:
        nonlocal total
        writer: Any = None
        for table in predictions(loaded, settings, drift, by_class=is_csv):
            writer = writer or (pyarrow.csv.CSVWriter if is_csv else pq.ParquetWriter)(partial, table.schema)
            writer.write_table(table)
            total += len(table)
        if writer is None:
            raise UserError(f"{settings.files[0]} has no rows", "at least one row below the header")
        writer.close()

    atomic_write(output, write)
    return total
