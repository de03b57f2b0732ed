"""Find exported models by their run or their address in MLflow, and predict for images and the rows of tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.schemas import TrackingSettings
from pipeline.paths import shorter
from pipeline.runs.finding import Runs
from pipeline.serving import masks
from pipeline.serving.masks import MASK
from pipeline.serving.rows import rows_of_files
from pipeline.serving.signatures import (
    BYTES,
    QUANTILES,
    WINDOWS,
    reading_of_model,
    row_arguments,
    row_signature,
)
from pipeline.system.environment import quiet_stderr
from pipeline.tracking.models import ADDRESSES, model_folder
from pipeline.tracking.store import Store
from stages.data.convert import decode_each
from stages.errors import UserError
from stages.exporters.reload import load_saved_model
from stages.features.drift import Drift
from stages.settings.places import regular_folder
from stages.settings.table import MISSING, TableSettings
from stages.storage.atomic import atomic_write

FIX = "--tracking-uri=<address>"
"""The option for a model in another tracking server, for errors."""


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
        shapes = {name: ["N", *spec.shape[1:]] for name, spec in row_arguments(loaded).items()}
        accepted = ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items())
        problem = f"the model accepts arrays ({accepted}), and no files of images, texts or tables"
        raise UserError(problem, "an .npz file of arrays; `python -m pipeline serve` also accepts them as JSON")
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


def reading_settings(loaded: Any, paths: Sequence[Path] = (), root: Path | None = None) -> TableSettings:
    """Return the settings for reading tables, which are the same as in training.

    Args:
        loaded: The SavedModel.
        paths: The tables.
        root: The folder to which the paths of images are relative; None: the folder of each table.
    """
    known = {name: value for name, value in reading_of_model(loaded).items() if name not in (WINDOWS, QUANTILES)}
    if "decimal" not in known:  # older exports always read these as missing values
        known["missing"] = [*MISSING, *known.get("missing", ())]
    return TableSettings(files=[str(path) for path in paths], root=None if root is None else str(root), **known)


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
    for name, first, arguments in rows_of_files(loaded, settings, drift):
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


def outputs_of(loaded: Any, arguments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of the model by name, one row per input row."""
    tensorflow = import_module("tensorflow")
    outputs = loaded.signatures[row_signature(loaded)](
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
