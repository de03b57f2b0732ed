"""The frame of a comparison: its columns, with the figures that every table, page and file shows."""

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
    """A column of figures."""

    key: str  # its full name, in CSV
    heading: str  # its short one; empty: it is in CSV alone
    figure: Callable[[Row], Figure | None]
    style: str = ".4g"  # in which values are written; with % they are fractions, and written times 100

    def text(self, row: Row, interval: bool = True) -> str:
        """Return a row's value, with ± standard deviation where it has several runs, and with its interval."""
        figure = self.figure(row)
        if figure is None:
            return ""
        text = self._written(figure.value, self.style)
        if figure.std is not None:
            text += f" ±{self._written(figure.std, self.style.replace('4g', '2g'))}"
        if interval and figure.low is not None and figure.high is not None:
            ends = (self._written(end, self.style.replace("+", "")) for end in (figure.low, figure.high))
            text += f" ({' to '.join(ends)})"
        return text

    def _written(self, value: float, style: str) -> str:
        """Return a value in a style, `0.00` where that is what is left of `−0.00`."""
        text = format(value, style).removesuffix("%")
        if "+" not in self.style:
            return text
        return text.lstrip("+-") if float(text) == 0 else text.replace("-", MINUS)


def metric_column(name: str, heading: str = "", style: str = "") -> Column:
    """Return the column of a metric by its name."""

    def figure(row: Row) -> Figure | None:
        mean = row.mean(name)
        return None if mean is None else Figure(mean, row.std(name))

    return Column(name, heading, figure, style or (".2%" if name.endswith("accuracy") else ".4g"))


def columns_of(comparison: Comparison) -> list[Column]:
    """Return the columns that any row has a figure for, the most important first; those of CSV alone last."""
    shown = [metric_column(name, name) for name in comparison.own_columns] or _standard(comparison)
    shown += [
        _difference_column(comparison),
        Column("mcnemar_p", "McNemar's p", lambda row: _p(comparison, row), ".2g"),
    ]
    rest = {"seconds", *(name for row in comparison.rows for name in row.metrics)} - {column.key for column in shown}
    columns = [*shown, *map(metric_column, sorted(rest))]
    return [column for column in columns if any(column.figure(row) is not None for row in comparison.rows)]


def shown_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of tables for people."""
    return [column for column in columns_of(comparison) if column.heading]


def _standard(comparison: Comparison) -> list[Column]:
    primary = comparison.primary
    short = "%" if primary == "accuracy" else primary
    headings = {"val/best_loss": "val loss", f"val/best_{primary}": f"val {short}"}
    names = dict.fromkeys(filter(None, (comparison.choice.metric, f"val/best_{primary}", "val/best_loss")))
    first, *more = [metric_column(name, headings.get(name, name)) for name in names]
    rate = next((rate for rate in RATES if any(rate in row.metrics for row in comparison.rows)), RATES[0])
    return [
        first,
        metric_column(f"test/{primary}", f"test {short}"),
        Column("speed-up", "speed", lambda row: _speed_up(comparison, row), ".2f"),
        metric_column("seconds", "s", ".0f"),
        metric_column(rate, f"{_unit(comparison, rate)}/s", ",.0f"),
        *more,
        metric_column("memory/peak_mib", "MiB", ",.0f"),
        metric_column("memory/gpu_peak_mib", "GPU MiB", ",.0f"),
        metric_column("test/loss", "test loss"),
        metric_column("export/max_abs_diff", "export", ".1g"),
        metric_column("train/weights_epoch", "epoch"),
    ]


def _unit(comparison: Comparison, rate: str) -> str:
    """Return what a rate counts: `examples` are rows, texts or others, by what the runs say."""
    counted = rate.partition("/")[2].partition("_")[0]
    units = {run.summary.facts.get("unit", counted) for row in comparison.rows for run in row.runs}
    return str(units.pop()) if len(units) == 1 and counted == "examples" else counted


def _difference_column(comparison: Comparison) -> Column:
    is_fraction = comparison.primary == "accuracy"
    heading = f"test {'%' if is_fraction else comparison.primary} − baseline's (95 %)"
    style = "+.2%" if is_fraction else "+.4g"
    return Column("difference", heading, lambda row: _difference(comparison, row), style)


def _difference(comparison: Comparison, row: Row) -> Figure | None:
    found = comparison.differences.get(row)
    return Figure(found.difference, None, found.low, found.high) if found else None


def _p(comparison: Comparison, row: Row) -> Figure | None:
    found = comparison.differences.get(row)
    return Figure(found.p) if found and found.p is not None else None


def _speed_up(comparison: Comparison, row: Row) -> Figure | None:
    found = comparison.speeds.get(row)
    if found is None or len(comparison.rows) == 1:
        return None
    std = row.std(row.rate)
    return Figure(found.ratio, found.ratio * std / row.speed if std is not None else None, found.low, found.high)
