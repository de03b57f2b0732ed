"""Comparisons of generated runs: rows over seeds, the choice, the baseline, the answer."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.made_runs import MadeRun, make_sweep
from pipeline.comparison.answer import choice, sentences
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.report import as_csv, markdown, notes, terminal_table
from pipeline.sweep.index import compare
from stages.errors import UserError

ONE = {"strategy": "one_device", "precision": "float32"}
BFLOAT16 = {"strategy": "one_device", "precision": "mixed_bfloat16"}


def correct(accuracy: float, seed: int = 0, examples: int = 400) -> np.ndarray:
    return np.random.default_rng(seed).permutation(examples) < accuracy * examples


def made(settings: dict[str, str], accuracy: float = 0.9, seed: str | None = None, **changes: Any) -> MadeRun:
    seeds = {} if seed is None else {"seed": seed}
    return MadeRun({**settings, **seeds}, correct(accuracy), **changes)


def compared(tmp_path: Path, *runs: MadeRun, **arguments: Any) -> Comparison:
    folder = tmp_path / "s"
    if not folder.exists():
        make_sweep(folder, runs)
    return compare(folder, **arguments)


def test_jobs_that_differ_only_by_seed_are_one_row(tmp_path: Path) -> None:
    accuracies = (0.9, 0.91, 0.95)
    runs = [made(ONE, accuracy, str(seed)) for seed, accuracy in enumerate(accuracies)]
    comparison = compared(tmp_path, *runs, made(BFLOAT16, 0.8, "1"))
    assert comparison.names == ("precision",)
    first, second = comparison.rows
    labels = [(row.label, len(row.runs)) for row in comparison.rows]
    assert labels == [("precision=float32", 3), ("precision=mixed_bfloat16", 1)]
    assert first.mean("test/accuracy") == pytest.approx(np.mean(accuracies))
    assert first.std("test/accuracy") == pytest.approx(np.std(accuracies, ddof=1))
    assert second.std("test/accuracy") is None
    assert "| float32 | 3 |" in markdown(comparison)
    assert "92.00% ±2.65" in markdown(comparison)


def test_the_best_is_chosen_on_validation_and_not_on_test(tmp_path: Path) -> None:
    comparison = compared(tmp_path, made(ONE, 0.99, val_loss=0.5), made(BFLOAT16, 0.5, val_loss=0.4))
    assert comparison.best is comparison.rows[1]
    expected = "precision=mixed_bfloat16 has the lowest validation loss: 0.400, compared with 0.500 for the other"
    doubt = " combination. Each combination has one seed, so this may be chance. To find out, add seed=1,2,3."
    assert choice(comparison) == expected + doubt
    assert expected in markdown(comparison)


def test_a_higher_accuracy_is_better(tmp_path: Path) -> None:
    runs = [made(ONE, val_loss=0.5, monitor="val_accuracy"), made(BFLOAT16, val_loss=0.4, monitor="val_accuracy")]
    comparison = compared(tmp_path, *runs)
    assert comparison.choice.metric == "val/best_accuracy"
    assert comparison.best is comparison.rows[1]
    assert "has the highest validation accuracy: 92.00%, compared with 90.00% for" in choice(comparison)


def test_the_fastest_of_equal_combinations_is_best(tmp_path: Path) -> None:
    comparison = compared(tmp_path, made(ONE, speed=10), made(BFLOAT16, speed=20), made({"strategy": "mirrored"}))
    assert comparison.best is comparison.rows[2]


def test_speed_ups_are_relative_to_the_named_baseline(tmp_path: Path) -> None:
    runs = [made(ONE, speed=100), made({"strategy": "mirrored", "precision": "float32"}, speed=150)]
    comparison = compared(tmp_path, *runs)
    assert [comparison.speeds[row].ratio for row in comparison.rows] == [1.0, 1.5]
    other = compared(tmp_path, baseline={"strategy": "mirrored", "precision": "float32"})
    assert other.speeds[other.rows[0]].ratio == pytest.approx(2 / 3)
    assert "speed 1.50× (one run each)" in sentences(comparison)[0]


@pytest.mark.parametrize("value", ["2.345678e-3", "0.002345678", "0.002346"])
def test_a_baseline_is_named_by_its_value_in_any_form_and_as_tables_show_it(value: str, tmp_path: Path) -> None:
    rate = "optimizer.learning_rate"
    comparison = compared(tmp_path, made({rate: "0.1"}), made({rate: "2.345678e-3"}), baseline={rate: value})
    assert comparison.baseline is comparison.rows[1]
    assert comparison.rows[1].label == f"{rate}=0.002346"


def test_a_baseline_that_matches_two_combinations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 combinations have these settings"):
        compared(tmp_path, made(ONE), made(BFLOAT16), baseline={"strategy": "one_device"})


def test_the_answer_in_a_sentence(tmp_path: Path) -> None:
    drawn = np.stack([np.random.default_rng(seed).random(1000) for seed in range(3)])
    runs = [
        MadeRun({"precision": name, "seed": str(seed)}, drawn[seed] < accuracy, speed=speed)
        for name, accuracy, speed in (("float32", 0.9, 100), ("mixed_bfloat16", 0.87, 180))
        for seed in range(3)
    ]
    comparison = compared(tmp_path, *runs)
    [sentence] = sentences(comparison)
    difference = comparison.differences[comparison.rows[1]]
    assert difference.seeds == 3
    assert difference.difference == pytest.approx((drawn < 0.87).mean() - (drawn < 0.9).mean())
    assert sentence.startswith("precision=mixed_bfloat16: test accuracy −")
    assert sentence.endswith("); speed 1.80× (95% CI 1.80 to 1.80)")
    assert " points (95% CI −" in sentence


@pytest.mark.parametrize("digests", [{"test_set": "other"}, {"test_pixels": "8x8x1 c"}])
def test_runs_with_different_test_sets_get_a_warning_and_no_difference(digests: dict[str, Any], tmp_path: Path) -> None:
    comparison = compared(tmp_path, made(ONE), made(BFLOAT16, **digests))
    assert not comparison.differences
    assert "different test sets" in comparison.warnings[0]
    assert any("different test sets" in line for line in notes(comparison))


def test_resized_images_are_the_same_examples(tmp_path: Path) -> None:
    comparison = compared(tmp_path, made(ONE), made(BFLOAT16, test_pixels="16x16x1 c"))
    assert comparison.differences.keys() == {comparison.rows[1]}
    assert not comparison.warnings


def test_missing_and_damaged_predictions_are_reported(tmp_path: Path) -> None:
    runs = [made(ONE), made(BFLOAT16), made({"strategy": "mirrored"})]
    make_sweep(tmp_path / "s", runs)
    damaged, missing = ((tmp_path / "s").glob(f"{number}_*/predictions.parquet") for number in (2, 3))
    next(damaged).write_bytes(b"PAR1")
    next(missing).unlink()
    comparison = compare(tmp_path / "s")
    assert not comparison.differences
    assert "the predictions are missing" in comparison.warnings[0]
    assert sentences(comparison)[0] == "precision=mixed_bfloat16: speed 1.00× (one run each)"


def test_nan_is_shown_and_never_best(tmp_path: Path) -> None:
    """Even if only one of two seeds is NaN."""
    runs = [made(ONE, seed="1", val_loss=math.nan), made(ONE, seed="2"), made(BFLOAT16, seed="1")]
    comparison = compared(tmp_path, *runs)
    assert comparison.best is comparison.rows[1]
    assert "nan" in markdown(comparison)
    assert math.isnan(comparison.rows[0].mean("val/best_loss") or 0)


def test_without_validation_nothing_is_chosen(tmp_path: Path) -> None:
    runs = [made(settings, monitor="loss", metrics={"val/best_accuracy": math.nan}) for settings in (ONE, BFLOAT16)]
    comparison = compared(tmp_path, *runs)
    assert comparison.best is None
    assert choice(comparison).startswith("No winner: each combination has a run whose validation accuracy is not a")


@pytest.mark.parametrize(
    ("digests", "is_chosen"),
    [
        ({"validated": "other"}, False),
        ({"validated": None}, True),  # of an earlier version
        ({"val_pixels": "8x8x1/stretch other"}, False),  # two data sets whose files and labels have the same names
        ({"val_pixels": "16x16x1/stretch other"}, True),  # the same examples at another size, as far as can be known
    ],
)
def test_runs_validated_on_other_examples_have_no_best(
    digests: dict[str, Any], is_chosen: bool, tmp_path: Path
) -> None:
    """Scores on different examples do not show which setting is better."""
    comparison = compared(tmp_path, made(ONE, val_loss=0.5), made(BFLOAT16, val_loss=0.4, **digests))
    assert comparison.best is (comparison.rows[1] if is_chosen else None)
    expected = "No winner: the runs were validated on different examples, and the test split never decides."
    assert (choice(comparison) == expected) != is_chosen


def test_a_single_job_and_no_finished_job(tmp_path: Path) -> None:
    alone = compared(tmp_path, made(ONE))
    assert choice(alone) == "Nothing to compare: this is one run, with validation loss 0.5, test accuracy 90.00%."
    assert not sentences(alone)
    none = compare(make_sweep(tmp_path / "none", [made(ONE, status="FAILED", error="it broke")]))
    assert choice(none) == "No winner: the only run has not finished (1 FAILED)."
    assert notes(none) == [choice(none), "job 1 FAILED: it broke"]
    assert "it broke" in markdown(none)


def test_csv_has_every_number_at_full_precision(tmp_path: Path) -> None:
    runs = [made(ONE, 0.9, "1", val_loss=1 / 3), made(ONE, 0.91, "2"), made(BFLOAT16, 0.8, "1")]
    make_sweep(tmp_path / "s", runs, [{"folder": "x", "overrides": ["precision=float16"], "exit_code": 2}])
    rows = list(csv.DictReader(io.StringIO(as_csv(compare(tmp_path / "s")))))
    assert [row["precision"] for row in rows] == ["float32", "mixed_bfloat16", "float16"]
    assert float(rows[0]["val/best_loss"]) == (1 / 3 + 0.5) / 2
    assert float(rows[1]["difference"]) == pytest.approx(0.8 - 0.9)  # of seed 1, which both have
    assert (rows[0]["n"], rows[0]["seeds"], rows[2]["status"], rows[2]["test/accuracy"]) == ("2", "1 2", "REFUSED", "")


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_fits(width: int, tmp_path: Path) -> None:
    long = {**ONE, "optimizer.weight_decay_of_a_long_name": "0.0001", "strategy": "parameter_server"}
    runs = [made(ONE, seed="1"), made(ONE, seed="2"), made(long, seed="1"), made(long, seed="2")]
    comparison = compared(tmp_path, *runs)
    console = Console(width=width)
    with console.capture() as captured:
        console.print(terminal_table(comparison))
    table = captured.get()
    assert max(map(len, table.splitlines())) <= width
    assert {text in table for text in ("test accuracy", "validation loss")} == {True}
