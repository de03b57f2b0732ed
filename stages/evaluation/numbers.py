"""Metrics of predicted numbers, with intervals: errors in the targets' units, R², and plots of what was predicted."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stages.evaluation.estimates import Columns, mean_of, number_estimates, parts_of
from stages.evaluation.intervals import Ends, interval
from stages.evaluation.report import Measured
from stages.plots.charts import plot_numbers

LEAST = 100
"""Test examples for intervals: of fewer, rare large errors may be missing."""

PLOTTED = 4
"""Targets that are drawn, at most."""


def report_numbers(columns: Columns, names: Sequence[str], confidence: float) -> Measured:
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
    return Measured(values=values, intervals=intervals, notes=notes)


def draw_numbers(columns: Columns, names: Sequence[str], folder: Path) -> list[Path]:
    """Draws predicted against true values, and the errors, of the first targets; returns the files."""
    targets, answers = columns["target"], columns["prediction"]
    drawn = enumerate(names[:PLOTTED])
    plot = folder / "plots" / "predicted.png"
    return [plot_numbers([(name, targets[:, place], answers[:, place]) for place, name in drawn], plot)]
