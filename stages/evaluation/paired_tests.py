"""Difference in accuracy between two settings on the same test examples: its interval, and McNemar's p."""

import math
from dataclasses import dataclass

import numpy as np

MINUS = "\N{MINUS SIGN}"

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
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return not self.low <= 0 <= self.high


def points(fraction: float) -> str:
    """Returns a fraction in points, with its sign: `−0.28`, and `0.00` where that is what is left of it."""
    text = f"{100 * fraction:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", MINUS)


def accuracy_difference(
    first: np.ndarray, second: np.ndarray, paired: bool, resamples: int = RESAMPLES, level: float = LEVEL
) -> AccuracyDifference:
    """Compares two settings on the same test examples.

    The interval includes 0 wherever the test of no difference does not reject: of a few examples that all differ in one
    direction, most resamples have some, and their interval would exclude 0 however few they are.

    Args:
        first: whether each test example is classified correctly by each run of the first setting, bool [runs, n].
        second: the same of the second setting.
        paired: whether the runs of both are of the same seeds, in the same order.
        level: of the interval.
    """
    low, high = bootstrap_interval(first, second, paired, resamples, level=level)
    p = mcnemar_p(first, second)
    if max(p, _least_p(first, second)) > 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    difference = float(second.mean() - first.mean())
    return AccuracyDifference(difference, low, high, p, min(len(first), len(second)), first.shape[1])


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
    mean is that of independent draws of the few values that an example's difference has: its distribution is known, so
    that a resample costs nothing that grows with the examples.

    Of several seeds the drawn means also vary by what seeds differ in more than examples explain: the variance between
    seeds of the two-way layout without replication (Searle, Casella and McCulloch, Variance Components, 1992, chapter
    4), by Student's t. Runs of the same seed are paired, so that what a seed does to both settings falls away.
    """
    random = np.random.default_rng(seed)
    examples = first.shape[1]
    sums = second.sum(axis=0, dtype=np.int64) * len(first) - first.sum(axis=0, dtype=np.int64) * len(second)
    means = _resampled_sums(sums, resamples, random) / (examples * len(first) * len(second))
    layouts = [second.astype(np.int8) - first.astype(np.int8)] if paired else [first, second]
    for layout in layouts:
        if (variance := _variance_between_seeds(layout)) > 0:
            means += random.standard_t(len(layout) - 1, resamples) * (variance / len(layout)) ** 0.5
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled_sums(values: np.ndarray, resamples: int, random: np.random.Generator) -> np.ndarray:
    """Returns sums of as many draws with replacement as there are values, int [n]; int64 [resamples].

    The distribution of a sum is the n-fold convolution of one draw's, by its Fourier transform: of independent draws
    the characteristic function is the product (Feller, An Introduction to Probability Theory II, 1971, XV.1). Sums are
    told apart modulo a length of at least 24 standard deviations, beyond which lies less than rounding errors.
    """
    low = int(values.min())
    count = len(values)
    of_one = np.bincount(values - low) / count
    mean = float(values.mean() - low) * count
    std = float(values.std()) * count**0.5
    length = min(count * (len(of_one) - 1) + 1, max(math.ceil(24 * std), len(of_one)))
    length = 1 << (length - 1).bit_length()
    probabilities = np.fft.irfft(np.fft.rfft(of_one, length) ** count, length)
    begin = max(0, round(mean) - length // 2)
    cumulative = np.cumsum(np.maximum(np.roll(probabilities, -(begin % length)), 0.0))
    drawn = np.searchsorted(cumulative, random.random(resamples) * cumulative[-1], side="right")
    return np.asarray(drawn + begin + low * count)


def _least_p(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the two-sided p of the sign test where all examples that differ do so in one direction: its least."""
    differing = np.count_nonzero(first.sum(axis=0) * len(second) != second.sum(axis=0) * len(first))
    return min(1.0, 2.0 ** (1 - differing))


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
    if len(first) == len(second) == 1:
        from scipy import special

        only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
        few = min(only_first, only_second)
        both = only_first + only_second
        return min(1.0, 2 * float(special.bdtr(few, both, 0.5))) if both else 1.0
    differences = second.mean(axis=0) - first.mean(axis=0)
    squares = float((differences**2).sum())
    return math.erfc(abs(float(differences.sum())) / math.sqrt(2 * squares)) if squares else 1.0  # chi-squared's tail
