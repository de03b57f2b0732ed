"""The number of seeds that would make a difference significant."""

import math

import numpy as np

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import ComparedRun, Paired, Row, pair
from stages.evaluation.paired_tests import LEVEL, Part, pooled_variance

MOST_SEEDS = 50
"""The largest number of seeds per combination that is recommended."""

POWER = 0.8
"""The chance that as many seeds as recommended make a difference significant, if it is as large as it is so far."""


def seeds_to_tell(comparison: Comparison, row: Row, metric: str, is_ratio: bool = False) -> str:
    """Return what would make a difference from the baseline significant: `about 9 seeds`, or `more test examples`.

    Args:
        is_ratio: whether the metric is compared by its logarithm, and unpaired, as speeds are.
    """

    def value(run: ComparedRun) -> float | None:
        found = run.metrics.get(metric, math.nan)
        if is_ratio:
            found = math.log(found) if found > 0 else math.nan
        return found if math.isfinite(found) else None

    assert comparison.baseline is not None
    both = pair(comparison.baseline, row, value)
    if is_ratio:
        both = Paired([*comparison.baseline.by_seed(value).values()], [*row.by_seed(value).values()], False)
    pooled = pooled_variance([[*one.by_seed(value).values()] for one in comparison.rows])
    if pooled is None or not both.first or not both.second:
        return "more seeds"
    if not is_ratio and _is_significant(both, pooled):  # so the test examples are what makes it uncertain
        return "more test examples"
    return seeds_text(_seeds_needed(both, pooled))


def seeds_to_settle(comparison: Comparison) -> int | None:
    """Return the number of seeds per combination that would tell the best row from all that tie with it.

    Rows whose runs have the same values are left out. `MOST_SEEDS` + 1 stands for any larger number, and None for an
    unknown one.
    """
    chosen = comparison.choice
    metric, best = chosen.metric, chosen.best
    if metric is None or best is None:
        return None

    def value(run: ComparedRun) -> float | None:
        return run.metrics.get(metric)

    pooled = pooled_variance([[*row.by_seed(value).values()] for row in (best, *chosen.leads)])
    pairs = [pair(best, row, value) for row in chosen.tied]
    different = [both for both in pairs if both.first != both.second]
    return max((_seeds_needed(both, pooled) for both in different), default=None) if pooled is not None else None


def seeds_text(seeds: int) -> str:
    """Return a number of seeds in words: `about 9 seeds`, or `more than 50 seeds`."""
    return f"about {seeds} seeds" if seeds <= MOST_SEEDS else f"more than {MOST_SEEDS} seeds"


def _seeds_needed(both: Paired, pooled: Part) -> int:
    """Return the number of seeds from which on Student's t probably finds the difference of two rows significant.

    The probability is `POWER`, if the true difference and the true variance are those of the runs so far.
    """
    from scipy import special

    change, variance, samples, least = _change(both, pooled)
    if not variance:
        return least if change else MOST_SEEDS + 1
    for seeds in range(least, MOST_SEEDS + 1):
        degrees = (seeds - 1) * samples
        critical = float(special.stdtrit(degrees, (1 + LEVEL) / 2))
        # The chance that a noncentral t is above the critical value; below its negative it hardly ever is.
        if 1 - float(special.nctdtr(degrees, change / math.sqrt(variance / seeds), critical)) >= POWER:
            return seeds
    return MOST_SEEDS + 1


def _is_significant(both: Paired, pooled: Part) -> bool:
    """Return whether the runs so far would have a significant difference if there were nothing but seeds to vary."""
    from scipy import special

    change, variance, samples, seeds = _change(both, pooled)
    return float(special.stdtrit((seeds - 1) * samples, (1 + LEVEL) / 2)) * math.sqrt(variance / seeds) < change


def _change(both: Paired, pooled: Part) -> tuple[float, float, int, int]:
    """Return the difference of two rows, the sum of the samples' variances, their number, and the runs of each."""
    change = abs(float(np.mean(both.second) - np.mean(both.first)))
    has_pairs = both.is_paired and len(both.first) > 1
    samples = [np.subtract(both.second, both.first)] if has_pairs else [both.first, both.second]
    variance = sum(float(np.var(one, ddof=1)) if len(one) > 1 else pooled.variance for one in samples)
    return change, variance, len(samples), max(len(both.first), len(both.second), 2)
