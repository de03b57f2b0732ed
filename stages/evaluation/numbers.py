"""Metrics of predicted numbers, with intervals: errors in the targets' units, R², and plots of what was predicted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.evaluation.estimates import Columns, mean_of, number_estimates, parts_of
from stages.evaluation.intervals import Ends, interval
from stages.evaluation.report import METRICS, METRICS_TABLE
from stages.plots.charts import plot_numbers
from stages.storage.atomic import atomic_write, write_csv
from stages.tables import markdown

LEAST = 100
"""Test examples for intervals: of fewer, rare large errors may be missing."""

PLOTTED = 4
"""Targets that are drawn, at most."""


@dataclass(frozen=True)
class NumbersReport:
    """Metrics by their full names, their intervals as far as there are any, and sentences on what they are."""

    values: Mapping[str, float]
    intervals: Mapping[str, Ends]
    notes: Sequence[str]

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Writes the tables to `folder`; returns their paths."""
        rows = [(name, value, *self.intervals.get(name, ("", ""))) for name, value in self.values.items()]
        write_csv(folder / METRICS_TABLE, [("metric", "value", "low", "high"), *rows])
        cells = [(name, *(part if isinstance(part, str) else f"{part:.6g}" for part in parts)) for name, *parts in rows]
        notes = "".join(f"- {note}\n" for note in self.notes)
        text = markdown([("metric", "value", "low", "high"), *cells])
        atomic_write(folder / METRICS, f"# Test metrics\n\n{text}\n{notes}")
        return folder / METRICS, folder / METRICS_TABLE


def report_numbers(columns: Columns, names: Sequence[str], confidence: float) -> NumbersReport:
    """Returns the metrics of targets and predictions; of several targets their means, and those of each.

    Args:
        columns: `target` and `prediction`, float32 [n, k] each, and `weight`, if any.
    """
    targets, answers = (np.asarray(columns[name], np.float64) for name in ("target", "prediction"))
    parts = parts_of(len(targets), columns.get("weight"))
    by_target = [number_estimates(targets[:, place], answers[:, place], parts) for place in range(len(names))]
    values: dict[str, float] = {}
    intervals: dict[str, Ends] = {}
    for metric, highest in (("rmse", math.inf), ("mae", math.inf), ("r2", 1.0)):
        found = {f"test/{metric}": mean_of([part[metric] for part in by_target])}
        if len(names) > 1:
            found |= {f"test/{metric}/{name}": part[metric] for name, part in zip(names, by_target, strict=True)}
        for name, (value, influences) in found.items():
            values[name] = value
            ends = interval(value, influences, confidence, highest) if len(targets) >= LEAST else None
            if ends is not None:
                intervals[name] = ends
    errors = np.abs(answers - targets)
    values |= {
        "test/median_error" + (f"/{name}" if len(names) > 1 else ""): float(np.median(errors[:, place]))
        for place, name in enumerate(names)
    }
    notes = [
        f"{len(targets):,} test examples. rmse, mae, median_error: in the units of {', '.join(names)}. low, high: "
        f"{100 * confidence:g} % interval over the test examples, of {LEAST} or more; it does not show how results "
        "vary with the seed."
    ]
    return NumbersReport(values, intervals, notes)


def draw_numbers(columns: Columns, names: Sequence[str], folder: Path) -> list[Path]:
    """Draws predicted against true values, and the errors, of the first targets; returns the files."""
    targets, answers = columns["target"], columns["prediction"]
    drawn = enumerate(names[:PLOTTED])
    plot = folder / "plots" / "predicted.png"
    return [plot_numbers([(name, targets[:, place], answers[:, place]) for place, name in drawn], plot)]
