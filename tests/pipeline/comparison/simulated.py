"""Fraction of comparisons that call equal settings different: `python -m tests.pipeline.comparison.simulated [NUMBER]`.

Three rows of the same setting are compared by the project's own functions. Runs of a row differ by their seed; all are
tested on the same 400 examples, whose difficulty they share. At most 5% of the statements should be wrong.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import stats

from pipeline.comparison.comparison import Comparison, compare_runs
from pipeline.comparison.rows import RunRecord
from pipeline.runs.facts import Facts
from pipeline.runs.summary import Summary

EXAMPLES = 400
ACCURACY = 0.9
SPEED_SPREAD = 0.2
"""Standard deviation of the logarithm of a run's speed."""

LAYOUTS: dict[str, Sequence[str]] = {
    "1 seed each": ("1", "1", "1"), "2 seeds each": ("12", "12", "12"),
    "3 seeds each": ("123", "123", "123"), "5 seeds each": ("12345", "12345", "12345"),
    "3, 2 and 3 seeds": ("123", "12", "123"), "3, 1 and 3 seeds": ("123", "2", "123"),
    "5, 3 and 4 seeds": ("12345", "145", "1234"), "other seeds: 3 and 3": ("123", "456", "789"),
    "1, 1 and 5 seeds": ("1", "2", "12345"), "5 seeds, 2 pruned": ("12345", "1p2p345", "12345"),
}  # fmt: skip
"""The seeds of each row, the baseline's first; `p` follows a seed whose run was pruned because it is worse."""

BETWEEN = (0.0, 0.005, 0.01, 0.02)
"""Standard deviations, over seeds, of the true accuracy."""


@dataclass(frozen=True)
class SimulatedRun(RunRecord):
    """A run with its predictions in memory."""

    answers: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def by_example(self) -> np.ndarray:
        return self.answers


def simulate(rows: Sequence[str], between: float, random: np.random.Generator, gain: float = 0.0) -> Comparison:
    """Compare rows of the same setting.

    Args:
        rows: The seeds of each row.
        between: Standard deviation, over seeds, of the true accuracy.
        random: The source of randomness.
        gain: By how much the true accuracy of the second row is better; its validation loss is lower in proportion.
    """
    hardness = random.normal(size=EXAMPLES)
    slope = stats.norm.pdf(stats.norm.ppf(ACCURACY)) / 2**0.5
    runs: list[RunRecord] = []
    for name, seeds in zip("abc", rows, strict=True):
        for place, seed in enumerate(seeds):
            if seed == "p":
                continue
            is_pruned = seeds[place + 1 : place + 2] == "p"
            ability = random.normal() * between / slope - is_pruned + (name == "b") * gain / slope
            bound = stats.norm.ppf(ACCURACY) * (2 + (between / slope) ** 2) ** 0.5
            answers = hardness + random.normal(size=EXAMPLES) - ability < bound
            metrics = {
                "test/accuracy": float(answers.mean()),
                "val/best_loss": float(random.lognormal(-1 - (name == "b") * 10 * gain, 0.1)),
                "train/images_per_second": float(random.lognormal(7, SPEED_SPREAD)),
            }
            facts = Facts(test_examples="a", pruned_after_epoch=1 if is_pruned else None)
            weights = {"monitor": "val_loss"}
            made = Summary(None, "FINISHED", "x", Path(name + seed), {}, metrics=metrics, weights=weights, facts=facts)
            settings = {"model": name, "seed": seed}
            runs.append(SimulatedRun(len(runs), "FINISHED", settings, made, answers=answers))
    return compare_runs("a simulation", runs)


def wrong_answers(rows: Sequence[str], between: float, comparisons: int, seed: int = 0) -> dict[str, float]:
    """Return the fractions of wrong statements on the second row's `accuracy` and `speed`, and on the `best` row."""
    random = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    for _ in range(comparisons):
        comparison = simulate(rows, between, random)
        row = comparison.rows[1]
        counts["accuracy"] += comparison.differences[row].excludes_zero
        counts["speed"] += comparison.speeds[row].is_distinguishable
        counts["best"] += not comparison.choice.tied and comparison.choice.has_seeds
    return {name: counts[name] / comparisons for name in ("accuracy", "speed", "best")}


def main(comparisons: int = 1000) -> None:
    """Print the table of docs/how-it-works/statistics.md."""
    heads = [*(f"{100 * between:g} points" for between in BETWEEN), "speed", "one best of three"]
    print("| seeds |", " | ".join(heads), "|")
    print("|---" * (len(heads) + 1) + "|")
    for name, rows in LAYOUTS.items():
        fractions = [wrong_answers(rows, between, comparisons) for between in BETWEEN]
        cells = [*(one["accuracy"] for one in fractions), fractions[0]["speed"], fractions[0]["best"]]
        print(f"| {name} |", " | ".join(f"{100 * cell:.1f}%" for cell in cells), "|")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
