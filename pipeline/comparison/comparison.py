"""Compare runs: combinations of settings over seeds, each against a baseline, and the recommended combination.

The recommended combination is the best on validation, or the cheapest of those within seed noise of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.comparison.choice import MAX_RATIO, Choice, SpeedUp, choose, mean_of, primary_of, speed_ups
from pipeline.comparison.rows import Row, RunRecord, canonical, pair, rows_of
from pipeline.comparison.words import metric_label
from pipeline.runs.summary import is_lower_better
from stages.errors import UserError
from stages.evaluation.paired_tests import (
    MetricDifference,
    metric_difference,
    pooled_between_seeds,
)
from stages.metrics.known import known_metric


@dataclass(frozen=True)
class SearchResult:
    """The result of a search by its goals; the comparison of its trials shows the same result."""

    answer: str
    """The sentence that names the best trials."""

    metrics: Sequence[str]
    """The metrics that the search optimizes."""

    best: Sequence[str]
    """The names of the best trials' folders."""


MAX_WIDTH = 0.2
"""Width of the interval of a difference in a score between 0 and 1; a wider one is shown only if it is significant."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs."""

    title: str

    runs: Sequence[RunRecord]
    """All runs in their order, including unfinished ones."""

    rows: tuple[Row, ...]
    """The rows of the finished runs."""

    names: tuple[str, ...]
    """The names of the settings that differ, without the seed."""

    baseline: Row | None
    """The row that speed and test metrics are compared with."""

    choice: Choice

    differences: Mapping[Row, MetricDifference]
    """The differences from the baseline in the primary metric of the test split."""

    speeds: Mapping[Row, SpeedUp]
    """The training speeds relative to the baseline's."""

    warnings: Sequence[str] = ()

    own_columns: Sequence[str] = ()
    """The metrics that the user asked for."""

    search: SearchResult | None = None
    """The result of the search, if the runs are its trials."""

    def __str__(self) -> str:
        """The table of `python -m pipeline compare`, and the lines below it."""
        from rich.console import Console

        from pipeline.comparison.report import show  # imports this module

        console = Console(width=80, markup=False, highlight=False, color_system=None)
        with console.capture() as captured:
            show(self, console)
        return captured.get()

    def _repr_html_(self) -> str:
        """The page of the comparison in a frame, for a notebook."""
        from html import escape

        from pipeline.comparison.report import page  # imports this module

        return f'<iframe srcdoc="{escape(page(self))}" style="width: 100%; height: 60rem; border: 0"></iframe>'

    @property
    def primary(self) -> str:
        """The metric that compares models of the runs' task, such as `accuracy`."""
        return primary_of(self.rows)

    def shows_interval(self, difference: MetricDifference) -> bool:
        """Return whether the interval of a difference from the baseline is narrow enough to show."""
        if difference.excludes_zero:
            return True
        if difference.higher_is_better:
            return difference.high - difference.low < MAX_WIDTH
        before = self.baseline.mean(f"test/{difference.metric}") if self.baseline else None
        low, high = ((before or 0.0) + end for end in (difference.low, difference.high))
        return 0 < high < MAX_RATIO * low

    @property
    def best(self) -> Row | None:
        """The recommended row, if there is exactly one."""
        return self.choice.rows[0] if len(self.choice.rows) == 1 else None

    @cached_property
    def ranked(self) -> Sequence[Row]:
        """The rows from the best to the worst; those without a finite mean are last."""
        metric, sign = self.choice.metric, 1 if self.choice.is_lower_better else -1
        if metric is None:
            return self.rows
        means = {row: sign * mean_of(row, metric) for row in self.rows}
        first = self.choice.rows if self.search is not None else [self.choice.best]
        return sorted(self.rows, key=lambda row: (row not in first, not math.isfinite(means[row]), means[row]))

    @cached_property
    def ids(self) -> Mapping[Row, str]:
        """A short name for each row: letters in the order of `ranked`, or the number of the trial in a search."""
        if self.search is not None:
            return {row: str(row.runs[0].number) for row in self.rows}
        return {row: _letters(place) for place, row in enumerate(self.ranked)}

    @property
    def runs_to_take(self) -> Sequence[RunRecord]:
        """The runs of the recommended rows; for a search, only the best trials."""
        runs = [run for row in self.choice.rows for run in row.runs]
        return [run for run in runs if self.search is None or run.folder.name in self.search.best]


def compare_runs(
    title: str,
    runs: Sequence[RunRecord],
    baseline: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    search: SearchResult | None = None,
) -> Comparison:
    """Compare runs.

    Args:
        title: The title of the comparison.
        runs: The runs, including unfinished ones.
        baseline: The settings of the row that the others are compared with. By default this is the first row; a search
            has no baseline by default.
        columns: Metrics for the tables instead of the standard ones.
        search: The result of the search, if the runs are its trials. It determines the best rows.

    Raises:
        UserError: If not exactly one row has the settings of the baseline, or no run has a metric.
    """
    known = {"seconds", *(name for run in runs for name in run.metrics)}
    for name in columns:
        if name not in known:
            raise UserError(f"no run has the metric {name}", sorted(known))
    names, rows = rows_of(runs)
    if baseline is not None:
        base: Row | None = _baseline(rows, baseline)
    else:
        base = rows[0] if rows and search is None else None
    differences, warnings = _differences(rows, base)
    speeds = speed_ups(rows, base) if base else {}
    if search is not None:
        best = [row for row in rows if any(run.folder.name in search.best for run in row.runs)]
        metric = search.metrics[0]
        choice = Choice(metric, bool(rows) and is_lower_better(metric, rows[0].runs[0].summary.task), rows=best)
    else:
        choice = choose(rows, base)
        chosen_on = choice.metric
        if chosen_on is not None and (unfit := [row for row in rows if not math.isfinite(mean_of(row, chosen_on))]):
            reason = f"its {metric_label(chosen_on)} is not a finite number"
            warnings += [f"{text} cannot win: {reason}" for text in _unfit(unfit, chosen_on)]
    for row in choice.rows if search is None else ():
        if lost := [run for run in runs if run.status == "FAILED" and _belongs_to(run, row, names)]:
            seeds = ", ".join(run.seed or run.folder.name for run in lost)
            warnings.append(f"{row.label} failed with seed {seeds}: its figures are means over the other seeds")
    return Comparison(title, runs, rows, names, base, choice, differences, speeds, warnings, columns, search)


def _baseline(rows: Sequence[Row], settings: Mapping[str, str]) -> Row:
    """Return the row that has these settings; values may be in any spelling, or as tables show them."""
    spellings = {name: (value, canonical(value)) for name, value in settings.items()}
    matches = [
        row
        for row in rows
        if all(
            row.settings.get(name) in values or row.runs[0].setting(name) in values
            for name, values in spellings.items()
        )
    ]
    if len(matches) != 1:
        text = ",".join(f"{name}={value}" for name, value in settings.items())
        labels = [row.label.replace(" ", ",") for row in rows]
        count = f"{len(matches)} combinations have" if matches else "no combination has"
        raise UserError(f"--baseline {text}: {count} these settings", labels)
    return matches[0]


def _differences(rows: Sequence[Row], base: Row | None) -> tuple[dict[Row, MetricDifference], list[str]]:
    """Return each row's difference from the baseline on the seeds that both have, and warnings for rows without one."""
    warnings = []
    tested = [run for row in rows for run in row.runs if run.summary.facts.test_examples is not None]
    if not all(run.is_tested_as(tested[0]) for run in tested):
        warnings.append(
            "the runs were tested on different test sets, so their test metrics are not comparable; combinations with "
            "a different test set than the baseline have no interval and no p-value"
        )
    if base is None or len(rows) < 2:
        return {}, warnings
    values, metric = _by_example(rows, base), primary_of([base])
    comparable = [row for row in rows if f"test/{metric}" in row.metrics and row.runs[0].is_tested_as(base.runs[0])]
    if unfit := [row for row in comparable if not math.isfinite(mean_of(row, f"test/{metric}"))]:
        reason = f"its {metric_label(f'test/{metric}')} is not a finite number"
        warnings += [f"{text} is not compared with the baseline: {reason}" for text in _unfit(unfit, f"test/{metric}")]
        comparable = [row for row in comparable if row not in unfit]
    known = [row for row in comparable if row.by_seed(values)]
    if missing := [row.label for row in comparable if row not in known]:
        labels = "; ".join(missing[:3]) + "; …" * (len(missing) > 3)
        reason = "the predictions are missing, or a label has too few positives"
        warnings.append(f"there is no interval and no p-value for {labels}: {reason}")
    if base not in known:
        return {}, warnings
    by = known_metric(metric, not is_lower_better(metric, base.runs[0].summary.task))
    pooled = pooled_between_seeds([np.stack([*row.by_seed(values).values()]) for row in known])
    pairs = {row: pair(base, row, values) for row in known if row is not base}
    differences = {
        row: metric_difference(np.stack(both.first), np.stack(both.second), both.is_paired, pooled, metric=by)
        for row, both in pairs.items()
    }
    return differences, warnings


def _belongs_to(run: RunRecord, row: Row, names: Sequence[str]) -> bool:
    """Return whether a run has the settings of a row, and a seed that the row lacks."""
    seeds = {other.seed for other in row.runs}
    return run.seed not in seeds and all(run.setting(name) == row.runs[0].setting(name) for name in names)


def _unfit(rows: Sequence[Row], metric: str) -> list[str]:
    """Return the labels of rows with the seeds whose metric is not finite; at most three, and how many more there are.

    Args:
        rows: Rows with a run whose metric is not finite.
        metric: The name of the metric.
    """
    texts = []
    for row in rows[:3]:
        seeds = [run.seed for run in row.runs if not math.isfinite(run.metrics.get(metric, 0.0)) and run.seed]
        texts.append(row.label + (f" (seed {', '.join(seeds)})" if seeds else ""))
    return [*texts, *([f"each of {len(rows) - 3} more combinations"] if len(rows) > 3 else [])]


def _by_example(rows: Sequence[Row], base: Row) -> Callable[[RunRecord], np.ndarray | None]:
    """Return a function that returns a run's value for each test example, [n].

    It returns None for a run without predictions, and for a run that was tested on other examples than the baseline.
    """
    runs = [*base.runs, *(run for row in rows if row is not base for run in row.runs)]
    values_by_run = {run.number: run.by_example() for run in runs if run.is_tested_as(base.runs[0])}
    known = {number: values for number, values in values_by_run.items() if values is not None and len(values) > 1}
    length = len(next(iter(known.values()), ()))
    return lambda run: values if (values := known.get(run.number)) is not None and len(values) == length else None


def _letters(place: int) -> str:
    """Return the name of a position as spreadsheets name columns: A for 0, Z for 25, AA for 26."""
    more, letter = divmod(place, 26)
    return (_letters(more - 1) if more else "") + chr(ord("A") + letter)
