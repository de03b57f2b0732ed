"""Bootstrap intervals of the metrics of predictions.

The percentile interval (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13): as many examples as
there are, drawn with replacement, many times. A drawn set is known by how often it has each example, and every metric
here follows from sums of these counts over groups of examples: so all resamples of a block are one sparse matrix
product, and none is sorted or scored by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from stages.evaluation import metrics as names
from stages.evaluation.metrics import averaged, bins_of, losses, ranked_classes
from stages.evaluation.predicted import TOP, Predicted
from stages.safe_places import safe_place

BLOCK_BYTES = 2**26
"""Of the counts of a block of resamples, float64 [n, resamples]."""

SEED = 0
"""Of the draws: two runs with the same test examples are given the same resamples."""

FRACTIONS = frozenset({names.ACCURACY, names.TOP_ACCURACY})
"""Metrics that are a fraction of the examples."""


@dataclass(frozen=True)
class Resampled:
    """Metrics of many resamples.

    values: float64 [resamples] by name, nan where a resample has too few classes; by_class: float64
    [classes, resamples], nan where a resample has no such class; examples: in each resample. shares: of the classes'
    metrics that are binomial shares, the correct examples and all that count, int64 [2, classes], in the test split.
    """

    values: dict[str, np.ndarray]
    by_class: dict[str, np.ndarray]
    examples: int
    shares: dict[str, np.ndarray] = field(default_factory=dict)

    def intervals(self, confidence: float) -> dict[str, tuple[float, float]]:
        """Returns the lower and the upper end of the interval of each metric that not all resamples agree on."""
        ends = {name: _interval(drawn, confidence) for name, drawn in self.values.items()}
        for name in FRACTIONS & ends.keys():
            ends[name] = _of_fraction(ends[name], self.examples, confidence)
        for name, share in self.shares.items():
            if _is_certain(share).all():
                ends[names.MACRO[name]] = self._of_all_classes(name, confidence)
        return {name: (float(low), float(high)) for name, (low, high) in ends.items() if _differ(low, high)}

    def _of_all_classes(self, name: str, confidence: float) -> np.ndarray:
        """Returns the interval of a mean over classes of which each is 0 or 1, so that resamples hardly differ.

        The mean of the classes' intervals, which by Bonferroni's inequality hold all at once with that confidence.
        """
        is_there = self.shares["f1"][1] > 0
        together = 1 - (1 - confidence) / is_there.sum()
        return np.asarray(_exact(name, self.shares[name][:, is_there], together).mean(axis=0))

    def intervals_by_class(self, confidence: float) -> dict[str, np.ndarray]:
        """Returns the ends of each class' interval, float64 [classes, 2]; nan where no example decides the
        metric, or all resamples agree on it."""
        ends = {name: np.array([_interval(row, confidence) for row in drawn]) for name, drawn in self.by_class.items()}
        for name, share in self.shares.items():
            exact = _exact(name, share, confidence)
            ends[name] = np.where(_is_certain(share)[:, np.newaxis], exact, ends[name])
            ends[name][share[1] == 0] = np.nan
        for row in ends.values():
            row[~_differ(row[:, 0], row[:, 1])] = np.nan
        return ends


def resampled(predicted: Predicted, bins: int, resamples: int) -> Resampled:
    """Returns the metrics of `resamples` sets of examples, drawn with replacement, without those that no set defines.

    Args:
        bins: of the calibration error.
    """
    blocks = [_of_block(predicted, bins, counts) for counts in draw(len(predicted), resamples)]
    values = {name: np.concatenate([block.values[name] for block in blocks]) for name in blocks[0].values}
    values = {name: drawn for name, drawn in values.items() if not np.isnan(drawn).all()}
    by_class = {name: np.concatenate([block.by_class[name] for block in blocks], axis=1) for name in blocks[0].by_class}
    return Resampled(values, by_class, len(predicted), _shares(predicted))


def _shares(predicted: Predicted) -> dict[str, np.ndarray]:
    """Returns the correct examples of each class and all that count: for recall those of the class, for precision those
    predicted as it, and for F1, which depends on that share alone, those that are one or the other."""
    groups = (predicted.labels[predicted.correct], predicted.labels, predicted.predicted)
    hits, support, chosen = (np.bincount(part, minlength=predicted.num_classes) for part in groups)
    counts = {"precision": chosen, "recall": support, "f1": support + chosen - hits}
    return {name: np.stack([hits, count]) for name, count in counts.items()}


def draw(examples: int, resamples: int, seed: int = SEED) -> Iterator[np.ndarray]:
    """Yields how often each example is drawn, float64 [examples, b], in blocks of resamples that fit into memory."""
    random = np.random.default_rng(seed)
    size = max(BLOCK_BYTES // (8 * examples), 1)
    for start in range(0, resamples, size):
        counts = np.empty((min(size, resamples - start), examples), np.float32)
        for row in counts:
            row[:] = np.bincount(random.integers(examples, size=examples), minlength=examples)
        safe_place()
        yield np.ascontiguousarray(counts.T, np.float64)


def _of_block(predicted: Predicted, bins: int, counts: np.ndarray) -> Resampled:
    drawn = _of_classes(predicted, counts)
    if not predicted.is_finite:
        return drawn
    total = len(predicted)
    drawn.values[names.LOG_LOSS] = losses(predicted) @ counts / total
    gaps = predicted.correct - predicted.of_predicted.astype(np.float64)
    by_bin = _sums(bins_of(predicted, bins), bins, counts, gaps)
    drawn.values[names.CALIBRATION] = np.abs(by_bin).sum(axis=0) / total
    if predicted.num_classes > TOP:
        drawn.values[names.TOP_ACCURACY] = predicted.is_in_top @ counts / total
    ranked = np.full((2, predicted.num_classes, counts.shape[1]), np.nan)
    light = counts.astype(np.float32)  # sums of fewer than 2^24 examples are exact, and twice as fast
    for number in np.flatnonzero(ranked_classes(predicted)):
        ranked[:, number] = _ranking(predicted.labels == number, predicted.probabilities[number], light)
        safe_place()
    for name, by_class in zip((names.ROC_AUC, names.AVERAGE_PRECISION), ranked, strict=True):
        drawn.by_class[name] = by_class
        drawn.values[name] = _mean(averaged(by_class))  # nan or not: every block has the same metrics
    return drawn


def _of_classes(predicted: Predicted, counts: np.ndarray) -> Resampled:
    """Returns the metrics that depend on the predicted classes alone."""
    classes = predicted.num_classes
    hits = _sums(predicted.labels, classes, counts, predicted.correct)
    support, chosen = _sums(predicted.labels, classes, counts), _sums(predicted.predicted, classes, counts)
    by_class = {
        "precision": hits / np.maximum(chosen, 1),
        "recall": hits / np.maximum(support, 1),
        "f1": 2 * hits / np.maximum(support + chosen, 1),
    }
    values = {names.ACCURACY: hits.sum(axis=0) / len(predicted)}
    is_there = (support + chosen > 0).sum(axis=0)
    values |= {names.MACRO[name]: drawn.sum(axis=0) / is_there for name, drawn in by_class.items()}
    return Resampled(values, by_class, len(predicted))


def _sums(groups: np.ndarray, size: int, counts: np.ndarray, values: np.ndarray | float = 1.0) -> np.ndarray:
    """Returns the sums over each group of examples of `values` times how often each is drawn, [size, resamples].

    Args:
        groups: of each example, int [n] in [0, size).
    """
    examples = np.arange(len(groups))
    weights = np.broadcast_to(np.asarray(values, counts.dtype), groups.shape)
    return np.asarray(sparse.csr_array((weights, (groups, examples)), shape=(size, len(groups))) @ counts)


def _ranking(is_positive: np.ndarray, scores: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns ROC-AUC and average precision of each resample, float64 [resamples]; nan where one has only one class.

    Both depend on the scores by the numbers of positives and negatives below, at and above each score that a positive
    has: k of them. Negatives fall into 2 k + 1 groups: between two such scores, or at one.
    """
    borders, at = np.unique(scores[is_positive], return_inverse=True)
    positives = _sums(at, len(borders), counts[is_positive]).astype(np.float64)
    others = scores[~is_positive]
    below = np.searchsorted(borders, others)
    is_tied = borders[np.minimum(below, len(borders) - 1)] == others
    sums = _sums(2 * below + is_tied, 2 * len(borders) + 1, counts[~is_positive]).astype(np.float64)
    lower = np.cumsum(sums[:-1], axis=0)  # at 2 j + 1: the negatives at or below border j
    below = lower[::2]
    up_to = lower[1::2]
    of_positives, of_negatives = positives.sum(axis=0), sums.sum(axis=0)
    true_above = of_positives - np.cumsum(positives, axis=0) + positives
    false_above = of_negatives - below
    with np.errstate(invalid="ignore"):
        area = (positives * (below + up_to)).sum(axis=0) / (2 * of_positives * of_negatives)
        precision = true_above / np.maximum(true_above + false_above, 1)
        mean = (positives * precision).sum(axis=0) / of_positives
    return area, np.where(of_negatives > 0, mean, np.nan)


def _mean(of_classes: np.ndarray) -> np.ndarray:
    """Returns the mean over the classes that each resample has, of [classes, resamples]; nan where it has none."""
    is_there = ~np.isnan(of_classes)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(is_there, of_classes, 0.0).sum(axis=0) / is_there.sum(axis=0))


def _interval(drawn: np.ndarray, confidence: float) -> np.ndarray:
    """Returns the ends of the percentile interval, float64 [2], of the resamples that define the metric."""
    defined = drawn[~np.isnan(drawn)]
    if not len(defined):
        return np.full(2, np.nan)
    return np.asarray(np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2]))


def _differ(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns which intervals have a width beyond the rounding of sums."""
    return ~np.isclose(low, high, rtol=1e-9, atol=1e-12)


def _of_fraction(ends: np.ndarray, examples: int, confidence: float) -> np.ndarray:
    """Returns the interval of a fraction of the examples, float64 [2]: where it is 0 or 1 the exact one."""
    if ends[0] == 1 or ends[1] == 0:
        share = np.array([[examples * int(ends[0])], [examples]])
        return np.asarray(_exact(names.ACCURACY, share, confidence)[0])
    return ends


def _is_certain(share: np.ndarray) -> np.ndarray:
    """Returns which of `share`, [2, classes], are 0 or 1: resamples that have any of the examples are then alike."""
    return np.asarray((share[0] == 0) | (share[0] == share[1]))


def _exact(name: str, share: np.ndarray, confidence: float) -> np.ndarray:
    """Returns the intervals, float64 [classes, 2], of the metric `name` by shares that are 0 or 1, int64 [2, classes].

    Those of Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26 (1934), 404-413: resamples
    of examples that are all correct, or all wrong, are alike, as if no other example could differ. No examples leave
    all between 0 and 1.
    """
    hits, count = share
    least = np.where(count > 0, ((1 - confidence) / 2) ** (1 / np.maximum(count, 1)), 0.0)
    low = np.where(hits > 0, least, 0.0)
    high = np.where((hits == 0) & (count > 0), 1 - least, 1.0)
    ends = np.stack([low, high], axis=1)
    return 2 * ends / (1 + ends) if name == "f1" else ends  # of the share s, F1 is 2 s / (1 + s)
