"""Training on tables: numbers beside embedded categories, the same on any replicas, from memory and from the disk."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.callbacks import build_callbacks
from stages.errors import UserError
from stages.normalize import normalize
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.settings.data import NormalizeSettings
from stages.settings.model import (
    CnnSettings,
    MlpSettings,
    TabularSettings,
    TextCnnSettings,
    TransformerSettings,
    WideAndDeepSettings,
)
from stages.training.keras_fit import KerasFit
from tests.stages.experiments import (
    adam,
    after_steps,
    assert_replicas_equal_one_device,
    built_of,
    flat,
    one_device,
    settings,
    table_of,
)

ROWS, STEPS = 611, 25
TARGETS: dict[str, Any] = {"classification": "color", "regression": "price", "labels": ["is_red", "is_even"]}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    random = np.random.default_rng(11)
    size, shop = random.normal(10, 3, ROWS).round(3), random.integers(0, 60, ROWS)
    frame = pd.DataFrame({"size": np.where(np.arange(ROWS) % 9, size, np.nan), "grade": np.arange(ROWS) % 4})
    frame["shop"] = [f"s{number}" for number in shop]
    frame["color"] = np.array(["red", "blue", "green"])[shop % 3]
    frame["price"] = (1e5 + 1e4 * size + 500 * shop).round(1)
    return frame.assign(is_red=(shop % 3 == 0).astype(int), is_even=(shop % 2 == 0).astype(int))


def dataset(frame: pd.DataFrame, folder: Path, task: str, cache: Path | None = None, **given: Any) -> Dataset:
    labels = {} if task == "labels" else dict.fromkeys(TARGETS["labels"], "leave_out")
    loaded = table_of(folder, frame, cache, **{"target": TARGETS[task], "features": labels, **given})
    return normalize(loaded, NormalizeSettings(), cache=cache)


def build(data: Dataset, where: Strategy, network: Any = None, policy: str = "float32") -> Model:
    network = network or MlpSettings(hidden=[16], dropout=0.2)
    return built_of(network, data, where, policy)


def test_replicas_equal_one_device(frame: pd.DataFrame, tmp_path: Path) -> None:
    """With embeddings of categories. Of 439 rows the last step of an epoch has 55. Other tasks: test_tasks.py."""
    data = dataset(frame, tmp_path, "classification")
    assert set(data.train.inputs) == {"numbers", "shop"}
    assert_replicas_equal_one_device(data, settings(batch_size=64), STEPS, build, 3)


@pytest.mark.parametrize("task", TARGETS)
def test_members_of_replicas_equal_those_of_one_device(task: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Of classes, numbers and labels, with bins, factors and embeddings. Three replicas share no batch evenly."""
    made = functools.partial(build, network=TabularSettings(hidden=[16], dropout=0.2, members=3))
    data = dataset(frame, tmp_path, task)
    model = made(data, one_device())
    assert tuple(model.network.outputs[0].shape) == (None, 3, *data.task.head.shape)
    assert_replicas_equal_one_device(data, settings(batch_size=64), STEPS, made, 3)


def test_all_values_of_a_feature_begin_with_the_same_factor(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Of the 8 values of a binned number, and of the 16 of an embedding; a number itself has a factor of its own."""
    network = build(dataset(frame, tmp_path, "classification"), one_device(), TabularSettings(hidden=[16])).network
    [factors] = [weight.numpy() for weight in network.weights if weight.path.endswith("factors/kernel")]
    assert factors.shape[0] == 8
    repeated = [int(np.isclose(factors[:, place], factors[:, place - 1]).all()) for place in range(1, factors.shape[1])]
    runs = "".join(map(str, repeated)).split("0")
    assert sorted(len(run) + 1 for run in runs if run) == [8, 8, 16]  # size and price, and shop
    assert abs(factors.mean()) < 0.5
    assert 0.7 < factors.std() < 1.3


def test_every_network_learns(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = dataset(frame, tmp_path, "classification")
    given = settings(batch_size=64, optimizer=adam(learning_rate=0.01))
    for network in (MlpSettings(hidden=[32]), WideAndDeepSettings(hidden=[32]), TabularSettings(hidden=[32])):
        made = functools.partial(build, network=network, policy="mixed_bfloat16")
        _, means = after_steps(one_device(), data, given, 200, made)
        assert means["accuracy"] > 0.7


def test_a_metric_that_the_task_does_not_have_is_refused(frame: pd.DataFrame, tmp_path: Path) -> None:
    task = dataset(frame, tmp_path, "regression").task
    with pytest.raises(UserError, match=r"monitor=val_accuracy.*Expected one of: val_loss, val_rmse, val_mae, val_r2"):
        build_callbacks(settings(monitor="val_accuracy"), task, Reporter())
    with pytest.raises(UserError, match=r"train.monitor=rmse.*one of: val_loss, val_rmse, val_mae, val_r2, loss\."):
        build_callbacks(settings(monitor="rmse"), task, Reporter(), trained=KerasFit.logged(task))
    best, _ = build_callbacks(settings(monitor="val_r2"), task, Reporter())
    assert best.monitor == "val_r2"
    best, _ = build_callbacks(settings(monitor="val_macro_f1"), dataset(frame, tmp_path, "labels").task, Reporter())
    assert best.monitor == "val_macro_f1"


@pytest.mark.parametrize(
    ("network", "taken"), [(CnnSettings(), "images"), (TextCnnSettings(), "texts"), (TransformerSettings(), "texts")]
)
def test_a_network_of_images_or_texts_is_refused(network: Any, taken: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf" requires {taken}, but table.csv has size \(number\).*Try: model=auto"):
        build(dataset(frame, tmp_path, "regression"), one_device(), network)


def test_from_the_disk_the_same_weights(frame: pd.DataFrame, tmp_path: Path) -> None:
    """With bins, whose edges are quantiles of the same rows."""
    given, made = settings(batch_size=64), functools.partial(build, network=TabularSettings(hidden=[16], members=2))
    streamed = dataset(frame, tmp_path, "classification", tmp_path / "cache", memory_gib=0.0)
    networks = [
        after_steps(one_device(), data, given, STEPS, made)[0].network
        for data in (dataset(frame, tmp_path, "classification"), streamed)
    ]
    np.testing.assert_array_equal(flat(networks[1]), flat(networks[0]))
