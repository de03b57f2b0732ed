"""Arrays of time series as a table: a row for each step of each series, series by series."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.errors import UserError
from stages.settings.npz import SERIES, Layout, arrays_in

ARROW_UNITS = ("D", "s", "ms", "us", "ns")
"""Units of dates that Arrow has."""


def table_in(path: Path) -> pa.Table:
    """Return the arrays of an `.npz` file as a table.

    Raises:
        UserError: If the file cannot be read, or its arrays are not columns.
    """
    return table_of(arrays_in(path), path.name)


def table_of(arrays: Mapping[str, np.ndarray], where: str) -> pa.Table:
    """Return arrays as a table, with a column for each channel, and the columns that are made.

    Args:
        arrays: The arrays by name; see `Layout`.
        where: The name of the file, or what returned the arrays, for messages.

    Raises:
        UserError: If the arrays are not columns.
    """
    layout = Layout.of({name: array.shape for name, array in arrays.items()}, where)
    columns: dict[str, pa.Array] = {}
    for name, array in arrays.items():
        values = layout.rows_of(name, array)
        for place, column in enumerate(layout.columns[name]):
            columns[column] = arrow_of(where, column, values[:, place])
    for name in layout.made:
        numbers = np.divmod(np.arange(layout.series * layout.steps), layout.steps)
        columns[name] = pa.array(numbers[0 if name == SERIES else 1])
    return pa.table(columns)


def arrow_of(where: str, name: str, array: np.ndarray) -> pa.Array:
    """Return a column as an Arrow array.

    Raises:
        UserError: If its values have several types, or a type that columns do not support.
    """
    if array.dtype.kind == "M" and np.datetime_data(array.dtype)[0] not in ARROW_UNITS:
        array = array.astype("datetime64[s]")
    try:
        column = pa.array(array, from_pandas=True)
        return column.cast(pa.string()) if pa.types.is_binary(column.type) else column
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        expected = "numbers, strings or dates, with one type per column"
        raise UserError(f"{where}, column {name}: {error}", expected) from error
