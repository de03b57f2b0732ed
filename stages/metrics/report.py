"""The contents of a test's report: metrics with their intervals and notes, and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stages.metrics.estimates import Columns, Sample
from stages.metrics.intervals import reported
from stages.metrics.metric import Metric


@dataclass(frozen=True)
class Section:
    """A table next to the metrics."""

    name: str
    """Name of its file."""

    title: str

    note: str
    """A sentence on the contents."""

    rows: Sequence[Sequence[object]]
    """Texts and numbers, the header first."""

    @property
    def shown(self) -> list[list[str]]:
        """The rows as texts."""
        return [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Metrics of the test split, with their intervals."""

    values: Mapping[str, float] = field(default_factory=dict)
    """Metrics by name."""

    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Lower and upper ends of the intervals, for the metrics that have one."""

    notes: Sequence[str] = ()
    """Sentences on what is missing."""

    sections: Sequence[Section] = ()
    """Tables next to the metrics."""

    tables: Mapping[str, Sequence[Sequence[object]]] = field(default_factory=dict)
    """Further files by name, each as rows with the header first."""

    @classmethod
    def of(cls, metrics: Sequence[Metric], columns: Columns, confidence: float) -> "Measured":
        """Return the metrics of columns of predictions."""
        intervals, reasons = reported({metric.name: metric.interval(columns, confidence) for metric in metrics})
        return cls(values=values_by_name(metrics, columns), intervals=intervals, notes=reasons)


def values_by_name(metrics: Sequence[Metric], columns: Columns) -> dict[str, float]:
    """Return the metrics of columns of predictions."""
    return {metric.name: metric.estimate(columns, Sample.of(columns).parts)[0] for metric in metrics}


def means_of(targets: np.ndarray, weights: np.ndarray | None, classes: int) -> np.ndarray:
    """Return the means of targets, [n, k], such as shares of labels; for classes, int [n], the share of each."""
    if targets.ndim > 1:
        return np.asarray(np.average(targets, axis=0, weights=weights))
    counts = np.bincount(targets, weights, classes)
    return np.asarray(counts / counts.sum())


def blank_where_nan(values: np.ndarray) -> list[object]:
    """Return numbers for a table, empty if a number is undefined."""
    return ["" if np.isnan(value) else float(value) for value in values]


def some(names: Sequence[str]) -> str:
    """Return the first five names, and how many more there are."""
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
