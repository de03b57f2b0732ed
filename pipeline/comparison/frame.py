"""The columns of a comparison, which all tables, pages and files share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import RATES, Row
from pipeline.comparison.seeds import POWER, needed_for_significance
from pipeline.comparison.words import MAX_DECIMALS, is_percentage, magnitude, metric_label
from pipeline.runs.summary import is_lower_better
from stages.evaluation.paired_tests import MINUS, MetricDifference, unit_of

DIFFERENCE, SPEED_UP = "difference", "speed-up"
"""Keys of the columns that compare a row with the baseline."""

NOT_SIGNIFICANT = "not significant"

MEANINGS = {
    "seconds": "Wall time of the run in seconds.",
    "memory/peak_mib": "Peak memory of the process in MiB.",
    "memory/gpu_peak_mib": "Peak memory of the GPU in MiB.",
    "export/max_abs_diff": "Largest difference between a prediction of the exported model and of the trained model.",
    "train/weights_epoch": "Epoch whose weights are tested and exported.",
    "mcnemar_p": "p-value of McNemar's test, about these trained models: the probability of a difference at least as "
    "large if both were equally accurate.",
    DIFFERENCE: f"Difference from the baseline on the same test examples, with its 95% confidence interval. "
    f'"{NOT_SIGNIFICANT}": the interval includes 0. "needs about N seeds": the interval is too wide to show; with N '
    f"seeds per combination a difference of this size would be significant with a probability of {POWER:.0%}.",
    SPEED_UP: "Training speed divided by the speed of the baseline, with its 95% confidence interval.",
}
"""Explanations of columns by their keys."""


class Figure(NamedTuple):
    """A value of a row, with its standard deviation over runs and the ends of its 95% interval; None if unknown."""

    value: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    shows_interval: bool = True
    """Whether the interval is narrow enough to show. If not, only the CSV file has it."""


@dataclass(frozen=True)
class Column:
    """A column of figures."""

    key: str
    """Its name in the CSV file."""

    heading: str
    """Its name in tables; empty for a column that only the CSV file has."""

    figures: Mapping[Row, Figure]
    """The figures of the rows that have one."""

    style: str = ".4g"
    """The format of values; with %, fractions are written as percentages."""

    suffix: str = ""
    """The unit after a value."""

    meaning: str = ""
    """An explanation of one or two sentences."""

    notes: Mapping[Row, str] = field(default_factory=dict)
    """Remarks about the difference of a row, such as `needs about 9 seeds`."""

    is_wide: bool = False
    """Whether its cells show an interval instead of a standard deviation."""

    def text(self, row: Row, interval: bool = True) -> str:
        """Return a row's value with its standard deviation or its interval, and the remark about it."""
        if row not in self.figures:
            return ""
        more = ", ".join(filter(None, (self.interval(row), self.notes.get(row, "")))) if interval else ""
        return self.value(row) + (f" ({more})" if more else "")

    def value(self, row: Row) -> str:
        """Return a row's value, with ± standard deviation if it has several runs."""
        if (figure := self.figures.get(row)) is None:
            return ""
        std, style = None if self.is_wide else figure.std, self.style
        if std and math.isfinite(std) and style == ".4g":  # two digits of the standard deviation determine both
            style = f",.{min(max(1 - magnitude(std), 0), MAX_DECIMALS)}f"
        text = self._formatted(figure.value, style) + self.suffix
        return text if std is None else f"{text} ±{self._formatted(std, style)}"

    def interval(self, row: Row) -> str:
        """Return the interval of a row's value; empty if there is none, or if it is too wide to show."""
        figure = self.figures.get(row)
        if figure is None or not figure.shows_interval or figure.low is None or figure.high is None:
            return ""
        ends = (self._formatted(end, self.style.replace("+", "")) for end in (figure.low, figure.high))
        return " to ".join(ends)

    def _formatted(self, value: float, style: str) -> str:
        """Return a value in a style, with `0.00` instead of `−0.00`."""
        text = format(value, style).removesuffix("%")
        if "+" not in self.style:
            return text
        return text.lstrip("+-") if float(text.replace(",", "")) == 0 else text.replace("-", MINUS)


def metric_column(rows: Sequence[Row], name: str, heading: str = "", style: str = "") -> Column:
    """Return the column of a metric."""
    figures = {row: Figure(mean, row.std(name)) for row in rows if (mean := row.mean(name)) is not None}
    is_fraction = is_percentage(name)
    style = style or (".2%" if is_fraction else ".4g")
    return Column(name, heading, figures, style, "%" if is_fraction else "", _meaning(rows, name))


def _meaning(rows: Sequence[Row], name: str) -> str:
    """Return an explanation of a metric."""
    if name in MEANINGS or not rows:
        return MEANINGS.get(name, "")
    split, _, metric = name.partition("/")
    if name in RATES:
        return f"Training speed in {metric.partition('_')[0]} per second."
    better = f"; {'lower' if is_lower_better(name, rows[0].runs[0].summary.task) else 'higher'} is better"
    if name.startswith("val/best_"):
        return f"The {metric_label(name)} in the run's best epoch{better}."
    if split == "test":
        return f"The {metric_label(name)}, with the weights of the best epoch{better}. It never decides the winner."
    return f"The {metric_label(name)}{better}."


def columns_of(comparison: Comparison) -> list[Column]:
    """Return the columns with a figure in any row, the most important first and those only for the CSV file last."""
    rows = comparison.rows
    shown = [metric_column(rows, name, name) for name in comparison.own_columns] or _standard(comparison)
    shown += _of_differences(comparison) if comparison.own_columns else []
    rest = {"seconds", *(name for row in rows for name in row.metrics)} - {column.key for column in shown}
    columns = [*shown, *(metric_column(rows, name) for name in sorted(rest))]
    return [column for column in columns if column.figures]


def shown_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of tables for people."""
    return [column for column in columns_of(comparison) if column.heading]


def _standard(comparison: Comparison) -> list[Column]:
    rows, primary = comparison.rows, comparison.primary
    names = dict.fromkeys(filter(None, (comparison.choice.metric, f"val/best_{primary}", "val/best_loss")))
    first, *more = [metric_column(rows, name, metric_label(name)) for name in names]
    rate = next((rate for rate in RATES if any(rate in row.metrics for row in rows)), RATES[0])
    difference, p_value = _of_differences(comparison)
    return [
        first,
        metric_column(rows, f"test/{primary}", metric_label(f"test/{primary}")),
        difference,
        speed_column(comparison),
        p_value,
        metric_column(rows, rate, f"{_unit(comparison, rate)}/s", ",.0f"),
        metric_column(rows, "seconds", "run time (s)", ".0f"),
        *more,
        metric_column(rows, "test/loss", "test loss"),
        metric_column(rows, "memory/peak_mib", "memory (MiB)", ",.0f"),
        metric_column(rows, "memory/gpu_peak_mib", "GPU memory (MiB)", ",.0f"),
        metric_column(rows, "export/max_abs_diff", "export error", ".1g"),
        metric_column(rows, "train/weights_epoch", "best epoch"),
    ]


def _unit(comparison: Comparison, rate: str) -> str:
    """Return the unit that a rate counts; for `examples`, the runs record whether they are rows, texts or others."""
    counted = rate.partition("/")[2].partition("_")[0]
    units = {run.summary.facts.unit or counted for row in comparison.rows for run in row.runs}
    return units.pop() if len(units) == 1 and counted == "examples" else counted


def difference_column(comparison: Comparison) -> Column:
    """Return the differences from the baseline in the primary metric of the test split."""
    metric = f"test/{comparison.primary}"
    is_fraction = is_percentage(metric)
    differences = comparison.differences.items()
    figures = {
        row: Figure(one.difference, None, one.low, one.high, comparison.shows_interval(one) and not one.is_same)
        for row, one in differences
    }
    notes = {row: _note(comparison, row, difference) for row, difference in differences}
    heading = f"{metric_label(metric)} vs baseline"
    suffix = unit_of(comparison.primary)
    return Column(
        DIFFERENCE, heading, figures, "+.2%" if is_fraction else "+.4g", suffix, MEANINGS[DIFFERENCE], notes, True
    )


def _note(comparison: Comparison, row: Row, difference: MetricDifference) -> str:
    """Return the remark about a difference; empty if it is significant."""
    if difference.is_same:
        return "the same examples are correct" if difference.metric == "accuracy" else "equal on every example"
    if difference.excludes_zero:
        return ""
    if comparison.shows_interval(difference):
        return NOT_SIGNIFICANT
    more = needed_for_significance(comparison, row, f"test/{difference.metric}") if difference.of_settings else ""
    return f"needs {more or 'more test examples'}"


def _of_differences(comparison: Comparison) -> list[Column]:
    p_values = {row: Figure(one.p) for row, one in comparison.differences.items() if one.p is not None}
    return [
        difference_column(comparison),
        Column("mcnemar_p", "McNemar's p", p_values, ".2g", meaning=MEANINGS["mcnemar_p"]),
    ]


def speed_column(comparison: Comparison) -> Column:
    """Return the training speeds relative to the baseline's."""
    figures, notes = {}, {}
    for row, speed in comparison.speeds.items() if len(comparison.rows) > 1 else ():
        std = row.std(row.rate)
        std_of_ratio = speed.ratio * std / row.speed if std is not None else None
        figures[row] = Figure(speed.ratio, std_of_ratio, speed.low, speed.high, speed.shows_interval)
        if row is comparison.baseline or speed.is_distinguishable:
            continue
        if speed.shows_interval:
            notes[row] = NOT_SIGNIFICANT
        elif speed.low is None:
            notes[row] = "one run each"
        else:
            assert comparison.baseline is not None
            notes[row] = f"needs {needed_for_significance(comparison, row, comparison.baseline.rate, is_ratio=True)}"
    return Column(SPEED_UP, "speed vs baseline", figures, ".2f", "×", MEANINGS[SPEED_UP], notes, True)
