"""The number of seeds that would tell a row of a comparison from the baseline."""

import math

import numpy as np

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import ComparedRun, Paired, Row, pair
from stages.evaluation.paired_tests import LEVEL, pooled_variance

MOST_SEEDS = 100
"""Seeds of each setting that are recommended, at most."""


def seeds_to_tell(comparison: Comparison, row: Row, metric: str, is_ratio: bool = False) -> str:
    """Return what would tell a row from the baseline, in words: how many seeds of each, or more test examples.

    The interval of as many runs would exclude no difference if they differed and varied as those so far do.

    Args:
        is_ratio: whether the metric is compared by its logarithm, and unpaired, as speeds are.
    """
    from scipy import special

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
    change = abs(float(np.mean(both.second) - np.mean(both.first)))
    has_pairs = both.is_paired and len(both.first) > 1
    samples = [np.subtract(both.second, both.first)] if has_pairs else [both.first, both.second]
    variance = sum(float(np.var(one, ddof=1)) if len(one) > 1 else pooled.variance for one in samples)
    least = max(len(both.first), len(both.second), 2)
    for seeds in range(least, MOST_SEEDS + 1):
        critical = float(special.stdtrit((seeds - 1) * len(samples), (1 + LEVEL) / 2))
        if critical * math.sqrt(variance / seeds) < change:
            return f"about {seeds} seeds each" if seeds > least or is_ratio else "more test examples"
    return f"more than {MOST_SEEDS} seeds each"
