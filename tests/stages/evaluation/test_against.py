"""Predictions against those of another run: NumPy's and SciPy's numbers, on the same examples alone."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from stages.evaluation.predictions import NAME, compare_predictions
from tests.stages.evaluation import made

LABELS = np.random.default_rng(1).integers(5, size=300)


def two(folder: Path) -> tuple[Path, Path, np.ndarray, np.ndarray]:
    """Returns the folders of two runs, and their probabilities."""
    first, second = (made.probabilities(LABELS, 5, seed=seed) for seed in (1, 2))
    for name, values in (("a", first), ("b", second)):
        (folder / name).mkdir()
        made.write(folder / name, LABELS, values)
    return folder / "a", folder / "b", first, second


def test_the_comparison_is_that_of_numpy_and_scipy(tmp_path: Path) -> None:
    ours, theirs, first, second = two(tmp_path)
    against = compare_predictions(ours / NAME, theirs / NAME, 0.95)
    correct, other = (values.argmax(axis=1) == LABELS for values in (first, second))
    assert against.difference == pytest.approx(correct.mean() - other.mean())
    discordant = int((correct & ~other).sum()), int((other & ~correct).sum())
    assert against.p == pytest.approx(stats.binomtest(discordant[0], sum(discordant)).pvalue)
    narrow = compare_predictions(ours / NAME, theirs / NAME, 0.5)
    assert against.low < narrow.low < against.difference < narrow.high < against.high
    assert against.is_better == (correct.mean() > other.mean())
    back = compare_predictions(theirs / NAME, ours / NAME, 0.95)
    assert back.difference == -against.difference


def test_a_run_against_itself_differs_in_nothing(tmp_path: Path) -> None:
    ours, *_ = two(tmp_path)
    against = compare_predictions(ours / NAME, ours / NAME, 0.95)
    assert (against.change, against.is_better) == ("0.00 points (95 %: 0.00 to 0.00)", False)
    assert (against.low, against.high, against.p) == (0, 0, 1)
