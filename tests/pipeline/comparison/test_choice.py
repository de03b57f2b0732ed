"""The answer reports which differences may be chance, and recommends the cheapest of equal combinations."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.made_runs import MadeRun, make_run, make_sweep
from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.comparison.answer import answer_of, choice, sentences
from pipeline.comparison.comparison import Comparison, compare_runs
from pipeline.comparison.report import as_csv, markdown, notes, page
from pipeline.comparison.rows import recorded
from pipeline.comparison.seeds import needed_for_significance
from pipeline.runs.summary import Summary
from pipeline.sweep.index import compare

RANDOM = np.random.default_rng(4)
ANSWERS = [RANDOM.random(400) < 0.9 for _ in range(5)]


def runs(name: str, losses: dict[str, float], speeds: tuple[float, ...] = (), **changes: Any) -> list[MadeRun]:
    """Runs of one precision, by seed."""
    correct = changes.pop("correct", ANSWERS)
    return [
        MadeRun({"precision": name, "seed": seed}, correct[int(seed) - 1], speed=speed, val_loss=loss, **changes)
        for (seed, loss), speed in zip(losses.items(), speeds or [1000.0] * len(losses), strict=True)
    ]


def compared(folder: Path, *made: list[MadeRun]) -> Comparison:
    return compare(make_sweep(folder / "s", [run for row in made for run in row]))


def test_a_row_that_lacks_a_seed_is_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Its runs equal those of the baseline with the same seeds, so it does not differ, whatever the third seed does."""
    worse = [ANSWERS[0], ANSWERS[1], np.zeros(400, bool)]
    lacking = runs("mixed", dict.fromkeys("12", 0.5))
    comparison = compared(tmp_path, runs("float32", dict.fromkeys("123", 0.5), correct=worse), lacking)
    [difference] = comparison.differences.values()
    assert (difference.difference, difference.seeds, difference.is_same) == (0, 2, True)
    assert (difference.low, difference.high) == pytest.approx(
        (-0.00918, 0.00918), rel=0.02
    )  # the exact interval of 0 of 400
    [sentence] = sentences(comparison)
    assert sentence.startswith(
        "precision=mixed: test accuracy 0.00 points (on 2 seeds, the same examples are correct); "
    )


def test_a_row_does_not_lead_because_it_lacks_a_hard_seed(tmp_path: Path) -> None:
    """Seed 3 is hard for all rows, and the row without it is worse on each of the other seeds."""
    base = runs("float32", {"1": 0.30, "2": 0.31, "3": 0.90})
    lacking = runs("mixed", {"1": 0.36, "2": 0.371})
    for made in ((base, lacking), (lacking, base)):
        comparison = compared(tmp_path / made[0][0].settings["precision"], *made)
        assert comparison.choice.best is comparison.rows[made.index(base)]
        shared = (
            "its validation loss of 0.3050 on the 2 seeds that both have is 0.0605 lower than the other combination's"
        )
        assert choice(comparison) == f"precision=float32 wins: {shared} (95% CI 0.0541 to 0.0669, 2 seeds)."
        assert answer_of(comparison).commands == ["python -m pipeline precision=float32"]


def test_a_repeated_seed_counts_once(tmp_path: Path) -> None:
    """Repeating a run says nothing about other seeds."""
    for folder in ("a", "b"):
        make_run(tmp_path / folder, runs("mixed", {"1": 0.5})[0])
    make_run(tmp_path / "base", runs("float32", {"1": 0.5})[0])
    summaries = [Summary.read(tmp_path / name) for name in ("base", "a", "b")]
    comparison = compare_runs("3 runs", [recorded(summary, "run") for summary in summaries])
    assert [len(row.runs) for row in comparison.rows] == [1, 2]
    assert [(difference.seeds, difference.of_settings) for difference in comparison.differences.values()] == [
        (1, False)
    ]
    assert "the intervals compare the trained models and not the settings" in answer_of(comparison).notes[0]


def test_a_single_run_is_assumed_to_vary_as_the_other_rows_do(tmp_path: Path) -> None:
    """Two trained models may differ significantly although their settings do not."""
    spread = [np.arange(400) < accuracy * 400 for accuracy in (0.8, 0.85, 0.9, 0.95)]
    two = (runs("float32", {"1": 0.5}, correct=spread), runs("mixed", {"2": 0.5}, correct=spread))
    alone = compared(tmp_path / "alone", *two)
    among = compared(tmp_path, *two, runs("bfloat16", dict.fromkeys("1234", 0.5), correct=spread))
    assert alone.differences[alone.rows[1]].excludes_zero
    assert "compare the trained models and not the settings" in answer_of(alone).notes[0]
    assert not among.differences[among.rows[1]].excludes_zero
    assert not answer_of(among).notes


def test_a_speed_has_an_interval_unless_it_is_too_wide(tmp_path: Path) -> None:
    seeds = dict.fromkeys("123", 0.5)
    apart = (runs("float32", seeds, (4000, 6500, 9000)), runs("mixed", seeds, (5000, 5500, 6300)))
    unclear = compared(tmp_path / "unclear", *apart)
    assert re.search(r"speed 0.86× \(needs (about \d+|more than 50) seeds\)", sentences(unclear)[0])
    assert "| 6,500 ±2,500 |" in markdown(unclear)
    narrower = (runs("float32", seeds, (5500, 6500, 7500)), runs("mixed", seeds, (5000, 5500, 6300)))
    doubtful = compared(tmp_path / "doubtful", *narrower)
    assert "speed 0.86× (95% CI 0.63 to 1.19, not significant)" in sentences(doubtful)[0]
    assert "| 0.86× (0.63 to 1.19, not significant) |" in markdown(doubtful)
    clear = compared(tmp_path, runs("float32", seeds, (990, 1000, 1010)), runs("mixed", seeds, (1990, 2000, 2010)))
    assert "speed 2.00× (95% CI 1.96 to 2.04)" in sentences(clear)[0]


def test_the_cheapest_of_tied_rows_is_recommended(tmp_path: Path) -> None:
    """The best mean does not decide if it is within seed noise."""
    base = runs("float32", {"1": 0.0340, "2": 0.0290, "3": 0.0400}, (1000, 1010, 990))
    noise = runs("mixed", {"1": 0.0341, "2": 0.0270, "3": 0.0390}, (1005, 1000, 995))
    worse = runs("float16", {"1": 0.5, "2": 0.52, "3": 0.51}, (3000, 3010, 2990))
    comparison = compared(tmp_path, base, noise, worse)
    assert comparison.choice.best is comparison.rows[1]
    assert comparison.choice.tied == [comparison.rows[0]]
    assert comparison.best is comparison.rows[0]
    sentence = choice(comparison)
    tie = "No clear winner: 2 of 3 combinations lead, and their differences in validation loss are within seed noise."
    assert re.fullmatch(
        re.escape(tie) + r" About \d+ seeds per combination would settle it."
        r" Default choice: precision=float32 \(the baseline\).", sentence,
    )  # fmt: skip
    assert answer_of(comparison).commands == ["python -m pipeline precision=float32"]
    assert "* default choice" in notes(comparison)[0]
    for text in (markdown(comparison), "\n".join(notes(comparison))):
        assert sentence in text
        assert "python -m pipeline precision=float32" in text
    fast = runs("mixed", {"1": 0.0341, "2": 0.0270, "3": 0.0390}, (1990, 2000, 2010))
    faster = compared(tmp_path / "faster", base, fast)
    assert choice(faster).startswith("No clear winner among 2 combinations: differences in validation loss are within")
    assert choice(faster).endswith("Default choice: precision=mixed (the fastest).")
    assert answer_of(faster).commands == ["python -m pipeline precision=mixed"]
    clear = compared(tmp_path / "clear", base, worse)
    assert choice(clear).startswith(
        "precision=float32 wins: its validation loss of 0.0343 is 0.476 lower than the other"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_seed_that_is_not_finite_is_shown_and_left_out(tmp_path: Path, value: float) -> None:
    """Without that seed, the row would win and be compared."""
    base = runs("float32", dict.fromkeys("123", 0.5), (1000, 1010, 990))
    broken = runs("mixed", {"1": 0.1, "2": value, "3": 0.1}, (1000, 1010, 990))
    also = runs("bfloat16", {"1": 0.4, "2": 0.41, "3": 0.42})
    comparison = compared(tmp_path, base, broken, also)
    _, left_out, best = comparison.rows
    assert left_out not in (comparison.choice.best, *comparison.choice.tied, *comparison.choice.rows)
    assert comparison.choice.best is best
    warning = "precision=mixed (seed 2) cannot win: its validation loss is not a finite number"
    for text in ("\n".join(notes(comparison)), markdown(comparison), page(comparison) if np.isnan(value) else warning):
        assert warning in text
    assert "nan" in markdown(comparison)
    assert as_csv(comparison).count("precision") == 1
    assert "nan" in next(line for line in as_csv(comparison).splitlines() if "mixed" in line)


def test_a_failed_seed_of_the_chosen_row_is_reported(tmp_path: Path) -> None:
    """A seed may have diverged or have predictions that are not finite; the row leads because of the other seeds."""
    base = runs("float32", dict.fromkeys("123", 0.5), (1000, 1010, 990))
    better = runs("mixed", {"1": 0.1, "2": 0.11, "3": 0.1}, (1000, 1010, 990))
    better[1] = replace(better[1], status="FAILED", error="training diverged by step 5")
    warning = "precision=mixed failed with seed 2: its figures are means over the other seeds"
    comparison = compared(tmp_path / "a", base, better)
    assert comparison.best is comparison.rows[1]
    assert warning in comparison.warnings
    again = replace(runs("mixed", {"2": 0.1})[0], settings={**better[1].settings})
    assert warning not in compared(tmp_path / "b", base, better, [again]).warnings
    assert not compared(tmp_path / "c", better, runs("float32", dict.fromkeys("123", 0.01))).warnings


def test_a_row_with_a_test_metric_that_is_not_finite_is_not_compared(tmp_path: Path) -> None:
    base = runs("float32", dict.fromkeys("12", 0.5))
    broken = runs("mixed", {"1": 0.1, "2": 0.1})
    broken[1] = replace(broken[1], metrics={"test/accuracy": np.nan})
    comparison = compared(tmp_path / "row", base, broken)
    assert not comparison.differences
    warning = "precision=mixed (seed 2) is not compared with the baseline: its test accuracy is not a finite number"
    assert warning in comparison.warnings
    assert not compared(tmp_path / "base", broken, base).differences
    slow = [replace(run, metrics={}, speed=np.nan) for run in broken]
    speeds = compared(tmp_path / "speeds", base, slow)
    assert speeds.rows[1] not in speeds.speeds
    assert speeds.rows[1].speed == 0


WIDE = ((1000, 8000), (900, 9000))
"""Speeds of two rows of two runs; the interval of their ratio spans a factor of a thousand."""


def test_an_interval_that_is_too_wide_is_not_printed(tmp_path: Path) -> None:
    """The terminal, Markdown and the page show the number of seeds that would help instead."""
    two = compared(
        tmp_path / "two", *(runs(name, dict.fromkeys("12", 0.5), v) for name, v in zip("ab", WIDE, strict=True))
    )
    speed = two.speeds[two.rows[1]]
    assert speed.low is not None
    assert speed.high is not None
    assert speed.high > 100 * speed.low
    for text in (page(two), "\n".join(notes(two)), markdown(two)):
        assert "needs more than 50 seeds" in text
        assert "1.10×" in text
        assert f"{speed.high:.2f}" not in text
        assert f"{speed.high:.2g}" not in text
    assert repr(speed.high) in as_csv(two)
    one = compared(tmp_path / "one", runs("a", {"1": 0.5}), runs("b", {"1": 0.5}, (1500,)))
    assert "speed 1.50× (one run each)" in "\n".join(notes(one))


def test_the_number_of_seeds_makes_the_difference_significant_in_four_of_five_cases(tmp_path: Path) -> None:
    """If further runs vary like the first; simulated with Student's t-test, with that number of runs and half of it."""
    base, other = [1000.0, 3000.0], [4000.0, 12000.0]
    comparison = compared(
        tmp_path, runs("a", dict.fromkeys("12", 0.5), tuple(base)), runs("b", dict.fromkeys("12", 0.5), tuple(other))
    )
    match = re.search(r"speed 4.00× \(needs about (\d+) seeds\)", sentences(comparison)[0])
    assert match is not None
    random, number = np.random.default_rng(0), int(match[1])
    spread = np.std(np.log(base), ddof=1)
    for count, low, high in ((number, 0.75, 0.87), (number // 2, 0.0, 0.6)):
        slow, fast = random.normal(0, spread, (2000, count)), random.normal(np.log(4), spread, (2000, count))
        share = float((stats.ttest_ind(slow, fast, axis=1).pvalue < 0.05).mean())
        assert low < share < high, (count, share)


def test_runs_without_a_metric_do_not_count_in_the_number_of_seeds(tmp_path: Path) -> None:
    """They do not show how the metric varies, neither as runs of the two rows nor as a separate row."""
    accuracies = (0.5, 0.95), (0.9, 0.6)
    made = [
        [
            replace(run, correct=np.arange(400) < accuracy * 400)
            for run, accuracy in zip(runs(name, dict.fromkeys("12", 0.5)), values, strict=True)
        ]
        for name, values in zip("ab", accuracies, strict=True)
    ]
    untested = [replace(run, correct=None) for run in runs("c", dict.fromkeys("12345", 0.5))]
    without, comparison = compared(tmp_path / "without", *made), compared(tmp_path / "with", *made, untested)
    for metric in ("test/accuracy", "test/unknown"):
        assert needed_for_significance(comparison, comparison.rows[1], metric) == needed_for_significance(
            without, without.rows[1], metric
        )
    assert needed_for_significance(comparison, comparison.rows[2], "test/accuracy") == "more seeds"
    assert needed_for_significance(comparison, comparison.rows[1], "test/unknown", is_ratio=True) == "more seeds"


def test_an_uncertain_difference_has_no_interval(tmp_path: Path) -> None:
    """For example with two seeds whose accuracies are far apart, or with four test examples."""
    spread = [np.arange(400) < accuracy * 400 for accuracy in (0.5, 0.95)]
    other = [np.arange(400) < accuracy * 400 for accuracy in (0.9, 0.6)]
    seeds = dict.fromkeys("12", 0.5)
    comparison = compared(tmp_path / "seeds", runs("a", seeds, correct=spread), runs("b", seeds, correct=other))
    difference = comparison.differences[comparison.rows[1]]
    assert difference.high - difference.low > 1
    sentence = sentences(comparison)[0]
    assert "test accuracy +2.50 points (needs more than 50 seeds)" in sentence
    assert f"{100 * difference.high:.2f}" not in markdown(comparison)
    few = [np.array([True, True, False, False]), np.array([True, False, True, True])]
    single = compared(
        tmp_path / "few", *(runs(name, {"1": 0.5}, correct=[one]) for name, one in zip("ab", few, strict=True))
    )
    assert "test accuracy +25.00 points (needs more test examples)" in sentences(single)[0]


@pytest.mark.parametrize(
    ("metric", "low", "high", "shows_interval"),
    [("rmse", -0.4, 0.6, True), ("rmse", -1.1, 1.3, False), ("rmse", -0.9, 1.0, False), ("rmse", -2.0, -0.1, True),
     ("log_loss", -1.0, 0.1, False), ("accuracy", -0.09, 0.1, True), ("accuracy", -0.1, 0.11, False),
     ("macro_f1", 0.1, 1.2, True), ("accuracy", np.nan, np.nan, False)],
)  # fmt: skip
def test_an_interval_of_a_metric_is_shown_if_it_is_narrow_or_significant(
    tmp_path: Path, metric: str, low: float, high: float, shows_interval: bool
) -> None:
    """The baseline's error is 1."""
    made = [runs(name, {"1": 0.5}, metrics={f"test/{metric}": 1.0}) for name in "ab"]
    comparison = compared(tmp_path, *made)
    change: dict[str, Any] = {"metric": metric, "higher_is_better": metric != "rmse"}
    found = comparison.differences[comparison.rows[1]]
    difference = replace(found, difference=0.1, low=low, high=high, **change)
    assert comparison.shows_interval(difference) == shows_interval


DELTAS = [{"_target_": "Huber", "delta": delta} for delta in (0.1, 2.0)]


@pytest.mark.parametrize(
    ("setting", "losses", "metric"),
    [("optimizer.learning_rate", DELTAS[:1] * 2, "loss"), ("optimizer.learning_rate", DELTAS, "accuracy"),
     ("model.network.l2", [{"penalized": True}] * 2, "accuracy"), ("model.network.l2", [None, None], "loss")],
)  # fmt: skip
def test_losses_that_may_be_on_different_scales_do_not_decide(
    setting: str, losses: list[dict[str, Any] | None], metric: str, tmp_path: Path
) -> None:
    made = [
        MadeRun({setting: str(one)}, ANSWERS[0], val_loss=one, loss=loss, metrics={"val/best_accuracy": one})
        for one, loss in zip((0.1, 0.3), losses, strict=True)
    ]
    comparison = compared(tmp_path, made)
    assert (comparison.choice.metric, comparison.choice.best) == (
        f"val/best_{metric}",
        comparison.rows[metric == "accuracy"],
    )


@pytest.mark.parametrize("name", ["50 % (a), b", "it's", "[back\\slash"])
def test_the_command_of_a_row_has_the_same_settings(tmp_path: Path, name: str) -> None:
    comparison = compare(make_sweep(tmp_path / "s", [MadeRun({"tracking.note": name, "seed": "1"}, ANSWERS[0])]))
    words = shlex.split(answer_of(comparison).commands[0])
    composer = Composer(read_arguments(words[3:]))
    assert not composer.is_sweep
    assert composer.one().document.tracking.note == name


def test_the_number_of_seeds_would_settle_a_tie_in_four_of_five_cases(tmp_path: Path) -> None:
    """If further pairs of runs differ like the first; the answer has the number for the closest pair."""
    change = np.array([0.02, -0.01, 0.035])
    base = np.array([0.30, 0.31, 0.32])
    made = [
        runs(name, dict(zip("123", losses, strict=True)))
        for name, losses in (("a", base), ("b", base + change), ("c", base + 3 * change), ("d", base))
    ]
    comparison = compared(tmp_path / "s", *made[:3])
    match = re.search(r"About (\d+) seeds per combination would settle it", choice(comparison))
    assert match is not None
    random, number = np.random.default_rng(0), int(match[1])
    drawn = random.normal(change.mean(), change.std(ddof=1), (4000, number))
    assert 0.78 < float((stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean()) < 0.87
    same = choice(compared(tmp_path / "same", made[0], made[3]))
    assert same == "Both combinations have the same validation loss, 0.310. Default choice: precision=a (the baseline)."
    with_same = choice(compared(tmp_path / "with", made[0], made[1], made[3]))
    assert f"About {number} seeds per combination would settle it" in with_same, "equal rows need no number of seeds"
    far = runs("e", dict.fromkeys("123", 0.9))
    some = choice(compared(tmp_path / "some", made[0], made[3], far))
    assert some.startswith("2 of 3 combinations have the same lowest validation loss, 0.310. Default choice: ")


def test_a_combination_wins_if_no_other_has_a_finite_metric(tmp_path: Path) -> None:
    broken = runs("mixed", dict.fromkeys("12", np.nan))
    comparison = compared(tmp_path, runs("float32", dict.fromkeys("12", 0.5)), broken)
    assert choice(comparison) == "precision=float32 wins: no other combination has a finite validation loss (0.500)."


def test_the_lead_over_the_runner_up_has_the_interval_of_students_t(tmp_path: Path) -> None:
    """It pairs the runs of the same seed, whatever other rows there are."""
    best, second = np.array([0.030, 0.034, 0.031]), np.array([0.043, 0.046, 0.042])
    rows = [("a", second), ("b", best), ("c", second + 0.1)]
    comparison = compared(tmp_path, *(runs(name, dict(zip("123", losses, strict=True))) for name, losses in rows))
    low, high = stats.ttest_rel(second, best).confidence_interval()
    expected = f"0.0120 lower than the runner-up's (95% CI {low:.4f} to {high:.4f}, 3 seeds)."
    assert choice(comparison) == f"precision=b wins: its validation loss of 0.0317 is {expected}"
