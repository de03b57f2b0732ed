"""The choice of a row: the best on validation, or the cheapest of those within seed noise of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from pipeline.comparison.rows import Row, RunRecord, pair
from pipeline.runs.summary import Summary, is_lower_better
from stages.evaluation.paired_tests import Interval, mean_difference, pooled_variance
from stages.evaluation.test_set import may_be_same_pixels
from stages.reuse import PENALIZED


@dataclass(frozen=True)
class Lead:
    """The lead of the best row over another row in the metric that decides."""

    mean: float
    """The mean of the best row over the seeds that are compared."""

    by: float
    """The difference of the means, positive if the best row is better."""

    interval: Interval | None
    """The lead with its 95% interval; None if there are no seeds to compute it from."""

    seeds: tuple[int, int]
    """Number of compared runs, of the best row and of the other one."""

    is_partial: bool
    """Whether a row has more seeds than those that both have, on which they are compared."""

    @property
    def is_significant(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval is not None and self.interval.low > 0


@dataclass(frozen=True)
class Choice:
    """The recommended row, or rows."""

    metric: str | None = None
    """The validation metric that decides; None if there is none."""

    is_lower_better: bool = False
    """Whether lower values of that metric are better."""

    best: Row | None = None
    """The row with the best mean."""

    leads: Mapping[Row, Lead] = field(default_factory=dict)
    """The lead of `best` over each other row with a finite mean."""

    tied: Sequence[Row] = ()
    """The rows within seed noise of `best`."""

    has_seeds: bool = False
    """Whether any row has several runs, so seed noise can be estimated."""

    rows: Sequence[Row] = ()
    """The recommended rows: the cheapest of `best` and `tied`; for a search, the rows of the best trials."""

    reason: str = ""
    """The reason for choosing the recommended row among equals."""

    @property
    def runner_up(self) -> Row | None:
        """The row that is closest to the best one."""
        return min(self.leads, key=lambda row: self.leads[row].by, default=None)


MAX_RATIO = 4.0
"""Ratio of the ends of an interval of speeds or errors; a wider interval is shown only if it is significant.

For example, an interval from half to twice as fast is not shown.
"""


@dataclass(frozen=True)
class SpeedUp:
    """A ratio of training speeds with its 95% interval; the ends are None if no row has several runs."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def shows_interval(self) -> bool:
        """Whether there is an interval that is narrow enough to show."""
        if self.low is None or self.high is None:
            return False
        return self.is_distinguishable or self.high < MAX_RATIO * self.low

    @property
    def is_distinguishable(self) -> bool:
        """Whether its interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def primary_of(rows: Sequence[Row]) -> str:
    """Return the primary metric of the rows' task."""
    return next((run.summary.primary for row in rows for run in row.runs), "accuracy")


def speed_ups(rows: Sequence[Row], base: Row) -> dict[Row, SpeedUp]:
    """Return the training speed of each row divided by that of `base`, for the rows that count the same unit.

    The interval is computed on the logarithm of the ratio, because the spread of speeds is proportional to the speed.
    A row with a single run is assumed to vary as much as the rows with several runs.
    """
    proportions = {row: _proportions(row, base.rate) for row in rows}
    pooled = pooled_variance(proportions.values())
    ratios = {}
    for row in rows if proportions[base] else ():
        if proportions[row]:
            ratio = (row.mean(base.rate) or 0) / base.speed
            interval = mean_difference(proportions[base], proportions[row], False, pooled) if row is not base else None
            ends = (ratio * math.exp(interval.low), ratio * math.exp(interval.high)) if interval else (None, None)
            ratios[row] = SpeedUp(ratio, *ends)
    return ratios


def _proportions(row: Row, rate: str) -> list[float]:
    """Return the speeds of a row's runs divided by their mean; empty if the mean is not a positive number."""
    mean = row.mean(rate)
    return [value / mean for value in row.values(rate)] if mean is not None and 0 < mean < math.inf else []


def choose(rows: Sequence[Row], baseline: Row | None) -> Choice:
    """Return the recommended row, and how it was chosen."""
    metric = _chosen_metric(rows)
    finite = [row for row in rows if metric is not None and math.isfinite(mean_of(row, metric))]
    if metric is None or not finite:
        return Choice(metric)
    is_lower = is_lower_better(metric, rows[0].runs[0].summary.task)
    sign = -1 if is_lower else 1
    finite.sort(key=lambda row: (sign * mean_of(row, metric), row.speed), reverse=True)
    best = finite[0]
    for row in finite[1:]:  # a mean may be better only because the row lacks a hard seed
        both = pair(best, row, lambda run: run.metrics.get(metric))
        if both.is_paired and sign * float(np.mean(both.second) - np.mean(both.first)) > 0:
            best = row
    leads = _leads(finite, best, metric, sign)
    has_seeds = any(len(row.by_seed(lambda run: run.metrics.get(metric))) > 1 for row in finite)
    tied = [row for row, lead in leads.items() if not lead.is_significant] if has_seeds else []
    row, reason = _cheapest([best, *tied], rows, baseline)
    return Choice(metric, is_lower, best, leads, tied, has_seeds, [row], reason)


def mean_of(row: Row, metric: str) -> float:
    """Return the mean of a metric over a row's runs; NaN if no run has it."""
    mean = row.mean(metric)
    return math.nan if mean is None else mean


def _chosen_metric(rows: Sequence[Row]) -> str | None:
    """Return the validation metric by which the best row is chosen.

    This is the metric by which all runs chose their best epoch. If they used different metrics or different losses, or
    their networks may add different penalties to the loss, it is the task's primary metric, because different losses
    are not on the same scale. It is None if some runs do not have the metric, or if the runs were validated on
    different examples.
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
    """Return whether all runs have the same loss, and no model setting changes the penalties added to it."""
    losses = [run.summary.facts.val_loss or {} for row in rows for run in row.runs]
    changed = {name for row in rows for name, value in row.settings.items() if value != rows[0].settings.get(name)}
    may_differ = any(PENALIZED in loss for loss in losses) and any(name.startswith("model") for name in changed)
    return not may_differ and all(loss == losses[0] for loss in losses)


def are_validated_alike(runs: Sequence[Summary]) -> bool:
    """Return whether all runs were validated on the same examples. Runs without a record of them are ignored."""
    known = [run.facts for run in runs if run.facts.val_examples]
    pixels = {facts.val_pixels or "" for facts in known}
    return len({facts.val_examples for facts in known}) < 2 and all(
        may_be_same_pixels(*two) for two in combinations(pixels, 2)
    )


def _leads(rows: Sequence[Row], best: Row, metric: str, sign: int) -> dict[Row, Lead]:
    """Return the lead of the best row over each other one.

    Args:
        sign: 1 if higher values of the metric are better, −1 if lower ones are.
    """

    def value(run: RunRecord) -> float | None:
        score = run.metrics.get(metric)
        return None if score is None else sign * score

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
    """Return the fastest row, and why; among equally fast rows, the one with the fewest changes to the baseline.

    Rows are equally fast if they are not significantly slower than the fastest.
    """
    fastest = max(candidates, key=lambda row: row.speed)
    speeds = speed_ups(rows, fastest)
    as_fast = [row for row in candidates if row not in speeds or not speeds[row].is_distinguishable]
    before = baseline.settings if baseline is not None else {}
    simplest = min(as_fast, key=lambda row: sum(row.settings.get(n) != before.get(n) for n in {*row.settings, *before}))
    if simplest is baseline:
        return simplest, "the baseline"
    return simplest, "the fastest" if len(as_fast) == 1 else "the closest to the baseline"
