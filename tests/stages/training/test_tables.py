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
from stages.settings.model import CnnSettings, MlpSettings, TextCnnSettings, TransformerSettings, WideAndDeepSettings
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


def test_every_network_learns(frame: pd.DataFrame, tmp_path: Path) -> None:
    data = dataset(frame, tmp_path, "classification")
    given = settings(batch_size=64, optimizer=adam(learning_rate=0.01))
    for network in (MlpSettings(hidden=[32]), WideAndDeepSettings(hidden=[32])):
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
    given = settings(batch_size=64)
    streamed = dataset(frame, tmp_path, "classification", tmp_path / "cache", memory_gib=0.0)
    networks = [
        after_steps(one_device(), data, given, STEPS, build)[0].network
        for data in (dataset(frame, tmp_path, "classification"), streamed)
    ]
    np.testing.assert_array_equal(flat(networks[1]), flat(networks[0]))
