"""Forecast the next values of time series with an exported model, from the latest rows of a table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.serving import models
from pipeline.serving.rows import REQUEST, as_texts
from pipeline.serving.signatures import QUANTILES, WINDOWS, reading_of_model
from stages.errors import UserError, printable
from stages.features.drift import Drift
from stages.settings.table import Header, TableSettings
from stages.settings.table_files import files_of
from stages.storage.atomic import atomic_write


def forecasts_of_files(loaded: Any, settings: TableSettings, drift: Drift) -> Any:
    """Return the forecasts for all series in files together, as an Arrow table; see `forecasts`."""
    from stages.data.tables import read_files  # imports pandas, which takes half a second

    needed = _columns(loaded)
    header = Header.of(files_of(settings.files), settings.delimiter, settings.encoding, needed=needed)
    _refuse_missing(loaded, header.columns, header.name)
    return forecasts(loaded, read_files(header, settings), drift)


def forecasts_of_request(loaded: Any, settings: TableSettings, drift: Drift, data: Any) -> Any:
    """Return the forecasts for the series in a data frame, or in columns by name; see `forecasts`."""
    import pandas as pd
    import pyarrow as pa

    from stages.data.tables import Rows, reading_of

    frame = pd.DataFrame({str(name): list(values) for name, values in data.items()})
    _refuse_missing(loaded, list(frame), REQUEST)
    rows = Rows(REQUEST, pa.table(as_texts(frame, settings)), [(REQUEST, len(frame))], **reading_of(settings))
    return forecasts(loaded, rows, drift)


def has_rows(loaded: Any, data: Any) -> bool:
    """Return whether a request has rows of a table, and not the windows that the model takes."""
    from stages.data.latest import WindowReading

    reading = WindowReading.of_json(reading_of_model(loaded)[WINDOWS])
    return "history" not in data and reading.time in data


def forecasts(loaded: Any, rows: Any, drift: Drift) -> Any:
    """Return an Arrow table with a row for each series and predicted step.

    Its columns are the name of the series, the time, the targets, and their quantiles, such as `sales_0.9`; or the
    class, and the probability of each class, such as `state_on`.

    Args:
        loaded: The SavedModel.
        rows: The rows, `stages.data.tables.Rows`.
        drift: Counts the windows.
    """
    import pyarrow as pa

    from stages.data.latest import WindowReading, latest_windows

    reading = WindowReading.of_json(reading_of_model(loaded)[WINDOWS])
    latest = latest_windows(rows, reading)
    drift.add(latest.arguments)
    outputs = models.outputs_of(loaded, latest.arguments)
    steps = len(latest.times[0])
    count = len(latest.names) * steps
    columns: dict[str, Any] = {}
    if reading.group is not None:
        columns[reading.group] = pa.array(np.repeat(np.array(latest.names, object), steps), pa.string())
    columns[reading.time] = [time for times in latest.times for time in times]
    if reading.are_classes:
        names, probabilities = models.class_names(loaded), outputs["probabilities"]
        columns[reading.targets[0]] = [names[place] for place in probabilities.argmax(axis=1)]
        columns |= {f"{reading.targets[0]}_{name}": part for name, part in zip(names, probabilities.T, strict=True)}
        return pa.table(columns)
    values = outputs["prediction"].reshape(count, len(reading.targets))
    columns |= dict(zip(reading.targets, values.T, strict=True))
    levels = reading_of_model(loaded).get(QUANTILES, [])
    if levels:
        quantiles = outputs[QUANTILES].reshape(count, len(reading.targets), len(levels))
        for place, name in enumerate(reading.targets):
            columns |= {f"{name}_{level:g}": part for level, part in zip(levels, quantiles[:, place].T, strict=True)}
    return pa.table(columns)


def _columns(loaded: Any) -> list[str]:
    """Return the columns that a table must have."""
    from stages.data.latest import WindowReading

    return WindowReading.of_json(reading_of_model(loaded)[WINDOWS]).columns


def _refuse_missing(loaded: Any, given: Sequence[str], where: str) -> None:
    columns = _columns(loaded)
    if missing := next((column for column in columns if column not in given), None):
        expected = f"the columns that the model requires: {', '.join(columns)}"
        raise UserError(f"{where} has no column {missing}", expected)


def write_forecasts(table: Any, output: Path) -> None:
    """Write forecasts to a Parquet or CSV file."""
    import pyarrow.csv
    import pyarrow.parquet as pq

    write = pyarrow.csv.write_csv if output.suffix == ".csv" else pq.write_table
    atomic_write(output, lambda partial: write(table, partial))


def lines(table: Any, as_json: bool) -> list[str]:
    """Return a line for each row of forecasts."""
    rows = table.to_pylist()
    if as_json:
        return [json.dumps(row) for row in rows]
    shown = [[f"{value:.7g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    return ["\t".join(map(printable, row)) for row in shown]
