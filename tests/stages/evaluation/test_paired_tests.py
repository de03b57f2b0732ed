"""Statistics of paired test examples, against those of SciPy and on data whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from stages.evaluation.paired_tests import Part, mcnemar_p, mean_difference, metric_difference, pooled_between_seeds
from stages.metrics.known import KNOWN


def answers(seed: int, runs: int, examples: int = 360, accuracy: float = 0.9) -> np.ndarray:
    return np.random.default_rng(seed).random((runs, examples)) < accuracy


def interval(first: np.ndarray, second: np.ndarray, paired: bool) -> tuple[float, float]:
    found = metric_difference(first, second, paired)
    return found.low, found.high


def by_scipy(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    found = stats.bootstrap(
        (first, second), lambda one, other, axis=-1: other.mean(axis=axis) - one.mean(axis=axis), paired=True,
        method="percentile", n_resamples=10_000, rng=1,
    ).confidence_interval  # fmt: skip
    return found.low, found.high


@pytest.mark.parametrize("examples", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "exact_match"])
def test_no_difference_of_fractions_exceeds_1(examples: int, metric: str) -> None:
    """However few examples there are, whether both models are right on all or only one is."""
    right, wrong = np.ones((1, examples), bool), np.zeros((1, examples), bool)
    for first, second in ((right, right), (right, wrong), (wrong, right)):
        found = metric_difference(first, second, True, metric=KNOWN[metric])
        assert -1 <= found.low <= found.difference <= found.high <= 1
    halves = np.arange(examples) % 2 * 1.0
    found = metric_difference(halves[np.newaxis], 1 - halves[np.newaxis], True, metric=KNOWN[metric])
    assert not (found.low < -1)
    assert not (found.high > 1)


def test_the_interval_is_that_of_the_bootstrap() -> None:
    """To two examples, of which one is still unseen, and the noise of 10,000 draws."""
    first, second = answers(1, 1), answers(2, 1, accuracy=0.99)
    assert interval(first, second, True) == pytest.approx(by_scipy(first[0], second[0]), abs=2 / 360)


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_of_a_figure_is_that_of_scipy(paired: bool) -> None:
    random = np.random.default_rng(3)
    first, second = random.normal(size=4), random.normal(1, 3, size=4 if paired else 3)
    found = mean_difference(first.tolist(), second.tolist(), paired, None)
    expected = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=False)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_a_single_run_varies_as_those_of_other_settings_do() -> None:
    """Without them nothing is known of a figure, and of an accuracy what its examples tell of two trained models."""
    assert mean_difference([1.0], [2.0], True, None) is None
    found = mean_difference([1.0], [2.0], True, Part(0.5, 4))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 4, loc=1))
    random = np.random.default_rng(0)
    several = random.random((5, 2000)) < np.linspace(0.85, 0.95, 5)[:, np.newaxis]
    first, second = answers(1, 1, 2000, 0.88), answers(2, 1, 2000, 0.92)
    alone = metric_difference(first, second, True)
    among = metric_difference(first, second, True, pooled_between_seeds([several, first]))
    assert (alone.of_settings, among.of_settings) == (False, True)
    assert alone.excludes_zero
    assert not among.excludes_zero
    assert (among.high - among.low) / 2 > 2.7 * 2**0.5 * np.std(several.mean(axis=1), ddof=1)


def test_seeds_that_differ_on_single_examples_alone_are_averaged() -> None:
    """Their means differ no more than examples explain: here, not at all."""
    first = answers(1, 3)
    first = np.concatenate([np.roll(first[:1], shift, axis=1) for shift in range(3)])
    second = np.concatenate([np.roll(answers(2, 1, accuracy=0.95), shift, axis=1) for shift in range(3)])
    expected = by_scipy(first.mean(axis=0), second.mean(axis=0))
    assert interval(first, second, True) == pytest.approx(expected, abs=0.003)


def test_seeds_in_pairs_tell_more() -> None:
    """What a seed does to both settings is not between them."""
    random = np.random.default_rng(0)
    good = 0.8 + 0.15 * np.arange(4)[:, np.newaxis] / 3
    noise = random.random((4, 500))
    first, second = noise < good, noise < good + 0.01
    widths = [high - low for low, high in (interval(first, second, paired) for paired in (True, False))]
    assert widths[0] < 0.5 * widths[1]


@pytest.mark.parametrize("accuracy", [0.9, 0.99])
def test_mcnemar_is_the_binomial_test_of_discordant_pairs(accuracy: float) -> None:
    first, second = answers(1, 1), answers(2, 1, accuracy=accuracy)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    expected = stats.binomtest(only_first, only_first + only_second).pvalue
    assert mcnemar_p(first, second) == pytest.approx(min(expected, 1), rel=1e-9)


def test_mcnemar_over_seeds_is_mcnemar_where_they_agree() -> None:
    first, second = answers(1, 1), answers(2, 1, accuracy=0.95)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    expected = stats.chi2.sf((only_first - only_second) ** 2 / (only_first + only_second), 1)
    assert mcnemar_p(np.repeat(first, 3, axis=0), np.repeat(second, 3, axis=0)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("examples", [1, 5, 20, 400])
def test_few_differing_examples_do_not_exclude_zero(examples: int, seeds: int) -> None:
    """Five that all differ in one direction are as likely as heads five times in a row, or tails: 1 in 16."""
    first = np.zeros((seeds, examples), bool)
    for differing in range(1, min(examples, 7) + 1):
        second = first.copy()
        second[:, :differing] = True
        found = metric_difference(first, second, True)
        assert found.excludes_zero == (differing >= 6)
        assert found.low <= found.difference <= found.high
        against = metric_difference(second, first, True)
        assert against.excludes_zero == found.excludes_zero


@pytest.mark.parametrize(("seeds", "between", "least"), [(1, 0.0, 0.92), (3, 0.0, 0.92), (5, 0.05, 0.88)])
def test_intervals_cover_the_truth(seeds: int, between: float, least: float) -> None:
    """Of 300 test sets of 400 examples, for settings of 88% and 91% that find the same examples hard.

    between: std of a seed's accuracy over all examples there could be.
    """
    random = np.random.default_rng(7)
    scale = 2**0.5
    slope = stats.norm.pdf(stats.norm.ppf(0.9)) / scale
    covered = told = 0
    for _ in range(300):
        hard = random.normal(size=400)
        first, second = (
            hard + random.normal(size=(seeds, 400)) + random.normal(size=(seeds, 1)) * between / slope
            < stats.norm.ppf(accuracy) * (2 + (between / slope) ** 2) ** 0.5
            for accuracy in (0.88, 0.91)
        )
        found = metric_difference(first, second, True)
        covered += found.low <= 0.03 <= found.high
        told += found.excludes_zero
    assert least <= covered / 300 <= 0.995
    assert between or told > 60  # and it is no interval of everything
