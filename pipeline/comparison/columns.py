"""Columns of a comparison: which there are, what they are called, how their values are written."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import RATES, Row
from stages.evaluation.paired_tests import Interval, points


@dataclass(frozen=True)
class Column:
    """A column of values.

    key: its full name, in files. heading: its short one, in tables. value: of a row; None: it has none.
    std: over the runs of a row. style: how both are written; percent: they are fractions, and written times 100.
    explained: what it says, for the page.
    """

    key: str
    heading: str
    value: Callable[[Row], float | None]
    std: Callable[[Row], float | None] = lambda row: None
    style: str = ".4g"
    percent: bool = False
    explained: str = ""

    def text(self, row: Row) -> str:
        """Return the value as a table shows it, with ± std where there are several runs."""
        value, std = self.value(row), self.std(row)
        if value is None:
            return ""
        return self.written(value) + (
            f" ±{self.written(std, self.style.replace('4g', '2g'))}" if std is not None else ""
        )

    def written(self, value: float, style: str | None = None) -> str:
        """Return a value in the style of the column."""
        if math.isnan(value):
            return "nan"
        return format(100 * value if self.percent else value, style or self.style)


def metric_column(name: str, heading: str = "", style: str = "", explained: str = "") -> Column:
    """Return the column of a metric by its name."""
    is_accuracy = name.endswith("accuracy")
    return Column(
        name,
        heading or name,
        lambda row: row.mean(name),
        lambda row: row.std(name),
        style or (".2f" if is_accuracy else ".4g"),
        is_accuracy,
        explained or f"{name}{', in percent' if is_accuracy else ''}: mean ± standard deviation over seeds",
    )


def columns_of(comparison: Comparison) -> list[Column]:
    """Return the columns that any row has a value for, the most important first."""
    columns = [metric_column(name) for name in comparison.own_columns]
    if not columns:
        columns = _standard(comparison)
    return [column for column in columns if any(column.value(row) is not None for row in comparison.rows)]


def _standard(comparison: Comparison) -> list[Column]:
    headings = {
        "val/best_loss": "val loss",
        "val/best_accuracy": "val %",
        "test/accuracy": "test %",
        "test/loss": "test loss",
    }
    chosen = comparison.choice.metric
    validation = [name for name in (chosen, "val/best_accuracy", "val/best_loss") if name is not None]
    rate = next((rate for rate in RATES if any(rate in row.metrics for row in comparison.rows)), RATES[0])
    columns = [metric_column(validation[0], headings.get(validation[0], ""))]
    columns += [metric_column("test/accuracy", headings["test/accuracy"])]
    if len(comparison.rows) > 1:
        columns.append(
            Column(
                "speed-up",
                "speed",
                lambda row: found.ratio if (found := comparison.speeds.get(row)) else None,
                comparison.speed_up_std,
                ".2f",
                explained="training speed; the mean of the baseline's is 1",
            )
        )
    columns += [
        Column("seconds", "s", lambda row: row.mean("seconds"), style=".0f", explained="wall time of the whole run"),
        Column(
            rate,
            f"{rate.partition('/')[2].partition('_')[0]}/s",
            lambda row: row.speed,
            lambda row: row.speed_std,
            ",.0f",
            explained=rate,
        ),
    ]
    columns += [metric_column(name, headings[name]) for name in dict.fromkeys(validation[1:]) if name != validation[0]]
    if any(row.replicas > 1 for row in comparison.rows):
        columns.append(
            Column(
                "efficiency",
                "eff.",
                comparison.efficiency,
                style=".2f",
                explained="speed-up for each replica that there is for one of the baseline's",
            )
        )
    columns += [
        metric_column("memory/peak_mib", "MiB", ",.0f", "the most memory of the process that trains"),
        metric_column("memory/gpu_peak_mib", "GPU MiB", ",.0f", "the most memory of the fullest GPU"),
        metric_column("test/loss", headings["test/loss"]),
        metric_column(
            "export/max_abs_diff", "export", ".1g", "largest difference of the export's probabilities from the model's"
        ),
        metric_column("train/weights_epoch", "epoch", ".4g", "the epoch whose weights were tested and exported"),
    ]
    return columns


def difference_text(comparison: Comparison, row: Row) -> str:
    """Return a row's difference in test accuracy from the baseline, in points, with its interval."""
    found = comparison.differences.get(row)
    if found is None:
        return "baseline" if row is comparison.baseline else ""
    return f"{points(found.difference)} ({interval_text(found)})"


def speed_text(comparison: Comparison, row: Row) -> str:
    """Return how many times as fast as the baseline a row trains, with its interval where there is one."""
    found = comparison.speeds.get(row)
    if found is None or row is comparison.baseline:
        return "" if found is None else "baseline"
    return f"{found.ratio:.2f}" + (f" ({found.low:.2f} to {found.high:.2f})" if found.low is not None else "")


def interval_text(difference: Interval) -> str:
    """Return the ends of an interval in points: `−0.61 to 0.40`."""
    return f"{points(difference.low)} to {points(difference.high)}".replace("+", "")


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
