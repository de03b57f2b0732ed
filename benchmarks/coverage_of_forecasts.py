"""`python -m benchmarks.coverage_of_forecasts [docs/how-to/forecasting.md]`: how often intervals of forecasts hold.

Series are drawn from autoregressive processes. The best linear forecast, and the difference from the naive one, get the
project's own intervals; the truth is that of a long series. One minute.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.page import markdown, put
from stages.evaluation.paired_tests import metric_difference
from stages.metrics.estimates import Columns
from stages.metrics.forecasts import ForecastMae, blocks_of

PROCESSES: dict[str, Sequence[float]] = {
    "AR(1), 0.5": (0.5,), "AR(1), 0.9": (0.9,), "AR(2), 1.2 and −0.4": (1.2, -0.4), "AR(2), 0.5 and 0.4": (0.5, 0.4),
}  # fmt: skip
"""The coefficients of the values before."""

SIZES = (150, 300, 1000, 3000)
"""Windows of a test split."""

HORIZON, LONG, REPEATS = 7, 200_000, 400


def simulated(coefficients: Sequence[float], count: int, random: np.random.Generator) -> np.ndarray:
    """Return consecutive values of a process, float64 [count]."""
    warm = 300
    values = random.normal(size=count + warm)
    for place in range(len(coefficients), len(values)):
        values[place] += sum(part * values[place - lag] for lag, part in enumerate(coefficients, 1))
    return values[warm:]


def predicted(coefficients: Sequence[float], values: np.ndarray) -> tuple[Columns, Columns]:
    """Return the columns of the best linear forecasts of a series, and those of the naive ones."""
    order, last = len(coefficients), len(values) - HORIZON
    known = [values[order - lag : last + 1 - lag] for lag in range(1, order + 1)]
    naive = np.repeat(known[0][:, np.newaxis], HORIZON, axis=1)
    steps = []
    for _ in range(HORIZON):
        steps.append(np.array(coefficients) @ np.stack(known))
        known = [steps[-1], *known[:-1]]
    targets = np.stack([values[order + step : last + 1 + step] for step in range(HORIZON)], axis=1)
    common = {"target": targets, "group": blocks_of(np.arange(len(targets)), HORIZON)}
    return {**common, "prediction": np.stack(steps, axis=1)}, {**common, "prediction": naive}


def table() -> str:
    """Return in percent how often 95% intervals hold the truth, of an error and of a difference of errors."""
    metric, rows = ForecastMae(), []
    for name, coefficients in PROCESSES.items():
        random = np.random.default_rng(0)
        ours, naive = predicted(coefficients, simulated(coefficients, LONG, random))
        error, other = (float(np.abs(one["prediction"] - one["target"]).mean()) for one in (ours, naive))
        cells = []
        for size in SIZES:
            hits = np.zeros(2)
            for _ in range(REPEATS):
                pair = predicted(coefficients, simulated(coefficients, size + HORIZON + len(coefficients) - 1, random))
                ends = metric.interval(pair[0], 0.95)
                assert not isinstance(ends, str)
                first, second = (metric.by_example(one)[np.newaxis] for one in reversed(pair))
                found = metric_difference(first, second, True, metric=metric)
                hits += [ends[0] <= error <= ends[1], found.low <= error - other <= found.high]
            cells.append(" and ".join(f"{100 * hit / REPEATS:.0f}" for hit in hits))
        rows.append((name, *cells))
    return markdown(["process", *(f"{size:,} windows" for size in SIZES)], rows)


def main() -> None:
    """Print the table, or write it into a page."""
    text = table()
    if len(sys.argv) > 1:
        put(Path(sys.argv[1]), "forecast_coverage", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
