"""The MLflow model around an exported SavedModel: its files, its signature and its example."""

import base64
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Schema, TensorSpec

from pipeline.internals.mlflow import requirements_unchecked
from pipeline.tracking.params import INPUT_EXAMPLE, REQUEST_EXAMPLE

REQUIRED = ("tensorflow", "keras", "numpy", "mlflow")
"""Packages that are needed to load the model and to predict with it. Their dependencies are not listed."""


def write_model(model: Model, signature: ModelSignature, classes: Sequence[str], saved: Path, folder: Path) -> None:
    """Write an MLflow model around the SavedModel in `saved`: flavors `tensorflow` and `python_function`.

    `mlflow.tensorflow.log_model` saves a Keras 3 model as `.keras`, never as a SavedModel, and needs a live object and
    an active run. This function copies the files that the export stage has checked, so the tracked model is the one
    whose predictions were compared with the trained model's. It adds an example of the model's input.

    The signature for images has no names: unscaled pixels float32 [N, H, W, C], and probabilities float32 [N, classes].
    MLflow would pass named inputs as a dict, which no module accepts. For tables, inputs and outputs are named, and
    MLflow calls the signature `serving_default`, which maps a data frame to a data frame; `serve_bytes` if some
    columns are encoded images.
    """
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")  # else MLflow adds this project to the requirements
    example = saved.parent / INPUT_EXAMPLE
    is_named = signature.inputs.has_input_names()
    key = "serve_bytes" if is_named and DataType.binary in signature.inputs.input_types() else "serving_default"
    served = {"model_type": "tf1-estimator", "meta_graph_tags": ["serve"], "signature_def_key": key}
    flavor = served if is_named else {"model_type": "tf2-module"}
    model.add_flavor("tensorflow", code=None, saved_model_dir="tf2model", **flavor)
    with requirements_unchecked():
        mlflow.pyfunc.save_model(
            str(folder),
            loader_module="mlflow.tensorflow",
            mlflow_model=model,
            signature=signature,
            input_example=_example(example, signature.inputs) if example.is_file() else None,
            pip_requirements=[f"{name}=={metadata.version(name)}" for name in REQUIRED],
            metadata={"class_names": list(classes)},
        )
    shutil.copytree(saved, folder / "tf2model")
    if (request := saved.parent / REQUEST_EXAMPLE).is_file():
        shutil.copy(request, folder)
    model.model_size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    model.save(str(folder / "MLmodel"))


def _example(path: Path, inputs: Schema) -> Any:
    """Return the example of a model's input in the file `path`: an array of pixels, or a data frame."""
    content = json.loads(path.read_text())["inputs"]
    if not inputs.has_input_names():
        return np.array(content, np.float32)
    of_images = [column.name for column in inputs.inputs if column.type == DataType.binary]
    decoded = {name: list(map(base64.b64decode, content[name])) for name in of_images}
    return pd.DataFrame({**content, **decoded})


def column_schema(dtypes: Mapping[str, str]) -> Schema:
    """Return the schema of columns with the given dtypes, such as `string` or, for windows, `float64[14, 2]`."""
    return Schema([ColSpec(_column_type(dtype), name) for name, dtype in dtypes.items()])


def _column_type(dtype: str) -> DataType | Array:
    """Return the type of a column; of values with a shape, an array in an array for each axis."""
    kind, _, shape = dtype.partition("[")
    kinds = {"int64": DataType.long, "string": DataType.string, "image": DataType.binary}
    found: DataType | Array = kinds.get(kind, DataType.double)
    for _ in shape.split(",") if shape else ():
        found = Array(found)
    return found


def tensor_schema(*shape: int) -> Schema:
    """Return the schema of one tensor, float32 [N, *shape]."""
    return Schema([TensorSpec(np.dtype(np.float32), (-1, *shape))])
