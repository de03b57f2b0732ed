"""Laws of every task: replicas equal one device, also with weights, and with losses and metrics of the user's."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from benchmarks.clusters import run_workers
from stages.normalize import normalize
from stages.results import Dataset, Strategy
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings
from stages.settings.train import AutoTaskSettings, MultiLabelSettings, RegressionSettings, SgdSettings
from stages.train import train
from tests import commands
from tests.stages.experiments import after_steps, built_of, flat, mirrored, one_device, settings, table_of

STEPS = 25

HUBER = {"_target_": "keras.losses.Huber", "delta": 2.0}
MAPE = {"_target_": "keras.metrics.MeanAbsolutePercentageError", "name": "mape"}
F1 = {"_target_": "keras.metrics.F1Score", "average": "macro"}

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "wine": (AutoTaskSettings(metrics=[F1]), {"class_weights": "balanced", "label_smoothing": 0.1}),
    "breast_cancer": (AutoTaskSettings(single_logit=True), {"class_weights": [3.0, 0.5]}),
    "labels": (MultiLabelSettings(metrics=[F1]), {"class_weights": "balanced"}),
    "linnerud": (RegressionSettings(loss=HUBER, metrics=[MAPE]), {}),
    "diabetes": (RegressionSettings(loss={"_target_": "keras.losses.MeanAbsoluteError"}), {}),
}
"""From sets to their tasks and the settings of their training."""

OF_WORKERS = [*((name, "float32") for name in ("wine", "labels", "linnerud")), ("labels", "mixed_bfloat16")]
"""A task of each kind; a different loss of one changes nothing between workers."""


@functools.cache
def dataset(name: str, folder: Path) -> Dataset:
    """Return a set of scikit-learn's with weights of examples."""
    random = np.random.default_rng(1)
    if name == "labels":
        target: Any = ["warm", "wet"]
        frame = pd.DataFrame(random.normal(size=(300, 4)), columns=[*"abcd"])
        frame = frame.assign(warm=(frame.a + frame.b > 0.5).astype(int), wet=(frame.c > 0).astype(int))
    else:
        bunch: Any = getattr(datasets, f"load_{name}")(as_frame=True)
        frame = bunch.frame
        target = [*bunch.target.columns] if isinstance(bunch.target, pd.DataFrame) else "target"
    frame = frame.assign(weight=random.uniform(0.2, 2, len(frame)).round(3))
    loaded = table_of(folder, frame, target=target, weight="weight", task=CASES[name][0], val_fraction=0.2)
    return normalize(loaded, NormalizeSettings())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


def trained(name: str, folder: Path, where: Strategy, policy: str = "float32") -> tuple[np.ndarray, dict[str, float]]:
    """Return the weights after some epochs, the last steps of which have few examples, and the means of the steps."""
    task, given = CASES[name]
    data = dataset(name, folder)
    batch = 7 if name == "linnerud" else 64
    made = functools.partial(built_of, MlpSettings(hidden=[16], dropout=0.2), policy=policy, task=task)
    network, means = after_steps(where, data, settings(batch_size=batch, **given), STEPS, made)
    return flat(network.network), means


@pytest.fixture(scope="module")
def alone(folder: Path) -> Any:
    return functools.cache(lambda name, policy="float32": trained(name, folder, one_device(), policy))


@pytest.mark.parametrize("name", CASES)
def test_replicas_equal_one_device(name: str, folder: Path, alone: Any) -> None:
    """2e-7 of the largest weight; the sums of metrics are added in float64. Three share no batch evenly."""
    weights, means = alone(name)
    several, of_several = trained(name, folder, mirrored(3))
    np.testing.assert_allclose(several, weights, rtol=0, atol=2e-7 * max(1, np.abs(weights).max()))
    assert of_several == pytest.approx(means, rel=5e-7, abs=1e-7)


def test_a_table_stops_early_by_default_and_not_if_that_is_set(folder: Path) -> None:
    """After a third of the epochs, but at least five, without a better one. Images do not: see `test_train`."""
    data, slow = dataset("diabetes", folder), SgdSettings(learning_rate=1e-12)
    for patience, epochs in (None, 6), (0, 8), (2, 3):
        where = one_device()
        model = built_of(MlpSettings(hidden=[4]), data, where, task=AutoTaskSettings())
        given = settings(epochs=8, batch_size=512, optimizer=slow, monitor="val_r2", early_stopping_patience=patience)
        assert len(train(model, data, where, given).history) == epochs


@pytest.mark.parametrize("name", ["wine", "labels", "linnerud"])
def test_with_a_loss_scale_replicas_equal_one_device_to_the_digits_of_float16(
    name: str, folder: Path, alone: Any
) -> None:
    """Of a task of each kind: each replica rounds its own sums; the loss scale is one for all."""
    weights, means = alone(name, "mixed_float16")
    several, of_several = trained(name, folder, mirrored(2), "mixed_float16")
    assert np.abs(several - weights).max() <= 2.0**-11 * max(1, np.abs(weights).max())
    assert of_several["loss"] == pytest.approx(means["loss"], rel=8 * 2.0**-11)


@pytest.fixture(scope="module")
def two_workers(folder: Path) -> Path:
    """What every case of `OF_WORKERS` is trained to by one cluster of two processes."""
    arguments = (str(folder), json.dumps(OF_WORKERS))
    codes, output = run_workers(2, "tests.stages.training.task_worker", *arguments, start=commands.start)
    assert codes == [0, 0], output
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), OF_WORKERS)
def test_two_workers_equal_one_device(name: str, policy: str, two_workers: Path, alone: Any) -> None:
    """And each other, to the bit."""
    weights, means = alone(name, policy)
    found = [dict(np.load(two_workers / str(index) / f"{name}-{policy}.npz")) for index in (0, 1)]
    several, other = (of_worker.pop("weights") for of_worker in found)
    np.testing.assert_array_equal(other, several)
    near = 2e-7 if policy == "float32" else 2.0**-8
    np.testing.assert_allclose(several, weights, rtol=0, atol=near * max(1, np.abs(weights).max()))
    assert found[0] == pytest.approx(means, rel=5e-7 if policy == "float32" else np.inf, abs=1e-7)
