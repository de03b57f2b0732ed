"""Tests of whether the slices of a test split differ from the rest, corrected for how many are tested."""

import math
from collections.abc import Sequence

import numpy as np

from stages.metrics.estimates import Columns, Sample
from stages.metrics.metric import Metric
from stages.reporter import safe_place

DRAWS = 399
"""Number of permutations, or of sign changes, of the examples."""

WORK = 4e7
"""Examples that are permuted in all, about: of many examples there are fewer permutations."""


def slice_tests(
    metric: Metric, columns: Columns, codes: Sequence[np.ndarray], least: int, confidence: float
) -> list[np.ndarray]:
    """Return for each slice whether its metric is higher (1) or lower (-1) than that of all other examples, else 0.

    If all slices are alike, any verdict other than 0 has a chance of at most 1 - `confidence`. Fractions of examples
    that count alike have Fisher's exact test, corrected by Holm's method (Scandinavian Journal of Statistics 6, 1979).
    Other metrics have a permutation test of the largest Welch statistic (Westfall and Young, Resampling-Based Multiple
    Testing, 1993) of the examples' influences; groups have one that changes the signs of their sums (the wild cluster
    bootstrap; Cameron, Gelbach and Miller, Review of Economics and Statistics 90, 2008).

    Args:
        columns: known columns of a file of predictions.
        codes: for each column, the slice of each example, int [n] from 0.
        least: minimum number of examples with a weight above 0, in the slice and outside of it.
    """
    counted = columns["weight"] > 0 if "weight" in columns else np.ones(len(codes[0]), bool)
    sizes = [code.max() + 1 for code in codes]
    codes = [code[counted] for code in codes]
    counts = [np.bincount(code, minlength=size) for code, size in zip(codes, sizes, strict=True)]
    is_told = [np.minimum(count, counted.sum() - count) >= least for count in counts]
    if not any(told.any() for told in is_told):
        return [np.zeros(size, int) for size in sizes]
    known = {name: column[counted] for name, column in columns.items()}
    sample = Sample.of(known)
    value, influences = metric.estimate(known, sample.parts)
    if sample.groups is not None:
        statistics, p = _by_group(influences - influences.mean(), sample.groups, codes, is_told, confidence)
    elif metric.is_fraction and not np.ptp(sample.parts):
        statistics, p = _fisher((value + influences) > 0.5, codes, is_told)
    else:
        statistics, p = _by_permutation(influences - influences.mean(), codes, is_told, confidence)
    signs = np.where(p <= 1 - confidence, np.sign(statistics), 0).astype(int)
    found, told = np.zeros(sum(sizes), int), np.concatenate(is_told)
    found[told] = signs
    return np.split(found, np.cumsum(sizes)[:-1])


def _fisher(
    hits: np.ndarray, codes: Sequence[np.ndarray], is_told: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the differences in the fraction of `hits`, bool [n], and their corrected p."""
    from scipy.stats import fisher_exact

    differences, p = [], []
    for code, told in zip(codes, is_told, strict=True):
        of_slice, counts = np.bincount(code, hits, len(told)).astype(int), np.bincount(code, minlength=len(told))
        for own, count in zip(of_slice[told], counts[told], strict=True):
            rest, others = int(hits.sum()) - own, len(hits) - count
            differences.append(own / count - rest / others)
            p.append(float(fisher_exact([[own, count - own], [rest, others - rest]])[1]))
    order = np.argsort(p)
    corrected = np.maximum.accumulate(np.array(p)[order] * np.arange(len(p), 0, -1))
    result = np.empty(len(p))
    result[order] = corrected
    return np.array(differences), result


def _draws(examples: int, confidence: float) -> int:
    least = math.ceil(10 / (1 - confidence)) - 1
    return max(min(DRAWS, int(WORK / examples)), least)


def _by_permutation(
    values: np.ndarray, codes: Sequence[np.ndarray], is_told: Sequence[np.ndarray], confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Welch's statistics of slices, and their corrected p. values: of the examples, with a mean of 0."""
    counts = [np.bincount(code, minlength=len(told)) for code, told in zip(codes, is_told, strict=True)]
    total, square = len(values), float(np.square(values).sum())

    def statistics(values: np.ndarray) -> np.ndarray:
        found, squares = [], np.square(values)
        for code, count, told in zip(codes, counts, is_told, strict=True):
            sums, sums_of_squares = (np.bincount(code, part, len(told))[told] for part in (values, squares))
            inside, outside = count[told], total - count[told]
            mean, rest = sums / inside, -sums / outside
            # A few examples that happen to be alike have no variance: that of all is the least.
            spread = np.maximum(sums_of_squares / inside - mean**2, square / total)
            around = (square - sums_of_squares) / outside - rest**2
            error = np.sqrt(np.maximum(spread / inside + around / outside, 0))
            found.append(np.divide(mean - rest, error, out=np.zeros(len(mean)), where=error > 0))
        return np.concatenate(found)

    random, observed = np.random.default_rng(0), statistics(values)
    draws = _draws(total, confidence)
    exceeding = np.ones(len(observed))
    for _ in range(draws):
        exceeding += np.abs(statistics(random.permutation(values))).max() >= np.abs(observed) - 1e-12
        safe_place()
    return observed, exceeding / (draws + 1)


def _by_group(
    values: np.ndarray,
    groups: np.ndarray,
    codes: Sequence[np.ndarray],
    is_told: Sequence[np.ndarray],
    confidence: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the statistics of slices of examples that belong to groups, and their corrected p."""
    names, group = np.unique(groups, return_inverse=True)
    of_group, size = np.bincount(group, values), len(values)
    columns = []
    for code, told in zip(codes, is_told, strict=True):
        for number in np.flatnonzero(told):
            is_inside = code == number
            inside, count = np.bincount(group, values * is_inside, len(names)), int(is_inside.sum())
            columns.append(inside / count - (of_group - inside) / (size - count))
    parts = np.stack(columns, axis=1)
    errors = np.sqrt(np.square(parts).sum(axis=0))
    parts = np.divide(parts, errors, out=np.zeros_like(parts), where=errors > 0)
    random, observed = np.random.default_rng(0), parts.sum(axis=0)
    draws, exceeding = _draws(len(names), confidence), np.ones(len(observed))
    at_once = max(int(4e6 / len(names)), 1)
    for start in range(0, draws, at_once):
        signs = random.integers(0, 2, (min(at_once, draws - start), len(names))) * 2.0 - 1
        largest = np.abs(signs @ parts).max(axis=1)
        exceeding += (largest[:, None] >= np.abs(observed) - 1e-12).sum(axis=0)
        safe_place()
    return observed, exceeding / (draws + 1)
