"""Equal settings are rarely reported as different. These are few comparisons; `simulated.py` prints a table of many."""

import numpy as np
import pytest

from tests.pipeline.comparison.simulated import LAYOUTS, simulate, wrong_answers

VARIED_LAYOUTS = ("3 seeds each", "3, 1 and 3 seeds", "other seeds: 3 and 3", "1, 1 and 5 seeds", "5 seeds, 2 pruned")
"""Layouts that are computed in different ways."""


@pytest.mark.parametrize("layout", VARIED_LAYOUTS)
def test_equal_settings_are_rarely_reported_as_different(layout: str) -> None:
    """Nominally in 5% of comparisons; 14 of 150 are more than chance allows (a probability of 1.3%)."""
    wrong = wrong_answers(LAYOUTS[layout], 0.01, 150)
    assert max(wrong.values()) < 14 / 150, wrong


def test_a_better_setting_is_found() -> None:
    """Intervals that are always too wide would never be wrong, either."""
    random = np.random.default_rng(1)
    comparisons = [simulate(LAYOUTS["5 seeds each"], 0.0, random, gain=0.04) for _ in range(40)]
    assert sum(one.differences[one.rows[1]].excludes_zero for one in comparisons) > 30
    assert sum(one.best is one.rows[1] for one in comparisons) > 30
