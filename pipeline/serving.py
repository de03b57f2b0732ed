"""Exported models: found by their run or their address in MLflow, and asked about images and the rows of tables."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.run_folder.runs import Runs
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
"""The signature of a SavedModel that takes encoded images."""

TEXT = "text"
"""The only argument of a model of texts of a file each."""

FIX = "--tracking-uri=<address>"
"""The option that a model in another store needs, for errors."""

BATCH = 2**14
"""Rows that are answered at once."""

REQUEST = "the table"
"""Name of rows that no file has."""

KINDS = {"float64": "number", "int64": "whole", "string": "category"}
"""Kinds of columns, by the dtypes of the model's arguments."""


def saved_model(model: str, uri: str | None, outputs: Path) -> Path:
    """Return the folder of a SavedModel on this machine; makes no store in `outputs`.

    Args:
        model: a run, by its folder or the beginning of its id, tracked or not: its export; or an address in MLflow,
            such as `models:/digits@champion`.
        uri: the store of an address; None: the one in `outputs`.
        outputs: where runs are.

    Raises:
        UserError: where there is no such run, store or model.
    """
    if not model.startswith(ADDRESSES):
        run = Runs(outputs).find(model)
        folder = Path(run.folder) / "export" / "saved_model"
        if not folder.is_dir():
            problem = f"{shorter(Path(run.folder))} has no exported SavedModel"
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
    """Return the SavedModel in `folder`, loaded by TensorFlow, which is imported here."""
    with quiet_stderr():
        return load_saved_model(str(folder))


def drift_of(loaded: Any) -> Drift:
    """Return what counts rows by what a loaded SavedModel was trained on; of one of an earlier version nothing."""
    known = getattr(loaded, "trained_on", None)
    decoder = import_module("stages.data.decode").Decoder  # with TensorFlow, as the model
    return Drift("{}" if known is None else known.numpy().decode(), decoder)


def class_names(loaded: Any) -> list[str]:
    """Return the names of a loaded SavedModel's classes, labels or targets, in the order of its numbers."""
    return [name.decode() for name in loaded.class_names.numpy()] if hasattr(loaded, "class_names") else []


def encoded_function(loaded: Any) -> Any:
    """Return the function of a loaded SavedModel that takes encoded images, string [N].

    Raises:
        UserError: where it has none.
    """
    if BYTES not in loaded.signatures:
        raise UserError(
            f"the model does not accept encoded images (it has no {BYTES})",
            "a model of gray or color images, exported by this version",
        )
    return loaded.signatures[BYTES]


def scores(classify: Any, encoded: list[bytes]) -> list[dict[str, Any] | str]:
    """Return the answers for each encoded image by their names, numbers last, or why it cannot be decoded.

    Of classes these are `class_name`, `score` and `probabilities`; of labels `probabilities`; of numbers `prediction`.

    Args:
        classify: the signature `serve_bytes` of a SavedModel.
    """
    tensorflow = import_module("tensorflow")

    def classified(contents: list[bytes]) -> list[dict[str, Any]]:
        found = classify(tensorflow.constant(contents, tensorflow.string))
        columns = {name: found[name].numpy() for name in sorted(found, key=lambda name: (np.ndim(found[name]), name))}
        texts = {name: [text.decode() for text in column] for name, column in columns.items() if column.dtype == object}
        values = [texts.get(name, column.tolist()) for name, column in columns.items()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]

    answers = decode_each(encoded, classified, tensorflow.errors.OpError)
    return [answer if isinstance(answer, dict) else f"the image cannot be decoded: {answer}" for answer in answers]


def takes_columns(loaded: Any) -> bool:
    """Return whether a loaded SavedModel takes columns, a value or a vector for each row, and no images."""
    is_default = "serving_default" in loaded.signatures
    return is_default and all(spec.shape.rank <= 2 for spec in _arguments(loaded).values())


def takes_texts(loaded: Any) -> bool:
    """Return whether a loaded SavedModel takes texts of a file each, as `data=text_folder` has them."""
    known = {"delimiter": None} if not hasattr(loaded, "reading") else json.loads(loaded.reading.numpy())
    return "delimiter" not in known and takes_columns(loaded) and [*_arguments(loaded)] == [TEXT]


def suffixes_of(loaded: Any) -> tuple[str, ...]:
    """Return the suffixes of files that are taken from a folder for a loaded SavedModel."""
    return TEXT_SUFFIXES if takes_texts(loaded) else NAMES if takes_columns(loaded) else IMAGE_SUFFIXES


def as_trained(loaded: Any, paths: Sequence[Path] = ()) -> TableSettings:
    """Return how to read tables: as that of the training was."""
    known = json.loads(loaded.reading.numpy()) if hasattr(loaded, "reading") else {}
    if "decimal" not in known:  # of an earlier version, in which these were always missing values
        known["missing"] = [*MISSING, *known.get("missing", ())]
    return TableSettings(files=[str(path) for path in paths], **known)


def answers(loaded: Any, settings: TableSettings, drift: Drift, by_class: bool = False) -> Iterator[Any]:
    """Yield Arrow tables of a model's answers for the rows of files, with `file` and `row`, from 1 without the header.

    Names of classes are in the schema's metadata, as `predictions.parquet` has them. `drift` counts the rows.

    Args:
        by_class: whether columns such as `probabilities.cat` stand in place of lists.

    Raises:
        UserError: where a file lacks a column that the model takes, or a row cannot be used.
    """
    import pyarrow as pa

    metadata = {"class_names": json.dumps(class_names(loaded))}
    for name, first, given in _rows_of_files(loaded, settings, drift):
        drift.add(given)
        columns = answered(loaded, given, by_class)
        count = len(next(iter(columns.values())))
        place = {"file": pa.array([name] * count), "row": np.arange(first, first + count)}
        yield pa.table({**place, **columns}, metadata=metadata)


def answered(loaded: Any, given: Mapping[str, np.ndarray], by_class: bool = False) -> dict[str, Any]:
    """Return a model's answers for rows as Arrow's columns by name: of texts, numbers, or lists of numbers."""
    import pyarrow as pa

    classes, columns = class_names(loaded), dict[str, Any]()
    for name, values in answer(loaded, given).items():
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
    """Yield rows as the model takes them; a text in a file of its own is a row."""
    from stages.data.tables import names_of, read_files  # half a second, for pandas
    from stages.load.folders import read_text

    files = files_of(settings.files)
    texts = [file for file in files if file.suffix.lower() == ".txt"] if takes_texts(loaded) else []
    for text in texts:
        yield str(text), 1, {TEXT: np.array([read_text(text, settings.encoding)], object)}
    paths = [file for file in files if file not in texts]
    headers = [Header.of([path], settings.delimiter, settings.encoding) for path in paths]
    named = [_columns(loaded, drift, header.columns, str(header.files[0])) for header in headers]
    for file, header, columns in zip(names_of(paths), headers, named, strict=True):
        with TemporaryDirectory() as scratch:  # a table may be larger than memory
            rows = read_files(header, settings, Path(scratch))
            take = _reader(loaded, rows, columns, Path(scratch))
            for start in range(0, len(rows), BATCH):
                yield file, start + 1, take(slice(start, start + BATCH))


def as_taken(loaded: Any, settings: TableSettings, drift: Drift, given: Any) -> dict[str, np.ndarray]:
    """Return columns, by arguments of the model, as it takes them: read as those of a CSV are.

    Args:
        given: a data frame, columns by name, or the values of the only one.

    Raises:
        UserError: where a column is missing, or has a value that the model cannot take.
        ValueError, TypeError: where the vectors of a column do not make an array.
    """
    import pandas as pd
    import pyarrow as pa

    from stages.data.tables import Rows, reading_of

    arguments = _arguments(loaded)
    by_name = given if hasattr(given, "items") else {next(iter(arguments)): given}
    frame = pd.DataFrame({str(name): list(map(_unwrapped, values)) for name, values in by_name.items()})
    columns = _columns(loaded, drift, list(frame), REQUEST)
    wide = {name: column for name, column in columns.items() if arguments[name].shape.rank > 1}
    plain = {name: column for name, column in columns.items() if name not in wide}
    texts: dict[str, Any] = {}
    for column in plain.values():
        values = zip(frame[column].tolist(), frame[column].isna(), strict=True)
        texts[column] = pa.array([None if gone else _as_text(value, settings) for value, gone in values], pa.string())
    rows = Rows(REQUEST, pa.table(texts), [(REQUEST, len(frame))], **reading_of(settings))
    taken = _reader(loaded, rows, plain)(slice(None))
    for name, column in wide.items():
        taken[name] = np.stack(frame[column]).astype(arguments[name].dtype.as_numpy_dtype)
        if not arguments[name].shape.is_compatible_with(taken[name].shape):  # which would abort TensorFlow's process
            raise UserError(
                f"{column} has the shape {taken[name].shape[1:]}", f"the shape {arguments[name].shape[1:]} for each row"
            )
    return taken


def _reader(
    loaded: Any, rows: Any, columns: Mapping[str, str], folder: Path | None = None
) -> Callable[[slice], dict[str, np.ndarray]]:
    """Return a function from some of the rows to columns, by arguments of the model, as it takes them.

    Args:
        columns: from arguments of the model. folder: takes the rows as files; None: they are held in memory.

    Raises:
        UserError: for a value that the model cannot take.
    """
    from stages.data.tables import Typed, read

    arguments = _arguments(loaded)
    typed = [Typed(column, KINDS[arguments[name].dtype.name]) for name, column in columns.items()]
    values, texts, wrong = read(rows, typed, "skip", folder)
    if wrong:
        raise UserError(": ".join(wrong[0]), "values of the same type as in training")
    words = {name: np.array(texts[column], object) for name, column in columns.items() if column in texts}

    def take(some: slice) -> dict[str, np.ndarray]:
        given = {name: values[column][some] for name, column in columns.items()}
        return {name: words[name][part] if name in words else part for name, part in given.items()}

    return take


def _columns(loaded: Any, drift: Drift, given: Sequence[str], where: str) -> dict[str, str]:
    """Return, from each argument of the model, the column that it takes: of the training's name, or the argument's own.

    Raises:
        UserError: where there is none.
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
    """Return a value of a request as a file has it, which may have a decimal comma."""
    is_float = isinstance(value, (float, np.floating))
    return str(value).removesuffix(".0").replace(".", settings.decimal) if is_float else str(value)


def _unwrapped(value: Any) -> Any:
    """Return a value of a request: MLflow wraps some in arrays without axes."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _arguments(loaded: Any) -> dict[str, Any]:
    return dict(loaded.signatures["serving_default"].structured_input_signature[1])


def answer(loaded: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the model answers, by name, a row a row."""
    tensorflow = import_module("tensorflow")
    answered = loaded.signatures["serving_default"](
        **{name: tensorflow.constant(part) for name, part in columns.items()}
    )
    return {name: answered[name].numpy() for name in sorted(answered)}  # in an order that TensorFlow does not keep


def write_answers(loaded: Any, settings: TableSettings, output: Path, drift: Drift) -> int:
    """Write the answers for all rows to a Parquet or CSV file; return their number."""
    import pyarrow.csv
    import pyarrow.parquet as pq

    is_csv, total = output.suffix == ".csv", 0

    def write(partial: Path) -> None:
        nonlocal total
        writer: Any = None
        for table in answers(loaded, settings, drift, by_class=is_csv):
            writer = writer or (pyarrow.csv.CSVWriter if is_csv else pq.ParquetWriter)(partial, table.schema)
            writer.write_table(table)
            total += len(table)
        if writer is None:
            raise UserError(f"{settings.files[0]} has no rows", "at least one row below the header")
        writer.close()

    atomic_write(output, write)
    return total
