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
from stages.load.table import table
from stages.model import model
from stages.normalize import normalize
from stages.results import Dataset, Model, Strategy
from stages.settings.images import NormalizeSettings
from stages.settings.model import MlpSettings, ModelSettings, PrecisionSettings
from stages.settings.table import TableSettings
from stages.settings.task import AutoTaskSettings, MultiLabelSettings, RegressionSettings
from tests import commands
from tests.stages.experiments import after_steps, flat, mirrored, one_device, settings

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

OF_WORKERS = [(name, policy) for policy in ("float32", "mixed_bfloat16") for name in CASES]


@functools.cache
def file_of(name: str, folder: Path) -> tuple[str, list[str]]:
    """Writes a set of scikit-learn's with weights of examples; returns its file and its targets."""
    random = np.random.default_rng(1)
    if name == "labels":
        values = random.normal(size=(300, 4))
        frame = pd.DataFrame(values, columns=[*"abcd"])
        targets = ["warm", "wet"]
        frame = frame.assign(warm=(frame.a + frame.b > 0.5).astype(int), wet=(frame.c > 0).astype(int))
    else:
        bunch: Any = getattr(datasets, f"load_{name}")(as_frame=True)
        frame = bunch.frame
        targets = [*bunch.target.columns] if isinstance(bunch.target, pd.DataFrame) else ["target"]
    frame.assign(weight=random.uniform(0.2, 2, len(frame)).round(3)).to_csv(folder / f"{name}.csv", index=False)
    return str(folder / f"{name}.csv"), targets


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


def dataset(name: str, folder: Path) -> Dataset:
    file, targets = file_of(name, folder)
    target = targets if len(targets) > 1 else targets[0]
    given = TableSettings(files=file, target=target, weight="weight", task=CASES[name][0], val_fraction=0.2)
    return normalize(table(given), NormalizeSettings())


def build(data: Dataset, where: Strategy, task: Any, policy: str = "float32") -> Model:
    network = MlpSettings(hidden=[16], dropout=0.2)
    return model(
        data, where, ModelSettings(network=network, precision=PrecisionSettings(policy=policy), seed=1, task=task)
    )


def trained(name: str, folder: Path, where: Strategy, policy: str = "float32") -> tuple[np.ndarray, dict[str, float]]:
    """Returns the weights after some epochs, the last steps of which have few examples, and the means of the steps."""
    task, given = CASES[name]
    data = dataset(name, folder)
    batch = 7 if name == "linnerud" else 64
    made = functools.partial(build, task=task, policy=policy)
    network, means = after_steps(where, data, settings(batch_size=batch, **given), STEPS, made)
    return flat(network.network), means


@pytest.fixture(scope="module")
def alone(folder: Path) -> Any:
    return functools.cache(lambda name, policy="float32": trained(name, folder, one_device(), policy))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_equal_one_device(name: str, replicas: int, folder: Path, alone: Any) -> None:
    """2e-7 of the largest weight; the sums of metrics are added in float64."""
    weights, means = alone(name)
    several, of_several = trained(name, folder, mirrored(replicas))
    record(f"{name} mirrored {replicas} float32", weights, several, means, of_several)
    np.testing.assert_allclose(several, weights, rtol=0, atol=2e-7 * max(1, np.abs(weights).max()))
    assert of_several == pytest.approx(means, rel=5e-7, abs=1e-7)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_in_half_precision_replicas_equal_one_device_to_its_digits(
    name: str, policy: str, folder: Path, alone: Any
) -> None:
    """Each replica rounds its own sums; the loss scale is one for all."""
    weights, means = alone(name, policy)
    several, of_several = trained(name, folder, mirrored(2), policy)
    record(f"{name} mirrored 2 {policy}", weights, several, means, of_several)
    digits = 2.0**-8 if policy == "mixed_bfloat16" else 2.0**-11
    assert np.abs(several - weights).max() <= digits * max(1, np.abs(weights).max())
    assert of_several["loss"] == pytest.approx(means["loss"], rel=8 * digits)


@pytest.fixture(scope="module")
def two_workers(folder: Path) -> Path:
    """What every case of `OF_WORKERS` is trained to by one cluster of two processes."""
    arguments = (str(folder), json.dumps(OF_WORKERS))
    codes, output = run_workers(2, "tests.stages.training.task_worker", *arguments, start=commands.start)
    assert codes == [0, 0], output
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), OF_WORKERS)
def test_two_workers_equal_one_device(name: str, policy: str, folder: Path, two_workers: Path, alone: Any) -> None:
    """And each other, to the bit."""
    weights, means = alone(name, policy)
    found = [dict(np.load(two_workers / str(index) / f"{name}-{policy}.npz")) for index in (0, 1)]
    several, other = (of_worker.pop("weights") for of_worker in found)
    np.testing.assert_array_equal(other, several)
    record(f"{name} multi_worker {policy}", weights, several, means, found[0])
    near = 2e-7 if policy == "float32" else 2.0**-8
    np.testing.assert_allclose(several, weights, rtol=0, atol=near * max(1, np.abs(weights).max()))
    assert found[0] == pytest.approx(means, rel=5e-7 if policy == "float32" else np.inf, abs=1e-7)


def record(what: str, weights: np.ndarray, several: np.ndarray, means: Any, of_several: Any) -> None:
    """Prints the largest differences, for `pytest -s`."""
    metrics = max(abs(of_several[name] - means[name]) / max(abs(means[name]), 1e-9) for name in means)
    print(f"{what}: weights {np.abs(several - weights).max():.1e}, metrics {metrics:.1e}")
