"""Number of seeds that would make a difference significant."""

import math

import numpy as np

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import Paired, Row, RunRecord, pair
from stages.evaluation.paired_tests import LEVEL, Part, pooled_variance

MAX_SEEDS = 50
"""The largest number of seeds per combination that is recommended."""

POWER = 0.8
"""Probability that the recommended number of seeds makes a difference significant, if the difference stays as it is."""


def needed_for_significance(comparison: Comparison, row: Row, metric: str, is_ratio: bool = False) -> str:
    """Return what would make a difference from the baseline significant: `about 9 seeds`, or `more test examples`.

    Args:
        comparison: The comparison.
        row: The row that differs from the baseline.
        metric: The metric that is compared.
        is_ratio: Whether the logarithms of the metric are compared, without pairing seeds, as for speeds.
    """

    def value(run: RunRecord) -> float | None:
        score = run.metrics.get(metric, math.nan)
        if is_ratio:
            score = math.log(score) if score > 0 else math.nan
        return score if math.isfinite(score) else None

    assert comparison.baseline is not None
    both = pair(comparison.baseline, row, value)
    if is_ratio:
        both = Paired([*comparison.baseline.by_seed(value).values()], [*row.by_seed(value).values()], False)
    pooled = pooled_variance([[*one.by_seed(value).values()] for one in comparison.rows])
    if pooled is None or not both.first or not both.second:
        return "more seeds"
    if not is_ratio and _is_significant(both, pooled):  # the uncertainty comes from the test examples, not the seeds
        return "more test examples"
    return seeds_text(_seeds_needed(both, pooled))


def seeds_to_settle(comparison: Comparison) -> int | None:
    """Return the number of seeds per combination that would distinguish the best row from all that tie with it.

    Rows with exactly the same values are left out. `MAX_SEEDS` + 1 stands for any larger number, and None for an
    unknown number.
    """
    chosen = comparison.choice
    metric, best = chosen.metric, chosen.best
    if metric is None or best is None:
        return None

    def value(run: RunRecord) -> float | None:
        return run.metrics.get(metric)

    pooled = pooled_variance([[*row.by_seed(value).values()] for row in (best, *chosen.leads)])
    pairs = [pair(best, row, value) for row in chosen.tied]
    different = [both for both in pairs if both.first != both.second]
    return max((_seeds_needed(both, pooled) for both in different), default=None) if pooled is not None else None


def seeds_text(seeds: int) -> str:
    """Return a number of seeds in words: `about 9 seeds`, or `more than 50 seeds`."""
    return f"about {seeds} seeds" if seeds <= MAX_SEEDS else f"more than {MAX_SEEDS} seeds"


def _seeds_needed(both: Paired, pooled: Part) -> int:
    """Return the number of seeds for which Student's t-test finds the difference of two rows with probability `POWER`.

    It assumes that the true difference and the true variance equal those of the runs so far.
    """
    from scipy import special

    change, variance, samples, runs = _change(both, pooled)
    if not variance:
        return runs if change else MAX_SEEDS + 1
    for seeds in range(runs, MAX_SEEDS + 1):
        degrees = (seeds - 1) * samples
        critical = float(special.stdtrit(degrees, (1 + LEVEL) / 2))
        # The probability that a noncentral t exceeds the critical value. The opposite tail is negligible.
        if 1 - float(special.nctdtr(degrees, change / math.sqrt(variance / seeds), critical)) >= POWER:
            return seeds
    return MAX_SEEDS + 1


def _is_significant(both: Paired, pooled: Part) -> bool:
    """Return whether the difference would be significant if only the seeds varied, and not the test examples."""
    from scipy import special

    change, variance, samples, seeds = _change(both, pooled)
    return float(special.stdtrit((seeds - 1) * samples, (1 + LEVEL) / 2)) * math.sqrt(variance / seeds) < change


def _change(both: Paired, pooled: Part) -> tuple[float, float, int, int]:
    """Return the difference of two rows, the sum of the samples' variances, the number of samples, and their size."""
    change = abs(float(np.mean(both.second) - np.mean(both.first)))
    has_pairs = both.is_paired and len(both.first) > 1
    samples = [np.subtract(both.second, both.first)] if has_pairs else [both.first, both.second]
    variance = sum(float(np.var(one, ddof=1)) if len(one) > 1 else pooled.variance for one in samples)
    return change, variance, len(samples), max(len(both.first), len(both.second), 2)
