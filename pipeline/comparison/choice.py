"""The row to take: the best on validation, or the cheapest of those that cannot be told from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pipeline.comparison.rows import RATES, Row, is_lower_better, pair
from stages.evaluation.paired_tests import Part, mean_difference, pooled_variance
from stages.evaluation.test_set import may_be_same_pixels

ACCURACY = "val/best_accuracy"


@dataclass(frozen=True)
class Choice:
    """The row to take.

    metric: of validation, on which it is chosen; None: there is none. best: has the best mean of it.
    tied: rows that cannot be told from `best`. noise: what they are told by: `runs` that differ by seed alone, the
    number of validation `examples` where no row has several runs; empty: nothing tells how much of a lead is chance.
    row: the cheapest of `best` and `tied`; reason: why it is that.
    """

    metric: str | None = None
    best: Row | None = None
    tied: tuple[Row, ...] = ()
    noise: str = ""
    row: Row | None = None
    reason: str = ""


@dataclass(frozen=True)
class SpeedUp:
    """A ratio of training speeds, with its interval (95 %); None: nothing tells how speeds vary."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def is_distinguishable(self) -> bool:
        """Whether its interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def choose(rows: Sequence[Row], baseline: Row | None) -> Choice:
    """Choose among rows that are no debug runs."""
    metric = chosen_metric(rows)
    best = best_row(rows, metric)
    if metric is None or best is None:
        return Choice(metric)
    noise, tied = _tied(rows, best, metric)
    row, reason = _cheapest([row for row in rows if row is best or row in tied], rows, baseline)
    return Choice(metric, best, tied, noise, row, reason)


def speed_variances(rows: Sequence[Row]) -> dict[str, Part | None]:
    """Return by the rates of training how the runs of a row vary, in proportion to their mean."""
    return {rate: pooled_variance([_proportions(row, rate) for row in rows]) for rate in RATES}


def speed_up(row: Row, base: Row, variances: Mapping[str, Part | None]) -> SpeedUp | None:
    """Return how many times as fast as `base` a row trains; None where they do not count the same.

    The interval is one of the ratio's logarithm, as speeds vary in proportion.

    Args:
        variances: of all rows that are compared: one with a single run varies as those with several do.
    """
    rate = next((rate for rate in RATES if _proportions(row, rate) and _proportions(base, rate)), None)
    if rate is None:
        return None
    ratio = float(row.mean(rate) or 0) / float(base.mean(rate) or math.nan)
    if row is base:
        return SpeedUp(ratio)
    interval = mean_difference(_proportions(base, rate), _proportions(row, rate), False, variances[rate])
    if interval is None:
        return SpeedUp(ratio)
    return SpeedUp(ratio, ratio * math.exp(interval.low), ratio * math.exp(interval.high))


def _proportions(row: Row, rate: str) -> list[float]:
    """Return the speeds of a row's runs, divided by their mean; none where that is no speed."""
    mean = row.mean(rate)
    return [value / mean for value in row.values(rate)] if mean is not None and 0 < mean < math.inf else []


def chosen_metric(rows: Sequence[Row]) -> str | None:
    """Return the validation metric on which the best row is chosen.

    That by which all runs chose their best epoch; where they differ in that, the best validation accuracy, as losses
    of different settings need not be on one scale; None where some have none, or they are of different examples.
    """
    if not are_validated_alike(rows):
        return None
    monitors = {run.monitor for row in rows for run in row.runs}
    candidates = [monitors.pop()] if len(monitors) == 1 else []
    for name in (*candidates, ACCURACY):
        if name is not None and rows and all(name in run.metrics for row in rows for run in row.runs):
            return name
    return None


def are_validated_alike(rows: Sequence[Row]) -> bool:
    """Return whether no two runs are known to have been validated on different examples."""
    known = {run.validated for row in rows for run in row.runs if run.validated is not None}
    examples = {digest for digest, _ in known}
    return len(examples) < 2 and all(
        may_be_same_pixels(*pixels) for pixels in combinations({pixels for _, pixels in known}, 2)
    )


def best_row(rows: Sequence[Row], metric: str | None) -> Row | None:
    """Return the row with the best mean of `metric`; of equals the fastest; None without a finite one."""
    if metric is None:
        return None
    sign = -1 if is_lower_better(metric) else 1
    finite = [row for row in rows if _has_mean(row, metric)]
    return max(finite, key=lambda row: (sign * float(row.mean(metric) or 0), row.speed or 0.0), default=None)


def _has_mean(row: Row, metric: str) -> bool:
    mean = row.mean(metric)
    return mean is not None and math.isfinite(mean)


def _tied(rows: Sequence[Row], best: Row, metric: str) -> tuple[str, tuple[Row, ...]]:
    """Return by what rows are told from the best, and those that cannot be."""
    others = [row for row in rows if row is not best and _has_mean(row, metric)]
    pooled = pooled_variance([[*row.by_seed(lambda run: run.metrics.get(metric)).values()] for row in [best, *others]])
    if pooled is not None:
        return "runs", tuple(row for row in others if not _is_told(best, row, metric, pooled))
    numbers = [run.summary.facts.get("data", {}).get("val_examples") for row in (best, *others) for run in row.runs]
    if not all(numbers) or not all(_has_mean(row, ACCURACY) for row in (best, *others)):
        return "", ()
    return "examples", tuple(row for row in others if not _is_told_by_examples(best, row, min(filter(None, numbers))))


def _is_told(best: Row, row: Row, metric: str, pooled: Part) -> bool:
    first, second, is_paired, _ = pair(best, row, lambda run: run.metrics.get(metric))
    difference = mean_difference(first, second, is_paired, pooled)
    return difference is not None and difference.excludes_zero


def _is_told_by_examples(best: Row, row: Row, examples: int) -> bool:
    """Return whether validation accuracies differ by more than so many examples explain.

    By the interval of Agresti and Caffo (The American Statistician 54, 2000) for two samples. These two are of the same
    examples and so differ by less, how much less is not known: no run keeps its predictions of the validation split.
    """
    adjusted = [(float(one.mean(ACCURACY) or 0) * examples + 1) / (examples + 2) for one in (best, row)]
    variance = sum(p * (1 - p) for p in adjusted) / (examples + 2)
    return abs(adjusted[0] - adjusted[1]) > 1.96 * math.sqrt(variance)


def _cheapest(candidates: Sequence[Row], rows: Sequence[Row], baseline: Row | None) -> tuple[Row, str]:
    """Return the fastest row; of those that cannot be told from it the one that changes least of the baseline."""
    fastest = max(candidates, key=lambda row: row.speed or 0.0)
    as_fast = []
    variances = speed_variances(rows)
    for row in candidates:
        faster = speed_up(fastest, row, variances)
        if row is fastest or faster is None or not faster.is_distinguishable:
            as_fast.append(row)
    before = baseline.settings if baseline is not None else {}
    simplest = min(as_fast, key=lambda row: sum(row.settings.get(n) != before.get(n) for n in {*row.settings, *before}))
    if simplest is baseline:
        return simplest, "the baseline"
    return simplest, "the fastest" if len(as_fast) == 1 else "the nearest to the baseline"
