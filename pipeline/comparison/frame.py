"""The frame of a comparison: its columns, with the figures that every table, page and file shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import RATES, Row
from stages.evaluation.paired_tests import MINUS


class Figure(NamedTuple):
    """A value of a row with its standard deviation over runs, and the ends of its interval (95%); None: unknown."""

    value: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    is_telling: bool = True
    """Whether the interval says anything; else only the CSV has it."""


@dataclass(frozen=True)
class Column:
    """A column of figures."""

    key: str  # its full name, in CSV
    heading: str  # its short one; empty: it is in CSV alone
    figures: Mapping[Row, Figure]  # of the rows that have one
    style: str = ".4g"  # in which values are written; with % they are fractions, and written times 100

    def text(self, row: Row, interval: bool = True) -> str:
        """Return a row's value, with ± standard deviation where it has several runs, and with its interval."""
        if (figure := self.figures.get(row)) is None:
            return ""
        text = self._written(figure.value, self.style)
        if figure.std is not None:
            text += f" ±{self._written(figure.std, self.style.replace('4g', '2g'))}"
        if interval and figure.is_telling and figure.low is not None and figure.high is not None:
            ends = (self._written(end, self.style.replace("+", "")) for end in (figure.low, figure.high))
            text += f" ({' to '.join(ends)})"
        return text

    def _written(self, value: float, style: str) -> str:
        """Return a value in a style, `0.00` where that is what is left of `−0.00`."""
        text = format(value, style).removesuffix("%")
        if "+" not in self.style:
            return text
        return text.lstrip("+-") if float(text) == 0 else text.replace("-", MINUS)


def metric_column(rows: Sequence[Row], name: str, heading: str = "", style: str = "") -> Column:
    """Return the column of a metric by its name."""
    figures = {row: Figure(mean, row.std(name)) for row in rows if (mean := row.mean(name)) is not None}
    return Column(name, heading, figures, style or (".2%" if name.endswith("accuracy") else ".4g"))


def columns_of(comparison: Comparison) -> list[Column]:
    """Return the columns that any row has a figure for, the most important first; those of CSV alone last."""
    rows = comparison.rows
    shown = [metric_column(rows, name, name) for name in comparison.own_columns] or _standard(comparison)
    shown += _of_differences(comparison)
    rest = {"seconds", *(name for row in rows for name in row.metrics)} - {column.key for column in shown}
    columns = [*shown, *(metric_column(rows, name) for name in sorted(rest))]
    return [column for column in columns if column.figures]


def shown_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of tables for people."""
    return [column for column in columns_of(comparison) if column.heading]


def _standard(comparison: Comparison) -> list[Column]:
    rows, primary = comparison.rows, comparison.primary
    short = "%" if primary == "accuracy" else primary
    headings = {"val/best_loss": "val loss", f"val/best_{primary}": f"val {short}"}
    names = dict.fromkeys(filter(None, (comparison.choice.metric, f"val/best_{primary}", "val/best_loss")))
    first, *more = [metric_column(rows, name, headings.get(name, name)) for name in names]
    rate = next((rate for rate in RATES if any(rate in row.metrics for row in rows)), RATES[0])
    return [
        first,
        metric_column(rows, f"test/{primary}", f"test {short}"),
        Column("speed-up", "speed", _speed_ups(comparison) if len(rows) > 1 else {}, ".2f"),
        metric_column(rows, "seconds", "s", ".0f"),
        metric_column(rows, rate, f"{_unit(comparison, rate)}/s", ",.0f"),
        *more,
        metric_column(rows, "memory/peak_mib", "MiB", ",.0f"),
        metric_column(rows, "memory/gpu_peak_mib", "GPU MiB", ",.0f"),
        metric_column(rows, "test/loss", "test loss"),
        metric_column(rows, "export/max_abs_diff", "export", ".1g"),
        metric_column(rows, "train/weights_epoch", "epoch"),
    ]


def _unit(comparison: Comparison, rate: str) -> str:
    """Return what a rate counts: `examples` are rows, texts or others, by what the runs say."""
    counted = rate.partition("/")[2].partition("_")[0]
    units = {run.summary.facts.get("unit", counted) for row in comparison.rows for run in row.runs}
    return str(units.pop()) if len(units) == 1 and counted == "examples" else counted


def _of_differences(comparison: Comparison) -> list[Column]:
    is_fraction = comparison.primary == "accuracy"
    heading = f"test {'%' if is_fraction else comparison.primary} − baseline's (95%)"
    found = comparison.differences.items()
    figures = {row: Figure(one.difference, None, one.low, one.high, comparison.is_telling(one)) for row, one in found}
    p_values = {row: Figure(one.p) for row, one in found if one.p is not None}
    return [
        Column("difference", heading, figures, "+.2%" if is_fraction else "+.4g"),
        Column("mcnemar_p", "McNemar's p", p_values, ".2g"),
    ]


def _speed_ups(comparison: Comparison) -> dict[Row, Figure]:
    figures = {}
    for row, found in comparison.speeds.items():
        std = row.std(row.rate)
        of_ratio = found.ratio * std / row.speed if std is not None else None
        figures[row] = Figure(found.ratio, of_ratio, found.low, found.high, found.is_telling)
    return figures
