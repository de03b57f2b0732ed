"""What test examples tell about the difference between two settings: an interval, and McNemar's p."""

from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class AccuracyDifference:
    """A difference in test accuracy, as a fraction: that of the second setting minus that of the first.

    low, high: ends of the interval; p: McNemar's; seeds: how many of each setting, the smaller number.
    """

    difference: float
    low: float
    high: float
    p: float
    seeds: int
    examples: int

    @property
    def is_told(self) -> bool:
        """Whether the interval excludes 0."""
        return not self.low <= 0 <= self.high


def accuracy_difference(
    first: np.ndarray, second: np.ndarray, paired: bool, resamples: int = RESAMPLES, level: float = LEVEL
) -> AccuracyDifference:
    """Compares two settings on the same test examples.

    Args:
        first: whether each test example is classified correctly by each run of the first setting, bool [runs, n].
        second: the same of the second setting.
        paired: whether the runs of both are of the same seeds, in the same order.
        level: of the interval.
    """
    low, high = bootstrap_interval(first, second, paired, resamples, level=level)
    difference = float(second.mean() - first.mean())
    return AccuracyDifference(
        difference, low, high, mcnemar_p(first, second), min(len(first), len(second)), first.shape[1]
    )


def bootstrap_interval(
    first: np.ndarray,
    second: np.ndarray,
    paired: bool,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Returns the ends of an interval of the difference of the mean accuracies.

    The percentile interval of the paired bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    chapter 13): examples are drawn with replacement, and with each what all runs of both settings make of it. A drawn
    mean depends on how often each of the few values of an example's difference is drawn, and not on which example it
    is; those numbers are multinomial, so that a draw costs nothing that grows with the examples.

    Of several seeds the drawn means also vary by what seeds differ in more than examples explain: the variance between
    seeds of the two-way layout without replication (Searle, Casella and McCulloch, Variance Components, 1992, chapter
    4), by Student's t. Runs of the same seed are paired, so that what a seed does to both settings falls away.
    """
    random = np.random.default_rng(seed)
    examples = first.shape[1]
    sums = second.sum(axis=0, dtype=np.int64) * len(first) - first.sum(axis=0, dtype=np.int64) * len(second)
    values, counts = np.unique(sums, return_counts=True)
    drawn = random.multinomial(examples, counts / examples, size=resamples)
    means = drawn @ values / (examples * len(first) * len(second))
    layouts = [second.astype(np.int8) - first.astype(np.int8)] if paired else [first, second]
    for layout in layouts:
        if (variance := _variance_between_seeds(layout)) > 0:
            means += random.standard_t(len(layout) - 1, resamples) * (variance / len(layout)) ** 0.5
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _variance_between_seeds(layout: np.ndarray) -> float:
    """Returns the variance of runs' means, [runs, n], beyond that which differing on single examples gives them."""
    if len(layout) < 2:
        return 0.0
    of_means = float(np.var(layout.mean(axis=1), ddof=1))
    of_examples = float(np.var(layout, axis=0, ddof=1).mean())
    return max(of_means - of_examples / layout.shape[1], 0.0)


def mcnemar_p(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the two-sided p of McNemar's test that both settings are correct equally often.

    Of one run each: exact, the binomial test of the examples on which they disagree (McNemar, Psychometrika 12, 1947).
    Of several: the examples are clusters, the test that of Durkalski et al. (Analysis of clustered matched-pair data,
    Statistics in Medicine 22, 2003), which is McNemar's without correction for one run each. Both ask whether these
    trained models differ; they know nothing of other seeds.
    """
    from scipy import special

    if len(first) == len(second) == 1:
        only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
        few, both = min(only_first, only_second), only_first + only_second
        return min(1.0, 2 * float(special.bdtr(few, both, 0.5))) if both else 1.0
    differences = second.mean(axis=0) - first.mean(axis=0)
    squares = float((differences**2).sum())
    return float(special.chdtrc(1, differences.sum() ** 2 / squares)) if squares else 1.0
