"""Training on tables: numbers beside embedded categories, the same on any replicas, from memory and from the disk."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.callbacks.build import build_callbacks
from stages.errors import UserError
from stages.load.arrays import dataset_of_result
from stages.load.table import table
from stages.normalize import normalize
from stages.reporter import Silent
from stages.results import Dataset, Model, Strategy
from stages.settings.images import NormalizeSettings
from stages.settings.model import CnnSettings, MlpSettings, WideAndDeepSettings
from stages.settings.table import TableSettings
from tests.stages.experiments import (
    adam,
    after_steps,
    assert_replicas_equal_one_device,
    built_of,
    flat,
    one_device,
    settings,
)

ROWS = 611
STEPS = 25
TARGETS = {
    "classification": "color",
    "regression": "price",
    "several": ["price", "rent"],
    "labels": ["is_red", "is_even"],
}


@functools.cache
def csv(folder: Path) -> str:
    random = np.random.default_rng(11)
    path = folder / "table.csv"
    size, shop = random.normal(10, 3, ROWS), random.integers(0, 60, ROWS)
    colors = ("red", "blue", "green")
    lines = ["size,shop,grade,color,price,rent,is_red,is_even"] + [
        f"{'' if row % 9 == 0 else f'{size[row]:.3f}'},s{shop[row]},{row % 4},{colors[shop[row] % 3]},"
        f"{1e5 + 1e4 * size[row] + 500 * shop[row]:.1f},{shop[row] / 7 + random.normal():.3f},"
        f"{int(shop[row] % 3 == 0)},{int(shop[row] % 2 == 0)}"
        for row in range(ROWS)
    ]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def dataset(folder: Path, task: str, cache: Path | None = None, **given: Any) -> Dataset:
    labels = {} if task == "labels" else dict.fromkeys(TARGETS["labels"], "leave_out")
    loaded = table(TableSettings(files=csv(folder), target=TARGETS[task], **{"features": labels, **given}), cache=cache)
    return normalize(loaded, NormalizeSettings(), cache=cache)


def build(data: Dataset, where: Strategy, network: Any = None, policy: str = "float32") -> Model:
    network = network or MlpSettings(hidden=[16], dropout=0.2)
    return built_of(network, data, where, policy)


@pytest.mark.parametrize(("task", "replicas"), [("classification", 2), *((task, 3) for task in TARGETS)])
def test_replicas_equal_one_device(folder: Path, task: str, replicas: int) -> None:
    """With embeddings of categories; 7 of 8 steps an epoch, the last one of 439 rows has 55."""
    data = dataset(folder, task)
    assert set(data.train.inputs) == {"numbers", "shop"}
    assert_replicas_equal_one_device(data, settings(batch_size=64), STEPS, build, replicas)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_every_network_learns(folder: Path, policy: str) -> None:
    data = dataset(folder, "classification")
    given = settings(batch_size=64, optimizer=adam(learning_rate=0.01))
    for network in (MlpSettings(hidden=[32]), WideAndDeepSettings(hidden=[32])):
        _, means = after_steps(one_device(), data, given, 200, functools.partial(build, network=network, policy=policy))
        assert means["accuracy"] > 0.7


def test_a_metric_that_the_task_does_not_have_is_refused(folder: Path) -> None:
    task = dataset(folder, "regression").task
    with pytest.raises(UserError, match=r"monitor=val_accuracy.*Expected one of: val_loss, val_rmse, val_mae, val_r2"):
        build_callbacks(settings(monitor="val_accuracy"), task, Silent())
    best, _ = build_callbacks(settings(monitor="val_r2"), task, Silent())
    assert best.monitor == "val_r2"
    best, _ = build_callbacks(settings(monitor="val_macro_f1"), dataset(folder, "labels").task, Silent())
    assert best.monitor == "val_macro_f1"


def test_labels_are_learned(folder: Path) -> None:
    given = settings(batch_size=64, optimizer=adam(learning_rate=0.01), class_weights="balanced")
    data = dataset(folder, "labels", features=["size", "shop", "grade"])
    _, means = after_steps(one_device(), data, given, 200, functools.partial(build, network=MlpSettings(hidden=[32])))
    assert means["macro_f1"] > 0.8
    assert means["exact_match"] > 0.6


def test_a_network_of_images_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"cnn takes images, and table.csv has size \(number\).*Try: model=auto"):
        build(dataset(folder, "regression"), one_device(), CnnSettings())


def test_vectors_train_the_same_on_replicas() -> None:
    random = np.random.default_rng(2)
    vectors, colors = random.normal(size=(ROWS, 6)), random.choice(["red", "blue"], ROWS)
    made = dataset_of_result(({"parts": vectors, "color": colors}, vectors @ np.arange(6.0)))
    data = normalize(made, NormalizeSettings())
    assert_replicas_equal_one_device(data, settings(batch_size=64), STEPS, build)


def test_from_the_disk_the_same_weights(folder: Path, tmp_path: Path) -> None:
    given = settings(batch_size=64)
    streamed = dataset(folder, "classification", cache=tmp_path, memory_gib=0.0)
    networks = [
        after_steps(one_device(), data, given, STEPS, build)[0].network
        for data in (dataset(folder, "classification"), streamed)
    ]
    np.testing.assert_array_equal(flat(networks[1]), flat(networks[0]))
