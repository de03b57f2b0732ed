"""Metrics of a test with their intervals and notes, and the tables beside them, as CSV and Markdown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stages.storage.atomic import atomic_write, write_csv
from stages.tables import markdown, plain_markdown

METRICS = "test_metrics.md"
METRICS_TABLE = "test_metrics.csv"


@dataclass(frozen=True)
class Section:
    """A table beside the metrics.

    name: of its file. note: what it is, in a sentence. rows: of texts and numbers, the header first.
    """

    name: str
    title: str
    note: str
    rows: Sequence[Sequence[object]]

    @property
    def shown(self) -> list[list[str]]:
        """The rows as texts."""
        return [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Metrics of the test split, with their intervals.

    values: by their names; intervals: their lower and upper ends, as far as there are intervals.
    notes: sentences on what is missing. sections: tables beside the metrics.
    tables: further files, by name; rows of each, its header first.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()
    tables: Mapping[str, Sequence[Sequence[object]]] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Writes the tables to `folder`; returns their paths."""
        rows = [(name, value, *self.intervals.get(name, ("", ""))) for name, value in self.values.items()]
        write_csv(folder / METRICS_TABLE, [("metric", "value", "low", "high"), *rows])
        cells = [(name, *(part if isinstance(part, str) else f"{part:.6g}" for part in parts)) for name, *parts in rows]
        text = f"# Test metrics\n\n{markdown([('metric', 'value', 'low', 'high'), *cells])}\n"
        text += "".join(f"- {plain_markdown(note)}\n" for note in self.notes)
        text += "".join(
            f"\n## {plain_markdown(part.title)}\n\n{markdown(part.shown)}\n- {plain_markdown(part.note)}\n"
            for part in self.sections
        )
        atomic_write(folder / METRICS, text)
        tables = {folder / f"test_{name}.csv": rows for name, rows in self.tables.items()}
        tables |= {folder / f"test_{part.name}.csv": part.rows for part in self.sections}
        for path, table in tables.items():
            write_csv(path, table)
        return folder / METRICS, folder / METRICS_TABLE, *tables


def blank_where_nan(values: np.ndarray) -> list[object]:
    """Returns numbers for a table, nothing where one is not defined."""
    return ["" if math.isnan(value) else float(value) for value in values]


def some(names: Sequence[str]) -> str:
    """Returns the first five names, and how many more there are."""
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
