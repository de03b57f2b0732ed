"""benchmarks/recorded.json: what was last measured of each row, and where; the page is made of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measuring import Spread
from benchmarks.processes import ROOT
from benchmarks.table import ROWS

RECORDED = ROOT / "benchmarks" / "recorded.json"


@dataclass(frozen=True)
class Record:
    """What was measured of a row; machine: processor and versions that it was measured with."""

    spread: Spread
    machine: str


Records = Mapping[str, Record]
"""By the row's key."""


def read() -> dict[str, Record]:
    """Return what is recorded, of rows that there still are."""
    keys = {row.key for row in ROWS}
    found = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return {key: Record(Spread(**values["spread"]), values["machine"]) for key, values in found.items() if key in keys}


def write(records: Records) -> None:
    """Write `records` in the order of the rows."""
    values = {row.key: asdict(records[row.key]) for row in ROWS if row.key in records}
    RECORDED.write_text(json.dumps(values, indent=1) + "\n")


def records_of(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Record]:
    """Return what `measured` has of each row.

    Args:
        measured: of each measurement its `samples` and `machine`, or `why_not`.
    """
    records = {}
    for row in ROWS:
        found = measured.get(row.measurement, {})
        samples = found.get("samples", {})
        if row.figure in samples.get(row.ours, {}) and (row.against is None or row.against in samples):
            records[row.key] = Record(Spread.of(row.values(samples)), found["machine"])
    return records
