"""Intervals of metrics, by what is known of each example; or the reason why there is none.

They need only NumPy and SciPy, so runs are compared without importing TensorFlow.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stages.metrics.estimates import Estimate, Sample

LEAST_FOR_ERRORS = 500
"""Minimum number of examples for an interval of errors, which have no largest value: fewer may lack rare large ones."""

UNSEEN, NEAR = 3.0, 10
"""The largest influence still unseen exceeds the largest by `UNSEEN` times what that exceeds the `NEAR`-th largest."""

Ends = tuple[float, float]
"""Lower and upper end of an interval."""

Result = Ends | str
"""An interval, or the reason why there is none."""


NO_INTERVAL = "no confidence interval for "
"""Start of the sentence on the metrics without an interval."""


def reported(results: Mapping[str, Result]) -> tuple[dict[str, Ends], list[str]]:
    """Return the intervals, and a sentence on the metrics that have none, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for name, result in results.items():
        if isinstance(result, str):
            reasons.setdefault(result, []).append(name)
    parts = [f"{', '.join(names[:5])}{', …' * (len(names) > 5)}: {reason}" for reason, names in reasons.items()]
    why = "; for ".join(parts)
    ends = {name: result for name, result in results.items() if not isinstance(result, str)}
    return ends, [f"{NO_INTERVAL}{why}"] if why else []


def exact_interval(value: float, examples: float, confidence: float) -> Ends:
    """Return the exact interval of a fraction (Clopper and Pearson, Biometrika 26, 1934).

    Args:
        examples: their number, which need not be whole (Korn and Graubard, Survey Methodology 24, 1998).
    """
    from scipy.special import betaincinv  # some tenths of a second

    hits, tail = value * examples, (1 - confidence) / 2
    low = float(betaincinv(hits, examples - hits + 1, tail)) if value > 0 else 0.0
    high = float(betaincinv(hits + 1, examples - hits, 1 - tail)) if value < 1 else 1.0
    return low, high


def fraction_interval(estimate: Estimate, sample: Sample, confidence: float) -> Result:
    """Return the interval of a fraction of examples: exact if these count alike, else by their effective number."""
    value, influences = estimate
    if sample.groups is None and not np.ptp(sample.parts):
        return exact_interval(value, len(sample.parts), confidence)
    if reason := sample.lacks():
        return reason
    value, units = min(max(value, 0.0), 1.0), sample.summed(influences)
    squares, effective = float(np.square(units).sum()), sample.units
    if squares > 1e-18:
        effective = min(value * (1 - value) * len(units) ** 2 / squares, sample.effective)
    return exact_interval(value, max(effective / _widening(sample.units - 1, confidence) ** 2, 1.0), confidence)


def _normal(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def _widening(degrees: float, confidence: float) -> float:
    """Return by how much Student's t exceeds the normal quantile."""
    from scipy.special import stdtrit

    return float(stdtrit(max(degrees, 1.0), (1 + confidence) / 2)) / _normal(confidence)


class Fractions(NamedTuple):
    """The fractions that a macro mean averages, one for each class or label.

    values: float64 [k]. examples: their effective numbers, float64 [k]; 0 if there are none.
    are_overlaps: whether the mean is of 2J / (1 + J) for each fraction J, as F1 is.
    """

    values: np.ndarray
    examples: np.ndarray
    are_overlaps: bool


def fractions_of(hits: np.ndarray, totals: np.ndarray, squares: np.ndarray, are_overlaps: bool) -> Fractions:
    """Return the fractions hits / totals. squares: sums of the squared weights whose sums are `totals`; each [k]."""
    values, examples = np.zeros(len(totals)), np.zeros(len(totals))
    np.divide(hits, totals, out=values, where=totals > 0)
    np.divide(totals**2, squares, out=examples, where=squares > 0)
    return Fractions(np.clip(values, 0, 1), examples, are_overlaps)


def mean_interval(estimate: Estimate, fractions: Fractions, sample: Sample, confidence: float) -> Result:
    """Return the interval of a mean of fractions: the wider of that by influences, and of one from Wilson's of each.

    The first misses what no example shows, such as mistakes in a class that has none; the second many small chances.
    Source of the second: MOVER (Zou and Donner, Statistics in Medicine 27, 2008). How far the fractions depend on each
    other, of classes that share mistakes or examples that share a group, is what the influences add to their variances.
    """
    if reason := sample.lacks():
        return reason
    value, influences = estimate
    units, (p, n, are_overlaps) = sample.summed(influences), fractions
    z, known = _normal(confidence) * _widening(sample.units - 1, confidence), np.maximum(n, 1e-9)
    half = z * np.sqrt(p * (1 - p) / known + z**2 / (4 * known**2))
    low, high = (np.clip((p + z**2 / (2 * known) + end) / (1 + z**2 / known), 0, 1) for end in (-half, half))
    variances = np.where(n > 0, p * (1 - p) / known, 0.0)
    if are_overlaps:
        variances = variances * (2 / (1 + p) ** 2) ** 2
        p, low, high = (2 * part / (1 + part) for part in (p, low, high))
    alone, together = float(variances.sum()) / len(p) ** 2, float(np.square(units).sum()) / len(units) ** 2
    shared = together / alone if alone > 1e-18 else sample.effective / sample.units
    scale = math.sqrt(max(shared, 1.0)) / len(p)
    down, up = (scale * math.sqrt(float(np.square(end - p).sum())) for end in (low, high))
    wide = influence_interval(estimate, sample, confidence)
    least, most = (value, value) if isinstance(wide, str) else wide
    return min(max(value - down, 0.0), least), max(min(value + up, 1.0), most)


def error_interval(estimate: Estimate, sample: Sample, confidence: float) -> Result:
    """Return the interval of a mean of errors, which are not negative."""
    reached = _errors_reach(estimate, sample, confidence)
    if isinstance(reached, str):
        return reached
    value, (down, up) = estimate[0], reached
    return max(value - down, 0.0), value + up


def root_interval(estimate: Estimate, sample: Sample, confidence: float) -> Result:
    """Return the interval of the root of a mean of squared errors.

    The squared errors have the interval, and a change of the root is half of theirs.
    """
    reached = _errors_reach(estimate, sample, confidence)
    if isinstance(reached, str):
        return reached
    value, (down, up) = estimate[0], reached
    return value * math.sqrt(max(1 - 2 * down / value, 0.0)), value * math.sqrt(1 + 2 * up / value)


def symmetric_interval(estimate: Estimate, sample: Sample, confidence: float) -> Result:
    """Return the interval of a metric without known limits."""
    value, influences = estimate
    if reason := sample.lacks(LEAST_FOR_ERRORS):
        return reason
    units = sample.summed(influences - influences.mean())
    if not units.any():
        return "no example changes it"
    down, up = difference_reach(units, confidence)
    return value - down, value + up


def _errors_reach(estimate: Estimate, sample: Sample, confidence: float) -> Result:
    value, influences = estimate
    if reason := sample.lacks(LEAST_FOR_ERRORS):
        return reason
    units = sample.summed(influences)
    if not units.std() > 1e-9 * value:
        return "all errors are equal"
    return reach(units, confidence, 0.0, unseen_above(units))


def r2_interval(estimate: Estimate, sample: Sample, confidence: float) -> Result:
    """Return the interval of R², symmetric in the logarithm of 1 - R², which is never negative."""
    value, influences = estimate
    if reason := sample.lacks(LEAST_FOR_ERRORS):
        return reason
    units, rest = sample.summed(-influences), 1 - value
    if not rest > 0 or not units.any():
        return "no example changes it"
    down, up = difference_reach(units, confidence)
    return 1 - rest * math.exp(min(up / rest, 700.0)), 1 - rest * math.exp(-down / rest)


def reach(units: np.ndarray, confidence: float, below: float, above: float) -> Ends:
    """Return how far below and above its estimate a mean may lie.

    Its distribution is that of a shifted gamma variable with the variance and the skewness of the values, and of one
    more on each side, which is still unseen. For events that are rare and alike this is the exact interval of their
    number, and for others nearly that of Fay and Feuer (Statistics in Medicine 16, 1997).

    Args:
        units: values whose mean is 0, float64 [n].
        below, above: distances of the unseen values from the mean.
    """
    from scipy.special import gammaincinv

    tail = (1 + confidence) / 2
    square, cube = float(np.square(units).sum()), float((units**3).sum())
    widening = _widening(len(units) - 1, confidence)

    def side(unseen: float, cube: float) -> float:
        total = square + unseen**2
        skewness = 2 * (cube + unseen**3) / total**1.5 if total > 0 else 0.0
        quantile, shape = _normal(confidence), 4 / max(skewness**2, 1e-6)
        if abs(skewness) > 1e-3:
            sign = math.copysign(1.0, skewness)
            quantile = sign * (float(gammaincinv(shape, tail if sign > 0 else 1 - tail)) - shape) / math.sqrt(shape)
        return (unseen + math.sqrt(total) * quantile * widening) / len(units)

    return side(below, -cube), side(above, cube)


def unseen_above(units: np.ndarray) -> float:
    """Return a value beyond the largest ones, the farther, the farther these are apart; 0 at least."""
    near = min(NEAR, max(len(units) // 10, 2), len(units))
    top = np.partition(units, -near)[-near:]
    return max(float(top.max() + UNSEEN * (top.max() - top.min())), 0.0)


def difference_reach(units: np.ndarray, confidence: float, largest: float | None = None) -> Ends:
    """Return how far below and above its estimate the mean of values of any sign may lie.

    Student's t is the least: a tail that only one side shows, both may have.

    Args:
        units: values whose mean is 0, float64 [n].
        largest: distance of a value from the mean, at most; None: unknown.
    """
    below, above = (unseen_above(-units), unseen_above(units)) if largest is None else (largest, largest)
    error = float(units.std()) / math.sqrt(max(len(units) - 1, 1))
    least = _normal(confidence) * _widening(len(units) - 1, confidence) * error
    down, up = reach(units, confidence, below, above)
    return max(down, least), max(up, least)


def influence_interval(estimate: Estimate, sample: Sample, confidence: float) -> Result:
    """Return the interval of a metric between 0 and 1 by its influences, symmetric in its logit.

    The influences' mean square over the number of examples is the variance: the infinitesimal jackknife (Efron, The
    Jackknife, the Bootstrap and Other Resampling Plans, 1982, chapter 6). Student's t has the degrees of freedom by
    which that variance is known (Satterthwaite, Biometrics Bulletin 2, 1946): few, where few examples decide.
    """
    from scipy.special import stdtrit

    if reason := sample.lacks():
        return reason
    value, influences = estimate
    influences = sample.summed(influences)
    count = len(influences)
    squares = (influences - influences.mean()) ** 2
    total = float(squares.sum())
    if total < 1e-18 * count or not 0 < value < 1:
        return "no example changes it"
    error = math.sqrt(total / (count * (count - 1)))
    kurtosis = count * float((squares**2).sum()) / total**2
    degrees = max(min(sample.units - 1, 2 * count / (kurtosis - 1) if kurtosis > 1 else math.inf), 1.0)
    half = float(stdtrit(degrees, (1 + confidence) / 2)) * error / value
    odds, factor = value / (1 - value), math.exp(min(half / (1 - value), 700.0))
    return odds / (odds + factor), odds * factor / (1 + odds * factor)
