"""The frame of a comparison: its columns, with the figures that every table, page and file shows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import RATES, Row
from stages.evaluation.paired_tests import MINUS


class Figure(NamedTuple):
    """A value of a row with its standard deviation over runs, and the ends of its interval (95 %); None: unknown."""

    value: float
    std: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Column:
    """A column of figures.

    key: its full name, in CSV. heading: its short one; empty: it is in CSV alone. style: in which values are written;
    percent: they are fractions, and written times 100. explained: what it says.
    """

    key: str
    heading: str
    figure: Callable[[Row], Figure | None]
    style: str = ".4g"
    percent: bool = False
    explained: str = ""

    def text(self, row: Row, interval: bool = True) -> str:
        """Return a row's value, with ± standard deviation where it has several runs, and with its interval."""
        figure = self.figure(row)
        if figure is None:
            return ""
        text = self.written(figure.value)
        if figure.std is not None:
            text += f" ±{self.written(figure.std, self.style.replace('4g', '2g'))}"
        if interval and figure.low is not None and figure.high is not None:
            ends = (self.written(end, self.style.replace("+", "")) for end in (figure.low, figure.high))
            text += f" ({' to '.join(ends)})"
        return text

    def written(self, value: float, style: str = "") -> str:
        """Return a value in the style of the column, `0.00` where that is what is left of `−0.00`."""
        text = format(100 * value if self.percent else value, style or self.style)
        if "+" not in self.style:
            return text
        return text.lstrip("+-") if float(text) == 0 else text.replace("-", MINUS)


def metric_column(name: str, heading: str = "", style: str = "", explained: str = "") -> Column:
    """Return the column of a metric by its name."""
    is_accuracy = name.endswith("accuracy")

    def figure(row: Row) -> Figure | None:
        mean = row.mean(name)
        return None if mean is None else Figure(mean, row.std(name))

    explained = explained or f"{name}{', in percent' if is_accuracy else ''}: mean ± standard deviation over seeds"
    return Column(name, heading, figure, style or (".2f" if is_accuracy else ".4g"), is_accuracy, explained)


def columns_of(comparison: Comparison) -> list[Column]:
    """Return the columns that any row has a figure for, the most important first; those of CSV alone last."""
    shown = [metric_column(name, name) for name in comparison.own_columns] or _standard(comparison)
    shown += _differences(comparison)
    names = {column.key for column in shown}
    rest = sorted({name for row in comparison.rows for name in row.metrics} - names)
    columns = [*shown, *(metric_column(name) for name in [*rest, *({"seconds"} - names)])]
    return [column for column in columns if any(column.figure(row) is not None for row in comparison.rows)]


def _standard(comparison: Comparison) -> list[Column]:
    headings = {"val/best_loss": "val loss", "val/best_accuracy": "val %"}
    first, *more = dict.fromkeys(
        name for name in (comparison.choice.metric, "val/best_accuracy", "val/best_loss") if name is not None
    )
    rate = next((rate for rate in RATES if any(rate in row.metrics for row in comparison.rows)), RATES[0])
    columns = [metric_column(first, headings.get(first, first)), metric_column("test/accuracy", "test %")]
    if len(comparison.rows) > 1:
        columns += [Column("speed-up", "speed", lambda row: _speed_up(comparison, row), ".2f", explained=_SPEED_UP)]
    columns += [
        metric_column("seconds", "s", ".0f", "wall time of the whole run"),
        metric_column(rate, f"{rate.partition('/')[2].partition('_')[0]}/s", ",.0f", rate),
        *(metric_column(name, headings[name]) for name in more),
    ]
    if any(row.replicas > 1 for row in comparison.rows):
        explained = "speed-up for each replica that there is for one of the baseline's"
        columns += [Column("efficiency", "eff.", lambda row: _efficiency(comparison, row), ".2f", explained=explained)]
    columns += [
        metric_column("memory/peak_mib", "MiB", ",.0f", "the most memory of the process that trains"),
        metric_column("memory/gpu_peak_mib", "GPU MiB", ",.0f", "the most memory of the fullest GPU"),
        metric_column("test/loss", "test loss"),
        metric_column("export/max_abs_diff", "export", ".1g", "largest difference of the export's probabilities"),
        metric_column("train/weights_epoch", "epoch", ".4g", "the epoch whose weights were tested and exported"),
    ]
    return columns


_SPEED_UP = "training speed, ± standard deviation and interval (95 %); the mean of the baseline's is 1"


def _differences(comparison: Comparison) -> list[Column]:
    def difference(row: Row) -> Figure | None:
        found = comparison.differences.get(row)
        return None if found is None else Figure(found.difference, None, found.low, found.high)

    def p(row: Row) -> Figure | None:
        found = comparison.differences.get(row)
        return None if found is None else Figure(found.p)

    explained = (
        "difference in test accuracy, in points, with its interval over test examples, and over seeds where there are "
        "several; of twenty differences that are none, one interval on average excludes 0"
    )
    unlikely = "how likely so uneven a disagreement is, if both are correct equally often"
    return [
        Column("difference", "test % − baseline's (95 %)", difference, "+.2f", True, explained),
        Column("mcnemar_p", "McNemar's p", p, ".2g", explained=unlikely),
    ]


def _speed_up(comparison: Comparison, row: Row) -> Figure | None:
    found = comparison.speeds.get(row)
    if found is None or not math.isfinite(found.ratio):
        return None
    std = found.ratio * row.speed_std / row.speed if row.speed and row.speed_std is not None else None
    return Figure(found.ratio, std, found.low, found.high)


def _efficiency(comparison: Comparison, row: Row) -> Figure | None:
    found = comparison.speeds.get(row)
    return Figure(found.ratio * comparison.baseline.replicas / row.replicas) if found and comparison.baseline else None
