"""The signature of a model in MLflow has the shapes of its columns."""

import numpy as np
import pandas as pd
from mlflow.models import validate_schema
from mlflow.types.schema import Array, DataType

from pipeline.tracking.mlflow_model import column_schema


def test_windows_are_arrays_in_arrays() -> None:
    """MLflow would reject a window of time series for an array of numbers."""
    dtypes = {"size": "float64", "vector": "float64[3]", "history": "float64[14, 2]", "time": "int64[18]"}
    schema = column_schema(dtypes)
    kinds = [column.type for column in schema.inputs]
    assert kinds == [DataType.double, Array(DataType.double), Array(Array(DataType.double)), Array(DataType.long)]
    history = np.arange(28.0).reshape(14, 2).tolist()
    frame = pd.DataFrame({"size": [1.5], "vector": [[0.0, 1.0, 2.0]], "history": [history], "time": [[*range(18)]]})
    validate_schema(frame, schema)
