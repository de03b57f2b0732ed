"""Predictions: those that the scores were made of, in the order of the test split, whoever has computed them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from sklearn.metrics import accuracy_score, log_loss

from benchmarks.clusters import run_workers
from stages.data.batches import evaluation_input, places
from stages.data.split import Split
from stages.evaluate import evaluate
from stages.evaluation.predictions import NAME
from stages.evaluation.test_set import facts_of
from stages.results import Dataset, Evaluation, Strategy, Trained
from stages.settings.results import EvaluateSettings
from tests import commands
from tests.stages.experiments import PLACES, mirrored, real_digits, small_cnn

pytestmark = pytest.mark.slow


def digits_101() -> Dataset:
    dataset = real_digits(8)
    return replace(dataset, test=dataset.test.take(np.arange(101)))


def evaluated(where: Strategy, folder: Path) -> Evaluation:
    """Evaluate an untrained network, whose predictions are anything, on 101 digits."""
    dataset = digits_101()
    trained = Trained(small_cnn(dataset, where), (), 1, 0)
    return evaluate(trained, dataset, where, EvaluateSettings(batch_size=50), folder)


def assert_predictions_give(evaluation: Evaluation, folder: Path) -> None:
    """Asserts that scikit-learn finds in the file what `evaluate` has returned."""
    table = pq.read_table(folder / NAME)
    labels, predicted = table["label"].to_numpy(), table["predicted"].to_numpy()
    probabilities = np.stack(table["probabilities"].to_pylist()).astype(np.float64)
    assert str(table.schema.field("probabilities").type) == "fixed_size_list<element: float>[10]"
    assert (table.num_rows, accuracy_score(labels, predicted)) == (101, evaluation.metrics["accuracy"])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), predicted)
    scaled = probabilities / probabilities.sum(axis=1, keepdims=True)
    assert log_loss(labels, scaled, labels=range(10)) == pytest.approx(evaluation.loss, abs=2e-6)


@pytest.mark.parametrize("where", ["mirrored 2", "central_storage 2", "model_parallel 2"])
def test_the_scores_follow_from_the_predictions(where: str, tmp_path: Path) -> None:
    """101 examples in batches of 50: the last has one, which fewer replicas compute than there are."""
    assert_predictions_give(evaluated(PLACES[where](), tmp_path), tmp_path)
    expected = real_digits(8).test
    table = pq.read_table(tmp_path / NAME)
    np.testing.assert_array_equal(table["example"].to_numpy(), np.asarray(expected.numbers)[:101])
    np.testing.assert_array_equal(table["label"].to_numpy(), expected.targets[:101])


def test_two_workers_write_one_file(tmp_path: Path) -> None:
    codes, output = run_workers(2, "tests.stages.evaluation.worker", str(tmp_path), start=commands.start)
    assert codes == [0, 0], output
    (tmp_path / "alone").mkdir()
    alone = evaluated(mirrored(), tmp_path / "alone")
    assert_predictions_give(alone, tmp_path / "0")
    assert not (tmp_path / "1" / NAME).exists()
    found, expected = (pq.read_table(tmp_path / folder / NAME) for folder in ("0", "alone"))
    for name in ("example", "label", "predicted"):
        assert found[name].equals(expected[name])
    one, other = (table["probabilities"].combine_chunks().flatten() for table in (found, expected))
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.smoke
@pytest.mark.parametrize("replicas", [1, 3, 5])
@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_every_example_has_one_place(replicas: int, fixed_shapes: bool) -> None:
    for count in (1, 7, 20, 23, 24):
        parts = [places(count, 10, replica, replicas, fixed_shapes) for replica in range(replicas)]
        taken = np.concatenate(parts)
        np.testing.assert_array_equal(np.sort(taken[taken >= 0]), np.arange(count))


@pytest.mark.smoke
def test_filled_up_shares_have_every_example_once() -> None:
    """Three examples left for five replicas that take two rows each, whatever they get."""
    split = Split.of_images(np.zeros((13, 2, 2, 1), np.uint8), np.arange(13, dtype=np.int32))
    counts = np.zeros(13)
    for pipeline in range(5):
        context = tf.distribute.InputContext(5, pipeline, 5)
        for _, labels, weights, _ in evaluation_input(split, 10, fixed_shapes=True)(context):
            assert len(labels) == 2
            np.add.at(counts, labels.numpy(), weights.numpy())
    np.testing.assert_array_equal(counts, np.ones(13))


@pytest.mark.smoke
def test_what_tells_test_sets_apart() -> None:
    split = real_digits(8).test
    facts = facts_of(split)
    assert facts == facts_of(replace(split))
    other_labels = replace(split, targets=np.roll(split.target_values, 1))
    other_numbers = replace(split, numbers=np.arange(len(split)))
    other_files = replace(split, files=[f"{number}.png" for number in range(len(split))])
    other_weights = replace(split, weights=np.ones(len(split)))
    for other in (other_labels, other_numbers, other_files, other_weights):
        assert facts_of(other)["test_examples"] != facts["test_examples"]
    other_pixels = facts_of(replace(split, features={"images": split.images[::-1]}))
    assert other_pixels["test_examples"] == facts["test_examples"]
    assert other_pixels["test_pixels"] != facts["test_pixels"]
    assert facts["test_pixels"].startswith("8x8x1 ")
