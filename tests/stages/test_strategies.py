"""The laws of the strategies: whatever computes, one device's numbers come out."""

import functools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cases import CASES, build, flat, real_digits, run
from stages.results import Strategy
from stages.scoring import Scorer
from stages.settings.strategy import (
    CentralStorageSettings,
    DefaultSettings,
    MirroredSettings,
    ModelParallelSettings,
    OneDeviceSettings,
)
from stages.strategy import strategy
from tests.clusters import run_workers

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "default": lambda: strategy(DefaultSettings(deterministic=False)),
    "another device": lambda: strategy(OneDeviceSettings(deterministic=False, device="/cpu:2")),
    "mirrored 2": lambda: strategy(MirroredSettings(deterministic=False)),
    "mirrored 3": lambda: strategy(MirroredSettings(deterministic=False, cpu_replicas=3)),
    "mirrored 4, hierarchical copy": lambda: strategy(
        MirroredSettings(deterministic=False, cpu_replicas=4, reduction="hierarchical_copy")
    ),
    "central_storage 2": lambda: strategy(CentralStorageSettings(deterministic=False)),
    "central_storage 3": lambda: strategy(
        CentralStorageSettings(deterministic=False, cpu_replicas=3, parameter_device="/cpu:3")
    ),
    "model_parallel 2": lambda: strategy(ModelParallelSettings(deterministic=False)),
}
ON_WORKERS = [name for name in CASES if name != "bfloat16"]  # refused: collectives cannot send it
NOT_PLACED = ("own loss, penalty and metric", "XLA (mlp)")  # refused: no graph of layers; XLA is for one device


@functools.cache
def one_device(name: str) -> tuple[np.ndarray, dict[str, float]]:
    return run(CASES[name], strategy(OneDeviceSettings(deterministic=False, device="/cpu:0")))


def assert_equal(name: str, weights: np.ndarray, means: Mapping[str, float]) -> None:
    case, (expected, expected_means) = CASES[name], one_device(name)
    assert np.abs(weights - expected).max() <= case.bound
    for key, value in expected_means.items():
        assert means[key] == pytest.approx(value, abs=max(case.bound * 10, 2e-5)), key


@pytest.mark.parametrize("name", CASES)
def test_a_case_trains(name: str) -> None:
    """Equal weights say something only where they have moved."""
    case = CASES[name]
    start = flat(
        build(case, strategy(OneDeviceSettings(deterministic=False, device="/cpu:0")), real_digits(64)).network
    )
    assert np.abs(one_device(name)[0] - start).max() > 0.005


PAIRS = [
    (name, where) for name in CASES for where in STRATEGIES if where != "model_parallel 2" or name not in NOT_PLACED
]


@pytest.mark.parametrize(("name", "where"), PAIRS)
def test_a_strategy_equals_one_device(name: str, where: str) -> None:
    assert_equal(name, *run(CASES[name], STRATEGIES[where]()))


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, np.ndarray]:
    """What two worker processes make of all cases."""
    path = tmp_path_factory.mktemp("workers") / "results.npz"
    codes, output = run_workers(2, "benchmarks.worker", str(path), *ON_WORKERS)
    assert codes == [0, 0], output
    return dict(np.load(path))


@pytest.mark.parametrize("name", ON_WORKERS)
def test_two_workers_equal_one_device(name: str, two_workers: Mapping[str, np.ndarray]) -> None:
    found = {key.rpartition("/")[2]: value for key, value in two_workers.items() if key.rpartition("/")[0] == name}
    weights = found.pop("weights")
    assert_equal(name, weights, {key: float(value) for key, value in found.items()})


@pytest.mark.parametrize("where", STRATEGIES)
def test_scores_equal_numpy_over_the_same_predictions(where: str) -> None:
    """Loss and confusion matrix of 101 examples in batches of 33, the last of which has two."""
    dataset, made = real_digits(101), STRATEGIES[where]()
    built = build(CASES["SGD, even batches"], made, dataset)
    scores = Scorer(made, built, 10).score(dataset.train, 33)
    outputs = built.network(tf.cast(dataset.train.images, tf.float32)).numpy().astype(np.float64)
    labels = dataset.train.labels
    losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(101), labels]
    expected = np.zeros((10, 10), np.int64)
    np.add.at(expected, (labels, outputs.argmax(axis=1)), 1)
    np.testing.assert_array_equal(scores.confusion, expected)
    assert scores.loss == pytest.approx(losses.mean(), abs=1e-6)


@pytest.mark.parametrize("where", STRATEGIES)
def test_means_equal_numpy_over_the_same_predictions(where: str) -> None:
    """With a learning rate of nearly nothing the model stays the same, so the means are those of one pass."""
    from stages.settings.optimizer import SgdSettings
    from tests.stages.experiments import settings, start

    dataset, made = real_digits(133), STRATEGIES[where]()
    built = build(CASES["SGD, even batches"], made, dataset)
    given = settings(optimizer=SgdSettings(learning_rate=1e-12), batch_size=33)
    means = start(made, built, dataset, given).run(0, 5)
    outputs = built.network(tf.cast(dataset.train.images, tf.float32)).numpy().astype(np.float64)
    labels = dataset.train.labels
    losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(133), labels]
    assert means["loss"] == pytest.approx(losses.mean(), abs=1e-6)
    assert means["accuracy"] == pytest.approx((outputs.argmax(axis=1) == labels).mean(), abs=1e-7)
