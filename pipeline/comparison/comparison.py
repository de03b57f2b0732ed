"""Compare runs: combinations of settings over seeds, each against a baseline, and the combination to take.

That is the best on validation, or the cheapest of those within seed noise of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

from pipeline.comparison.rows import ComparedRun, Row, canonical, pair, rows_of
from pipeline.comparison.words import metric_name
from pipeline.run_folder.summary import Summary, is_lower_better
from stages.errors import UserError
from stages.evaluation.estimates import ERRORS
from stages.evaluation.paired_tests import (
    Interval,
    MetricDifference,
    mean_difference,
    metric_difference,
    pooled_between_seeds,
    pooled_variance,
)
from stages.evaluation.test_set import EXAMPLES, may_be_same_pixels
from stages.reuse import PENALIZED, VALIDATED, VALIDATED_LOSS, VALIDATED_PIXELS


@dataclass(frozen=True)
class SearchResult:
    """Result of a search by its own goals, which the comparison of its trials repeats."""

    answer: str
    metrics: Sequence[str]  # of the goals
    best: Sequence[str]  # names of the best trials' folders


@dataclass(frozen=True)
class Lead:
    """The lead of the best row over another one, in the metric on which it is chosen."""

    mean: float
    """The mean of the best row over the seeds that are compared."""

    by: float
    """The difference of the means, positive if the best row is better."""

    interval: Interval | None
    """The lead with its 95% interval; None if there are no seeds to compute it from."""

    seeds: tuple[int, int]
    """Runs of the best row and of the other one that are compared."""

    is_partial: bool
    """Whether only the seeds that both rows have are compared, and one of them has more."""

    @property
    def is_significant(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval is not None and self.interval.low > 0


@dataclass(frozen=True)
class Choice:
    """The row to take, or the rows."""

    metric: str | None = None
    """The validation metric on which it is chosen; None if there is none."""

    is_lower_better: bool = False
    """Whether less of that metric is better."""

    best: Row | None = None
    """The row with the best mean."""

    leads: Mapping[Row, Lead] = field(default_factory=dict)
    """The lead of `best` over each other row with a finite mean."""

    tied: Sequence[Row] = ()
    """The rows within seed noise of `best`."""

    has_seeds: bool = False
    """Whether any row has several runs, so that seed noise is known."""

    rows: Sequence[Row] = ()
    """The rows to take: the cheapest of `best` and `tied`; for a search, the rows of the best trials."""

    reason: str = ""
    """Why the row to take is the cheapest."""

    @property
    def runner_up(self) -> Row | None:
        """The row with the smallest distance from the best one."""
        return min(self.leads, key=lambda row: self.leads[row].by, default=None)


MOST_TIMES = 4.0
"""Ratio of the ends of an interval of speeds or errors from which on it is too wide to show, unless it is significant.

An interval from half to twice as fast is not shown.
"""

MOST_WIDTH = 0.2
"""The same for a difference in a score between 0 and 1: the width of its interval."""


@dataclass(frozen=True)
class SpeedUp:
    """A ratio of training speeds with its 95% interval, which is None if no row has several runs."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def is_telling(self) -> bool:
        """Whether it has an interval that is narrow enough to show."""
        if self.low is None or self.high is None:
            return False
        return self.is_distinguishable or self.high < MOST_TIMES * self.low

    @property
    def is_distinguishable(self) -> bool:
        """Whether its interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True)
class Comparison:
    """Runs side by side."""

    title: str
    runs: Sequence[ComparedRun]  # in their order, whatever became of them
    rows: tuple[Row, ...]  # of those that have finished
    names: tuple[str, ...]  # of the settings that differ, without the seed
    baseline: Row | None  # what speed and test metrics are compared with
    choice: Choice
    differences: Mapping[Row, MetricDifference]  # from the baseline, in the first metric of the test split
    speeds: Mapping[Row, SpeedUp]  # against the baseline's
    warnings: Sequence[str] = ()
    own_columns: Sequence[str] = ()  # metrics that the user wants to see
    search: SearchResult | None = None  # whose trials the runs are

    def __str__(self) -> str:
        """The table of `python -m pipeline.compare`, and the lines below it."""
        from rich.console import Console

        from pipeline.comparison.report import show  # which imports this

        console = Console(width=80, markup=False, highlight=False, color_system=None)
        with console.capture() as captured:
            show(self, console)
        return captured.get()

    def _repr_html_(self) -> str:
        """The page of the comparison, as a notebook shows it."""
        from html import escape

        from pipeline.comparison.report import page  # which draws this

        return f'<iframe srcdoc="{escape(page(self))}" style="width: 100%; height: 60rem; border: 0"></iframe>'

    @property
    def primary(self) -> str:
        """The metric by which models of the runs' task are compared, such as `accuracy`."""
        return primary_of(self.rows)

    def is_telling(self, difference: MetricDifference) -> bool:
        """Return whether the interval of a difference from the baseline is narrow enough to show."""
        if difference.excludes_zero:
            return True
        if difference.metric not in ERRORS:
            return difference.high - difference.low < MOST_WIDTH
        before = self.baseline.mean(f"test/{difference.metric}") if self.baseline else None
        low, high = ((before or 0.0) + end for end in (difference.low, difference.high))
        return 0 < high < MOST_TIMES * low

    @property
    def best(self) -> Row | None:
        """The row to take, if there is exactly one."""
        return self.choice.rows[0] if len(self.choice.rows) == 1 else None

    @cached_property
    def ranked(self) -> Sequence[Row]:
        """The rows in the order in which people read them, the best first; those without a finite mean are last."""
        metric, sign = self.choice.metric, 1 if self.choice.is_lower_better else -1
        if metric is None:
            return self.rows
        means = {row: sign * _mean(row, metric) for row in self.rows}
        first = self.choice.rows if self.search is not None else [self.choice.best]
        return sorted(self.rows, key=lambda row: (row not in first, not math.isfinite(means[row]), means[row]))

    @cached_property
    def ids(self) -> Mapping[Row, str]:
        """A short name of each row: letters in the order of `ranked`, or the number of the trial in a search."""
        if self.search is not None:
            return {row: str(row.runs[0].number) for row in self.rows}
        return {row: _letters(place) for place, row in enumerate(self.ranked)}

    @property
    def runs_to_take(self) -> Sequence[ComparedRun]:
        """The runs of the best rows: of a search the best trials themselves."""
        runs = [run for row in self.choice.rows for run in row.runs]
        return [run for run in runs if self.search is None or run.folder.name in self.search.best]


def compare_runs(
    title: str,
    runs: Sequence[ComparedRun],
    baseline: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    search: SearchResult | None = None,
) -> Comparison:
    """Compare runs.

    Args:
        baseline: the settings of the row that the others are compared with. By default it is the first row; a search
            has none.
        columns: metrics for the tables instead of the standard ones.
        search: the result of the search whose trials the runs are; it has chosen the best already.

    Raises:
        UserError: if not exactly one row has the settings of the baseline, or no run has a metric.
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
        if chosen_on is not None and (unfit := [row for row in rows if not math.isfinite(_mean(row, chosen_on))]):
            reason = f"its {metric_name(chosen_on)} is not a finite number"
            warnings += [f"{text} cannot win: {reason}" for text in _unfit(unfit, chosen_on)]
    for row in choice.rows if search is None else ():
        if lost := [run for run in runs if run.status == "FAILED" and _is_of(run, row, names)]:
            seeds = ", ".join(run.seed or run.folder.name for run in lost)
            warnings.append(f"{row.label} failed with seed {seeds}: its figures are means over the other seeds")
    return Comparison(title, runs, rows, names, base, choice, differences, speeds, warnings, columns, search)


def primary_of(rows: Sequence[Row]) -> str:
    """Return the first metric of the rows' task."""
    return next((run.summary.primary for row in rows for run in row.runs), "accuracy")


def _baseline(rows: Sequence[Row], settings: Mapping[str, str]) -> Row:
    """Return the row that has these settings, in any spelling, or as tables show them."""
    wanted = {name: (value, canonical(value)) for name, value in settings.items()}
    found = [
        row
        for row in rows
        if all(row.settings.get(name) in own or row.runs[0].setting(name) in own for name, own in wanted.items())
    ]
    if len(found) != 1:
        text = ",".join(f"{name}={value}" for name, value in settings.items())
        labels = [row.label.replace(" ", ",") for row in rows]
        count = f"{len(found)} combinations have" if found else "no combination has"
        raise UserError(f"--baseline {text}: {count} these settings", labels)
    return found[0]


def _differences(rows: Sequence[Row], base: Row | None) -> tuple[dict[Row, MetricDifference], list[str]]:
    """Return each row's difference from the baseline on the seeds that both have, and warnings on those without one."""
    warnings = []
    tested = [run for row in rows for run in row.runs if EXAMPLES in run.summary.facts]
    if not all(run.is_tested_as(tested[0]) for run in tested):
        warnings.append(
            "the runs were tested on different test sets, so their test metrics are not comparable; combinations with "
            "another test set than the baseline have no interval and no p-value"
        )
    if base is None or len(rows) < 2:
        return {}, warnings
    values, metric = _by_example(rows, base), primary_of([base])
    alike = [row for row in rows if f"test/{metric}" in row.metrics and row.runs[0].is_tested_as(base.runs[0])]
    if unfit := [row for row in alike if not math.isfinite(_mean(row, f"test/{metric}"))]:
        reason = f"its {metric_name(f'test/{metric}')} is not a finite number"
        warnings += [f"{text} is not compared with the baseline: {reason}" for text in _unfit(unfit, f"test/{metric}")]
        alike = [row for row in alike if row not in unfit]
    known = [row for row in alike if row.by_seed(values)]
    if missing := [row.label for row in alike if row not in known]:
        labels = "; ".join(missing[:3]) + "; …" * (len(missing) > 3)
        reason = "the predictions are missing, or a label has too few positives"
        warnings.append(f"there is no interval and no p-value for {labels}: {reason}")
    if base not in known:
        return {}, warnings
    pooled = pooled_between_seeds([np.stack([*row.by_seed(values).values()]) for row in known])
    pairs = {row: pair(base, row, values) for row in known if row is not base}
    differences = {
        row: metric_difference(np.stack(both.first), np.stack(both.second), both.is_paired, pooled, metric=metric)
        for row, both in pairs.items()
    }
    return differences, warnings


def _is_of(run: ComparedRun, row: Row, names: Sequence[str]) -> bool:
    """Return whether a run has the settings of a row, and a seed that the row lacks."""
    seeds = {other.seed for other in row.runs}
    return run.seed not in seeds and all(run.setting(name) == row.runs[0].setting(name) for name in names)


def _unfit(rows: Sequence[Row], metric: str) -> list[str]:
    """Return the rows with a run whose metric is not finite, each with the seeds of these runs; three at most."""
    texts = []
    for row in rows[:3]:
        seeds = [run.seed for run in row.runs if not math.isfinite(run.metrics.get(metric, 0.0)) and run.seed]
        texts.append(row.label + (f" (seed {', '.join(seeds)})" if seeds else ""))
    return [*texts, *([f"each of {len(rows) - 3} more combinations"] if len(rows) > 3 else [])]


def _by_example(rows: Sequence[Row], base: Row) -> Callable[[ComparedRun], np.ndarray | None]:
    """Return a function that returns a run's value of each test example, [n].

    It returns None for a run without predictions, and for one that was tested on other examples than the baseline.
    """
    runs = [*base.runs, *(run for row in rows if row is not base for run in row.runs)]
    found = {run.number: run.by_example() for run in runs if run.is_tested_as(base.runs[0])}
    answers = {number: values for number, values in found.items() if values is not None and len(values) > 1}
    length = len(next(iter(answers.values()), ()))
    return lambda run: values if (values := answers.get(run.number)) is not None and len(values) == length else None


def speed_ups(rows: Sequence[Row], base: Row) -> dict[Row, SpeedUp]:
    """Return how many times as fast as `base` each row trains, for the rows that count the same unit.

    The interval is computed on the logarithm of the ratio, as speeds vary in proportion. A row with a single run is
    assumed to vary as much as the rows with several.
    """
    proportions = {row: _proportions(row, base.rate) for row in rows}
    pooled = pooled_variance(proportions.values())
    found = {}
    for row in rows if proportions[base] else ():
        if proportions[row]:
            ratio = (row.mean(base.rate) or 0) / base.speed
            interval = mean_difference(proportions[base], proportions[row], False, pooled) if row is not base else None
            ends = (ratio * math.exp(interval.low), ratio * math.exp(interval.high)) if interval else (None, None)
            found[row] = SpeedUp(ratio, *ends)
    return found


def _proportions(row: Row, rate: str) -> list[float]:
    """Return the speeds of a row's runs divided by their mean; nothing if the mean is not a positive number."""
    mean = row.mean(rate)
    return [value / mean for value in row.values(rate)] if mean is not None and 0 < mean < math.inf else []


def choose(rows: Sequence[Row], baseline: Row | None) -> Choice:
    """Choose among rows."""
    metric = _chosen_metric(rows)
    finite = [row for row in rows if metric is not None and math.isfinite(_mean(row, metric))]
    if metric is None or not finite:
        return Choice(metric)
    is_lower = is_lower_better(metric, rows[0].runs[0].summary.task)
    sign = -1 if is_lower else 1
    finite.sort(key=lambda row: (sign * _mean(row, metric), row.speed), reverse=True)
    best = finite[0]
    for row in finite[1:]:  # a row may lead by a mean that lacks a hard seed
        both = pair(best, row, lambda run: run.metrics.get(metric))
        if both.is_paired and sign * float(np.mean(both.second) - np.mean(both.first)) > 0:
            best = row
    leads = _leads(finite, best, metric, sign)
    has_seeds = any(len(row.by_seed(lambda run: run.metrics.get(metric))) > 1 for row in finite)
    tied = [row for row, lead in leads.items() if not lead.is_significant] if has_seeds else []
    row, reason = _cheapest([best, *tied], rows, baseline)
    return Choice(metric, is_lower, best, leads, tied, has_seeds, [row], reason)


def _mean(row: Row, metric: str) -> float:
    mean = row.mean(metric)
    return math.nan if mean is None else mean


def _chosen_metric(rows: Sequence[Row]) -> str | None:
    """Return the validation metric on which the best row is chosen.

    It is the metric by which all runs chose their best epoch. If they differ in that, in their loss, or may differ in
    the penalties that their networks add to it, it is the task's first metric, as different losses are not on one
    scale. It is None if some runs have none, or the runs were validated on different examples.
    """
    if not are_validated_alike([run.summary for row in rows for run in row.runs]):
        return None
    monitors = {run.monitor for row in rows for run in row.runs}
    if "val/best_loss" in monitors and not _have_losses_alike(rows):
        monitors.clear()
    candidates = [*(monitors if len(monitors) == 1 else ()), f"val/best_{primary_of(rows)}"]
    has_all = (name for name in candidates if rows and all(name in run.metrics for row in rows for run in row.runs))
    return next(has_all, None)


def _have_losses_alike(rows: Sequence[Row]) -> bool:
    """Return whether all losses are one function, and no setting of a model changes the penalties added to it."""
    losses = [run.summary.facts.get(VALIDATED_LOSS) or {} for row in rows for run in row.runs]
    changed = {name for row in rows for name, value in row.settings.items() if value != rows[0].settings.get(name)}
    may_differ = any(PENALIZED in loss for loss in losses) and any(name.startswith("model") for name in changed)
    return not may_differ and all(loss == losses[0] for loss in losses)


def are_validated_alike(runs: Sequence[Summary]) -> bool:
    """Return whether no two runs are known to have been validated on different examples."""
    facts = [run.facts for run in runs if run.facts.get(VALIDATED)]
    pixels = {fact.get(VALIDATED_PIXELS) or "" for fact in facts}
    return len({fact[VALIDATED] for fact in facts}) < 2 and all(
        may_be_same_pixels(*two) for two in combinations(pixels, 2)
    )


def _leads(rows: Sequence[Row], best: Row, metric: str, sign: int) -> dict[Row, Lead]:
    """Return the lead of the best row over each other one.

    Args:
        sign: 1 if more of the metric is better, −1 if less is.
    """

    def value(run: ComparedRun) -> float | None:
        found = run.metrics.get(metric)
        return None if found is None else sign * found

    pooled = pooled_variance([[*row.by_seed(value).values()] for row in rows])
    leads = {}
    for row in rows:
        if row is best:
            continue
        first, second, is_paired = pair(row, best, value)
        counts = len(second), len(first)
        is_partial = is_paired and counts != (len(best.by_seed(value)), len(row.by_seed(value)))
        mean = float(np.mean(second))
        by = mean - float(np.mean(first))
        leads[row] = Lead(sign * mean, by, mean_difference(first, second, is_paired, pooled), counts, is_partial)
    return leads


def _cheapest(candidates: Sequence[Row], rows: Sequence[Row], baseline: Row | None) -> tuple[Row, str]:
    """Return the fastest row; among those not significantly slower, the one with the fewest changes of the baseline."""
    fastest = max(candidates, key=lambda row: row.speed)
    speeds = speed_ups(rows, fastest)
    as_fast = [row for row in candidates if row not in speeds or not speeds[row].is_distinguishable]
    before = baseline.settings if baseline is not None else {}
    simplest = min(as_fast, key=lambda row: sum(row.settings.get(n) != before.get(n) for n in {*row.settings, *before}))
    if simplest is baseline:
        return simplest, "the baseline"
    return simplest, "the fastest" if len(as_fast) == 1 else "the closest to the baseline"


def _letters(place: int) -> str:
    """Return the name of a place as spreadsheets name columns: A for 0, Z for 25, AA for 26."""
    more, letter = divmod(place, 26)
    return (_letters(more - 1) if more else "") + chr(ord("A") + letter)
