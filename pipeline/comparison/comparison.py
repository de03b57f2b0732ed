"""Compares runs: rows over seeds, each against a baseline, and the row to take.

That is the best on validation, or the cheapest of those that cannot be told from it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pipeline.comparison.rows import ComparedRun, Row, canonical, pair, rows_of
from pipeline.run_folder.summary import Summary, is_lower_better
from stages.errors import UserError
from stages.evaluation.estimates import ERRORS
from stages.evaluation.paired_tests import (
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
class Choice:
    """The row to take, or the rows."""

    metric: str | None = None  # of validation, on which it is chosen; None: there is none
    is_lower_better: bool = False  # of that metric
    best: Row | None = None  # has the best mean of it
    tied: Sequence[Row] = ()  # cannot be told from `best`
    has_seeds: bool = False  # which tell rows apart; else nothing does
    rows: Sequence[Row] = ()  # to take: the cheapest of `best` and `tied`; of a search all that no other beats
    reason: str = ""  # why it is the cheapest


MOST_TIMES = 10.0
"""Ratio of the ends of an interval of speeds or errors from which it says nothing, unless it excludes no difference."""

MOST_WIDTH = 0.5
"""The same of a difference in a score between 0 and 1: the width of its interval."""


@dataclass(frozen=True)
class SpeedUp:
    """A ratio of training speeds, with its interval (95%); None: nothing tells how speeds vary."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def is_telling(self) -> bool:
        """Whether it has an interval that says anything."""
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
        """The table of `python -m pipeline.compare`, and what it says below."""
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
        """Return whether the interval of a difference from the baseline says anything."""
        if difference.excludes_zero:
            return True
        if difference.metric not in ERRORS:
            return difference.high - difference.low < MOST_WIDTH
        before = self.baseline.mean(f"test/{difference.metric}") if self.baseline else None
        low, high = ((before or 0.0) + end for end in (difference.low, difference.high))
        return 0 < high < MOST_TIMES * low

    @property
    def best(self) -> Row | None:
        """The row to take, where there is but one."""
        return self.choice.rows[0] if len(self.choice.rows) == 1 else None

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
        baseline: settings of the row that the others are compared with; None: the first row, of a search none.
        columns: metrics that the tables are to have, instead of those that they have by themselves.
        search: whose trials the runs are; it has chosen the best already.

    Raises:
        UserError: where no row, or more than one, has the settings of the baseline, or no run has a metric.
    """
    known = {"seconds", *(name for run in runs for name in run.metrics)}
    for name in columns:
        if name not in known:
            raise UserError(f"no run has a metric {name}", sorted(known))
    names, rows = rows_of(runs)
    if baseline is not None:
        base: Row | None = _baseline(rows, baseline)
    else:
        base = rows[0] if rows and search is None else None
    differences, warnings = _differences(rows, base)
    speeds = speed_ups(rows, base) if base else {}
    if search is not None:
        best = [row for row in rows if any(run.folder.name in search.best for run in row.runs)]
        choice = Choice(search.metrics[0], rows=best)
    else:
        choice = choose(rows, base)
        metric = choice.metric
        if metric is not None and (unfit := [row for row in rows if not math.isfinite(_mean(row, metric))]):
            warnings.append(f"left out of the choice, as {metric} is not a finite number: {_unfit(unfit, metric)}")
    for row in choice.rows if search is None else ():
        if lost := [run for run in runs if run.status == "FAILED" and _is_of(run, row, names)]:
            seeds = ", ".join(run.seed or run.folder.name for run in lost)
            warnings.append(f"{row.label} has failed with seed {seeds}: its figures are of the other seeds")
    return Comparison(title, runs, rows, names, base, choice, differences, speeds, warnings, columns, search)


def primary_of(rows: Sequence[Row]) -> str:
    """Return the first metric of the rows' task."""
    return next((run.summary.primary for row in rows for run in row.runs), "accuracy")


def _baseline(rows: Sequence[Row], settings: Mapping[str, str]) -> Row:
    """Return the row that has these settings, written in any form, or as tables show them."""
    wanted = {name: (value, canonical(value)) for name, value in settings.items()}
    found = [
        row
        for row in rows
        if all(row.settings.get(name) in own or row.runs[0].setting(name) in own for name, own in wanted.items())
    ]
    if len(found) != 1:
        text = ",".join(f"{name}={value}" for name, value in settings.items())
        labels = [row.label.replace(" ", ",") for row in rows]
        raise UserError(f"--baseline {text}: {len(found)} combinations have these settings", labels)
    return found[0]


def _differences(rows: Sequence[Row], base: Row | None) -> tuple[dict[Row, MetricDifference], list[str]]:
    """Return each row's difference from the baseline, of the seeds that both have, and what forbids one."""
    warnings = []
    tested = [run for row in rows for run in row.runs if EXAMPLES in run.summary.facts]
    if not all(run.is_tested_as(tested[0]) for run in tested):
        warnings.append(
            "the runs were tested on different test sets: their metrics are not of the same examples, and those of "
            "other examples than the baseline's have no interval and no p"
        )
    if base is None or len(rows) < 2:
        return {}, warnings
    values, metric = _by_example(rows, base), primary_of([base])
    alike = [row for row in rows if f"test/{metric}" in row.metrics and row.runs[0].is_tested_as(base.runs[0])]
    if unfit := [row for row in alike if not math.isfinite(_mean(row, f"test/{metric}"))]:
        warnings.append(f"not compared, as test/{metric} is not a finite number: {_unfit(unfit, f'test/{metric}')}")
        alike = [row for row in alike if row not in unfit]
    known = [row for row in alike if row.by_seed(values)]
    if missing := [row.label for row in alike if row not in known]:
        labels = "; ".join(missing[:3]) + "; …" * (len(missing) > 3)
        warnings.append(f"no interval and no p, as predictions are missing or a label is too rare: {labels}")
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


def _unfit(rows: Sequence[Row], metric: str) -> str:
    """Return the rows with a run whose metric is not finite, and the seeds of these runs."""
    texts = []
    for row in rows[:3]:
        seeds = [run.seed for run in row.runs if not math.isfinite(run.metrics.get(metric, 0.0)) and run.seed]
        texts.append(row.label + (f" (seed {', '.join(seeds)})" if seeds else ""))
    return "; ".join(texts) + "; …" * (len(rows) > 3)


def _by_example(rows: Sequence[Row], base: Row) -> Callable[[ComparedRun], np.ndarray | None]:
    """Return what has a run's values of the test examples, [n].

    None of a run without predictions, or with those of other examples than the baseline's.
    """
    runs = [*base.runs, *(run for row in rows if row is not base for run in row.runs)]
    found = {run.number: run.by_example() for run in runs if run.is_tested_as(base.runs[0])}
    answers = {number: values for number, values in found.items() if values is not None and len(values) > 1}
    length = len(next(iter(answers.values()), ()))
    return lambda run: values if (values := answers.get(run.number)) is not None and len(values) == length else None


def speed_ups(rows: Sequence[Row], base: Row) -> dict[Row, SpeedUp]:
    """Return how many times as fast as `base` each row trains, of those that count the same.

    The interval is one of the ratio's logarithm, as speeds vary in proportion. A row with a single run varies as those
    with several do.
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
    """Return the speeds of a row's runs, divided by their mean; none where that is no speed."""
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
    tied = _tied(finite, best, metric)
    row, reason = _cheapest([best, *(tied or ())], rows, baseline)
    return Choice(metric, is_lower, best, tied or (), tied is not None, [row], reason)


def _mean(row: Row, metric: str) -> float:
    mean = row.mean(metric)
    return math.nan if mean is None else mean


def _chosen_metric(rows: Sequence[Row]) -> str | None:
    """Return the validation metric on which the best row is chosen.

    That by which all runs chose their best epoch; where they differ in that, or in their loss, or may in the penalties
    that their networks add to it, the task's first metric, as different losses are not on one scale; None where some
    have none, or they are of different examples.
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
    """Return whether losses are of one function, and no settings of a model may change the penalties on top of it."""
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


def _tied(rows: Sequence[Row], best: Row, metric: str) -> list[Row] | None:
    """Return the rows that their seeds cannot tell from the best; None where no row has several."""

    def value(run: ComparedRun) -> float | None:
        return run.metrics.get(metric)

    pooled = pooled_variance([[*row.by_seed(value).values()] for row in rows])
    if pooled is None:
        return None
    pairs = {row: pair(best, row, value) for row in rows if row is not best}
    found = {row: mean_difference(one.first, one.second, one.is_paired, pooled) for row, one in pairs.items()}
    return [row for row, interval in found.items() if interval is None or not interval.excludes_zero]


def _cheapest(candidates: Sequence[Row], rows: Sequence[Row], baseline: Row | None) -> tuple[Row, str]:
    """Return the fastest row; of those that cannot be told from it the one that changes least of the baseline."""
    fastest = max(candidates, key=lambda row: row.speed)
    speeds = speed_ups(rows, fastest)
    as_fast = [row for row in candidates if row not in speeds or not speeds[row].is_distinguishable]
    before = baseline.settings if baseline is not None else {}
    simplest = min(as_fast, key=lambda row: sum(row.settings.get(n) != before.get(n) for n in {*row.settings, *before}))
    if simplest is baseline:
        return simplest, "the baseline"
    return simplest, "the fastest" if len(as_fast) == 1 else "the nearest to the baseline"
