"""Confidence intervals of the metrics of predictions.

Fractions of examples that count alike have the exact binomial interval. Other metrics have one by the influence of each
example: the derivative of the metric by the example's weight (Hampel, JASA 69, 1974). The influences' mean square over
the number of examples is the metric's variance: the infinitesimal jackknife (Efron, The Jackknife, the Bootstrap and
Other Resampling Plans, 1982, chapter 6), for ROC-AUC DeLong's estimate (Biometrics 44, 1988). Student's t has the
degrees of freedom by which that variance is known (Satterthwaite, Biometrics Bulletin 2, 1946): few, where few examples
decide.

The expected calibration error has none: it is biased upward by about its own spread, and so is every resample of it.
`python -m benchmarks.coverage` measures how often each interval holds the truth.
"""

import math

import numpy as np

from stages.evaluation import metrics as names
from stages.evaluation.estimates import Estimate, mean_estimate, parts_of
from stages.evaluation.metrics import averaged, losses, ranked_classes
from stages.evaluation.predictions import TOP, Predicted
from stages.safe_places import safe_place

LEAST_OF_CLASS = 5
"""Test examples of each class for an interval of a mean over classes: of fewer a class seems to have no variance."""

LEAST_FOR_LOSS = 100
"""Test examples for an interval of the log loss, which rare mistakes make up: fewer examples may have none of them."""

Ends = tuple[float, float]


def intervals_of(predicted: Predicted, confidence: float) -> dict[str, Ends]:
    """Return the lower and upper end of the interval of each metric that the predictions allow one for."""
    count = len(predicted)
    fractions = {names.ACCURACY: predicted.correct}
    if predicted.is_finite and predicted.num_classes > TOP:
        fractions[names.TOP_ACCURACY] = predicted.is_in_top
    found: dict[str, Ends | None] = {
        name: fraction_interval(int(is_hit.sum()), count, confidence)
        if predicted.weights is None
        else interval(*mean_estimate(is_hit, parts_of(count, predicted.weights)), confidence)
        for name, is_hit in fractions.items()
    }
    for name, (value, influences) in estimates_of(predicted).items():
        highest = math.inf if name == names.LOG_LOSS else 1.0
        found[name] = interval(value, influences, confidence, highest)
    return {name: ends for name, ends in found.items() if ends is not None}


def estimates_of(predicted: Predicted) -> dict[str, Estimate]:
    """Return the metrics that have an interval by influences; not those that have too few examples for one."""
    found = _of_classes(predicted)
    if predicted.is_finite:
        found |= _of_rankings(predicted)
        if len(predicted) >= LEAST_FOR_LOSS:
            found[names.LOG_LOSS] = mean_estimate(losses(predicted), parts_of(len(predicted), predicted.weights))
    return found


def fraction_interval(hits: int, examples: int, confidence: float) -> Ends:
    """Return the exact interval of a fraction (Clopper and Pearson, Biometrika 26, 1934)."""
    from scipy.stats import binomtest  # some tenths of a second

    ends = binomtest(hits, examples).proportion_ci(confidence, "exact")
    return float(ends.low), float(ends.high)


def interval(value: float, influences: np.ndarray, confidence: float, highest: float = 1.0) -> Ends | None:
    """Return an interval of `value`, symmetric in its logit, or in its logarithm where nothing bounds it.

    Args:
        influences: of each example, float64 [n], up to a constant.
        highest: the metric's largest value, 1 or inf; its least is 0.

    Returns:
        None where the examples do not differ, as those of a perfect ranking.
    """
    from scipy.special import stdtrit

    count = len(influences)
    squares = (influences - influences.mean()) ** 2
    total = float(squares.sum())
    if count < 2 or total < 1e-18 * count or not 0 < value < highest:
        return None
    error = math.sqrt(total / (count * (count - 1)))
    kurtosis = count * float((squares**2).sum()) / total**2
    degrees = min(count - 1, max(2 * count / (kurtosis - 1), 1.0)) if kurtosis > 1 else count - 1
    half = float(stdtrit(degrees, (1 + confidence) / 2)) * error / value
    if highest == math.inf:
        return value * math.exp(-min(half, 700.0)), value * math.exp(min(half, 700.0))
    odds, factor = value / (1 - value), math.exp(min(half / (1 - value), 700.0))
    return odds / (odds + factor), odds * factor / (1 + odds * factor)


def _of_classes(predicted: Predicted) -> dict[str, Estimate]:
    """Return the macro means; none where a class has too few examples."""
    size, count = predicted.num_classes, len(predicted)
    labels, classes = predicted.labels, predicted.predicted
    parts = parts_of(count, predicted.weights)
    hits = np.bincount(labels[predicted.correct], parts[predicted.correct], size) / count
    support, chosen = (np.bincount(part, parts, size) / count for part in (labels, classes))
    is_there = support + chosen > 0
    if (np.bincount(labels, minlength=size)[is_there] < LEAST_OF_CLASS).any():
        return {}
    by_hit = predicted.correct.astype(np.float64)

    def ratio(factor: int, of_labels: np.ndarray, of_chosen: np.ndarray) -> Estimate:
        """Return the mean over classes of factor · hits / (of_labels · support + of_chosen · chosen)."""
        below = of_labels * support + of_chosen * chosen
        scale = np.divide(1.0, below, out=np.zeros(size), where=below > 0)
        values = factor * hits * scale
        lost = (of_labels * values * scale)[labels] + (of_chosen * values * scale)[classes]
        influences = parts * (factor * by_hit * scale[labels] - lost)
        return float(values[is_there].mean()), influences / is_there.sum()

    one, none = np.ones(size), np.zeros(size)
    forms = {"precision": (1, none, one), "recall": (1, one, none), "f1": (2, one, one)}
    return {names.MACRO[name]: ratio(*form) for name, form in forms.items()}


def _of_rankings(predicted: Predicted) -> dict[str, Estimate]:
    """Return ROC-AUC and average precision, one-vs-rest; none where a class has too few examples."""
    support = np.bincount(predicted.labels, minlength=predicted.num_classes)
    ranked = ranked_classes(predicted)
    chosen = np.flatnonzero(averaged(ranked)) + (1 if predicted.num_classes == 2 else 0)
    fewest = np.minimum(support, len(predicted) - support)[chosen]
    if not len(chosen) or fewest.min() < LEAST_OF_CLASS:
        return {}
    values, influences = np.zeros(2), np.zeros((2, len(predicted)))
    parts = parts_of(len(predicted), predicted.weights)
    for number in chosen:
        of_one, by_example = _of_ranking(predicted.labels == number, predicted.probabilities[number], parts)
        values += of_one / len(chosen)
        influences += by_example / len(chosen)
        safe_place()
    return dict(
        zip((names.ROC_AUC, names.AVERAGE_PRECISION), zip(map(float, values), influences, strict=True), strict=True)
    )


def _of_ranking(is_positive: np.ndarray, scores: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ROC-AUC and average precision of one class, float64 [2], and the influences on them, float64 [2, n].

    On the area it is the fraction of the other kind that the example is ranked correctly against. The average precision
    is the mean over the positives of T / N, the positives among the examples with at least their score: an example
    changes T / N of all positives that are not above it by (1 - T / N) / N where it is positive, by -T / N² where not.
    Examples count by their `parts`, their weights.
    """
    count, positives = len(scores), float(parts[is_positive].sum())
    levels, level = np.unique(scores, return_inverse=True)
    of_positives = np.bincount(level[is_positive], parts[is_positive], len(levels))
    of_all = np.bincount(level, parts, len(levels))
    of_negatives = of_all - of_positives
    below = np.cumsum(of_negatives) - of_negatives / 2
    above = positives - np.cumsum(of_positives) + of_positives / 2
    area = np.where(is_positive, below[level], above[level])
    area /= np.where(is_positive, count - positives, positives)
    value = np.average(area[is_positive], weights=parts[is_positive])
    area -= value
    area *= count / np.where(is_positive, positives, count - positives)
    true, ranked = (np.cumsum(part[::-1])[::-1] for part in (of_positives, of_all))
    precision = true / ranked
    mean = (of_positives * precision).sum() / positives
    gained = np.cumsum(of_positives / ranked)
    lost = np.cumsum(of_positives * precision / ranked)
    average = is_positive * (precision[level] - mean + gained[level]) - lost[level]
    return np.array([value, mean]), parts * np.stack([area, average * (count / positives)])
