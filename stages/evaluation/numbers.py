"""Metrics of predicted numbers, with intervals: errors in the targets' units, R², and plots of what was predicted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

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


def read_numbers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns targets and predictions, float64 [n, k] each, of a file of predictions."""
    table = pq.read_table(path, columns=["target", "prediction"], use_threads=False)
    targets, answers = (
        table.column(name).combine_chunks().flatten().to_numpy().reshape(len(table), -1).astype(np.float64)
        for name in ("target", "prediction")
    )
    return targets, answers


def report_numbers(
    numbers: tuple[np.ndarray, np.ndarray],
    loss: float,
    names: Sequence[str],
    confidence: float,
    weights: np.ndarray | None,
) -> NumbersReport:
    """Returns the metrics of targets and predictions; of several targets their means, and those of each.

    Args:
        numbers: float64 [n, k] each. weights: of the examples, float64 [n]; None: they are all alike.
    """
    targets, answers = numbers
    parts = np.ones(len(targets)) if weights is None else weights / weights.mean()
    by_target = [_estimates(targets[:, place], answers[:, place], parts) for place in range(len(names))]
    values = {"test/loss": loss}
    intervals: dict[str, Ends] = {}
    for metric, highest in (("rmse", math.inf), ("mae", math.inf), ("r2", 1.0)):
        found = {f"test/{metric}": _mean([part[metric] for part in by_target])}
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


Estimate = tuple[float, np.ndarray]
"""A metric, and the influence of each example on it, float64 [n], up to a constant."""


def rmse_estimate(targets: np.ndarray, answers: np.ndarray, weights: np.ndarray | None) -> Estimate:
    """Returns the mean of the targets' RMSE, and the influence of each example on it."""
    parts = np.ones(len(targets)) if weights is None else weights / weights.mean()
    places = range(targets.shape[1])
    return _mean([_estimates(targets[:, place], answers[:, place], parts)["rmse"] for place in places])


def _estimates(targets: np.ndarray, answers: np.ndarray, weights: np.ndarray) -> dict[str, Estimate]:
    error = answers - targets
    squares = weights * np.square(error)
    rmse = math.sqrt(squares.mean())
    sizes = weights * np.abs(error)
    apart = weights * np.square(targets - np.average(targets, weights=weights))
    spread = float(apart.mean())
    r2 = 1 - squares.mean() / spread if spread else math.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "rmse": (rmse, squares / (2 * rmse)),
            "mae": (float(sizes.mean()), sizes),
            "r2": (float(r2), ((1 - r2) * apart - squares) / spread),
        }


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    values, influences = zip(*estimates, strict=True)
    return float(np.mean(values)), np.mean(influences, axis=0)


def draw_numbers(path: Path, names: Sequence[str], folder: Path) -> list[Path]:
    """Draws predicted against true values, and the errors, of the first targets; returns the files."""
    targets, answers = read_numbers(path)
    drawn = enumerate(names[:PLOTTED])
    plot = folder / "plots" / "predicted.png"
    return [plot_numbers([(name, targets[:, place], answers[:, place]) for place, name in drawn], plot)]
