"""Predictions against those of another run: NumPy's and SciPy's numbers, on the same examples alone."""

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from stages.data.split import Split
from stages.errors import UserError
from stages.evaluation.against import Against, check_comparable, compare_with
from stages.evaluation.predictions import NAME, check_other, compare_predictions, read_columns
from stages.metrics.keras_metric import KerasMetric
from stages.tasks.classification import ClassHead, classification
from stages.tasks.regression import regression
from tests.stages.evaluation import made

LABELS = np.random.default_rng(1).integers(5, size=300)
SPLIT = Split.of_images(np.zeros((300, 1, 1, 1), np.uint8), LABELS.astype(np.int32))
NAMES = tuple(f"class {number}" for number in range(5))


def two(folder: Path) -> tuple[Path, Path, np.ndarray, np.ndarray]:
    """Return the folders of two runs, and their probabilities."""
    first, second = (made.probabilities(LABELS, 5, seed=seed) for seed in (1, 2))
    for name, values in (("a", first), ("b", second)):
        (folder / name).mkdir()
        made.write(folder / name, LABELS, values)
    return folder / "a", folder / "b", first, second


def compared(ours: Path, theirs: Path, confidence: float = 0.95) -> Against:
    return compare_with(read_columns(ours / NAME), classification(NAMES), theirs, confidence)


def test_the_comparison_is_that_of_numpy_and_scipy(tmp_path: Path) -> None:
    ours, theirs, first, second = two(tmp_path)
    against = compared(ours, theirs)
    by_example = np.abs(first - second).max(axis=1)
    assert against.largest_difference == by_example.max()
    assert against.mean_difference == pytest.approx(by_example.mean(), rel=1e-6)
    assert against.agreement == np.mean(first.argmax(axis=1) == second.argmax(axis=1))
    correct, other = (values.argmax(axis=1) == LABELS for values in (first, second))
    assert against.found.difference == pytest.approx(correct.mean() - other.mean())
    discordant = int((correct & ~other).sum()), int((other & ~correct).sum())
    assert against.found.p == pytest.approx(stats.binomtest(discordant[0], sum(discordant)).pvalue)
    narrow = compared(ours, theirs, 0.5).found
    assert against.found.low < narrow.low < against.found.difference < narrow.high < against.found.high
    back = compared(theirs, ours)
    assert back.found.difference == -against.found.difference
    assert compare_predictions(ours / NAME, theirs / NAME, 0.95) == against.found
    assert " the run b: accuracy" in against.sentence
    assert "of the predictions agree" in against.sentence


def test_a_run_against_itself_differs_in_nothing(tmp_path: Path) -> None:
    ours, *_ = two(tmp_path)
    against = compared(ours, ours)
    assert (against.agreement, against.largest_difference, against.mean_difference) == (1, 0, 0)
    at_most = 1 - 0.025 ** (1 / 300)  # so often may they differ in either direction: the exact interval of 0 of 300
    assert (against.found.low, against.found.high) == pytest.approx((-at_most, at_most), rel=0.02)
    assert against.found.p == 1
    assert "no significant difference between this network and the run a: accuracy 0.00 points" in against.sentence


def test_other_examples_and_classes_are_refused(tmp_path: Path) -> None:
    folder = str(two(tmp_path)[0])
    task = classification(NAMES)
    assert check_comparable(folder, SPLIT, task) == Path(folder)
    check_comparable(folder, replace(SPLIT, features={"images": np.zeros((300, 2, 2, 1), np.uint8)}), task)  # resized
    others = {"targets": SPLIT.targets[::-1]}, {"features": {"images": np.ones((300, 1, 1, 1), np.uint8)}}
    for changes in others:
        with pytest.raises(UserError, match=r"evaluate.against=\S+: that run was tested on other examples"):
            check_comparable(folder, replace(SPLIT, **changes), task)
    with pytest.raises(UserError, match=r"has other classes: class 0, .*, class 4, not a, b, c, d, e"):
        check_comparable(folder, SPLIT, classification(tuple("abcde")))


def test_missing_and_damaged_predictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluate.against=abc: this run has no predictions.parquet"):
        check_other(tmp_path, "abc")
    (tmp_path / NAME).write_text("nonsense")
    with pytest.raises(UserError, match=r"abc: its predictions.parquet is damaged"):
        check_other(tmp_path, "abc")
    table = pq.read_table(made.write(tmp_path, LABELS, made.probabilities(LABELS, 5)))
    pq.write_table(table.replace_schema_metadata(), tmp_path / NAME)
    with pytest.raises(UserError, match=r"abc: its predictions.parquet is damaged"):
        check_other(tmp_path, "abc")


OTHER_METRIC = replace(classification(NAMES), metrics=(KerasMetric(keras.metrics.CategoricalAccuracy(name="mine")),))


class OtherColumns(ClassHead):
    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {"odds": rows}


def test_a_model_of_another_metric_or_of_other_columns_is_not_compared(tmp_path: Path) -> None:
    """As that of a task of the user's."""
    folder = two(tmp_path)[0]
    for task in (regression(("a",)), OTHER_METRIC):
        with pytest.raises(
            UserError, match=rf"cannot be compared: its metric is accuracy, that of this run is {task.primary}"
        ):
            check_comparable(str(folder), SPLIT, task)
    with pytest.raises(UserError, match="predictions from which it is computed"):
        check_comparable(str(folder), SPLIT, replace(task, head=OtherColumns(task.targets)))
    table = pq.read_table(folder / NAME)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"metric": b"mine"}), folder / NAME)
    with pytest.raises(
        UserError, match=r"is mine, that of this run is mine\. Expected the same metric .* one of accuracy, macro_f1"
    ):
        check_comparable(str(folder), SPLIT, OTHER_METRIC)
    pq.write_table(table.drop_columns(["probabilities"]), folder / NAME)
    with pytest.raises(UserError, match="predictions from which it is computed"):
        check_comparable(str(folder), SPLIT, classification(NAMES))
