"""Small experiments by hand, without the framework."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cases import engine_of
from stages.data.columns import Streamed
from stages.data.split import Split
from stages.data.splits import dataset_of
from stages.declared import declared_by
from stages.features.images import ImageFeature
from stages.features.kinds import IMAGES, Feature
from stages.features.numbers import NumberFeature
from stages.load.digits import digits
from stages.load.table import table
from stages.model import model
from stages.networks.precision import keras_floats
from stages.normalize import normalize
from stages.optimization.optimizers import build_optimizer
from stages.results import Dataset, Model, Strategy
from stages.settings import strategy as kinds
from stages.settings.data import AugmentSettings, DigitsSettings, NormalizeSettings
from stages.settings.model import CnnSettings, ModelSettings, PrecisionSettings
from stages.settings.table import TableSettings
from stages.settings.train import AdamSettings, ScheduleSettings, SgdSettings, TrainSettings
from stages.strategy import strategy
from stages.tasks.classification import classification
from stages.tasks.task import Task
from stages.training.synchronous import Synchronous


def one_device() -> Strategy:
    return strategy(kinds.OneDeviceSettings(deterministic=False, device="/cpu:0"))


def mirrored(replicas: int = 2) -> Strategy:
    return strategy(kinds.MirroredSettings(deterministic=False, cpu_replicas=replicas))


def central_storage() -> Strategy:
    return strategy(kinds.CentralStorageSettings(deterministic=False))


def model_parallel() -> Strategy:
    return strategy(kinds.ModelParallelSettings(deterministic=False))


PLACES: dict[str, Callable[[], Strategy]] = {
    "one device": one_device, "default": lambda: strategy(kinds.DefaultSettings(deterministic=False)),
    "mirrored 2": mirrored, "mirrored 3": lambda: mirrored(3), "central_storage 2": central_storage,
    "model_parallel 2": model_parallel,
}  # fmt: skip


def real_digits(train: int | None = None) -> Dataset:
    """Return scaled digits, the training split cut to `train` examples."""
    dataset = normalize(digits(DigitsSettings(split_seed=1)), NormalizeSettings())
    if train is None:
        return dataset
    return replace(dataset, train=dataset.train.take(np.arange(train)))


def with_a_column(train: int) -> Dataset:
    """Return `train` digits with the number of the example as a second feature."""
    plain = real_digits(train)
    features: dict[str, Feature] = {**plain.features, "number": NumberFeature()}

    def wider(split: Split) -> Split:
        return replace(split, features={**split.features, "number": np.arange(len(split), dtype=np.float64)})

    return plain.with_each_split(wider, features=features)


REUSE: Any = declared_by(normalize)


def kept(trained_on: Dataset, other: Dataset, saved: Path) -> Dataset:
    """Return `other` as a run takes it that reuses the results of one on `trained_on`."""
    REUSE.save(trained_on, saved)
    found: Dataset = REUSE.restore(saved, other)
    return found


def with_bright_images(dataset: Dataset, images: np.ndarray) -> Dataset:
    """Return `dataset` with other training images, float32, whose pixels may be as great as 1e30."""
    features = {"images": ImageFeature.of(images.shape[1:], images.dtype, (0.0, 1e30))}
    train = Split.of_images(images, dataset.train.target_values)
    return replace(dataset, features=features, train=train)


def streamed(dataset: Dataset) -> Dataset:
    """Return `dataset` with images that are read at each use, by tf.data, ahead of the steps."""

    def read(split: Split) -> Split:
        images = Streamed.of(np.asarray(split.images))
        return replace(split, features={"images": images})

    return dataset.with_each_split(read)


def assemble(
    name: str, train: Split, val: Split, test: Split, names: tuple[str, ...], ends: tuple[float, float] = (0.0, 255.0)
) -> Dataset:
    """Return the data set of images in three splits, with the fingerprint of their pixels and labels."""
    images = ImageFeature.of((*train.images.shape[1:], 1)[:3], train.images.dtype, ends)
    return dataset_of(name, {"train": train, "val": val, "test": test}, classification(names), {IMAGES: images})


def built_of(network: Any, dataset: Dataset, where: Strategy, policy: str = "float32", **more: Any) -> Model:
    """Return a model of the network that settings describe; `more` are others of the model's settings."""
    precision = PrecisionSettings(policy=policy)
    return model(dataset, where, ModelSettings(**{"network": network, "precision": precision, "seed": 1, **more}))


def small_cnn(dataset: Dataset, where: Strategy, policy: str = "float32", dropout: float = 0.0, seed: int = 1) -> Model:
    return built_of(CnnSettings(filters=[8, 16], dropout=dropout), dataset, where, policy, seed=seed)


def start(
    where: Strategy, model: Model, dataset: Dataset, given: TrainSettings, jit: bool = False, first_step: int = 0
) -> Synchronous:
    """Return an engine that is about to take its first step."""
    with where.distribution.scope(), keras_floats(model.policy):
        optimizer = build_optimizer(given.optimizer, given.optimizer.learning_rate)
    engine = engine_of(where, model, dataset, optimizer, given, jit, first_step)
    assert isinstance(engine, Synchronous)
    return engine


def after_steps(
    where: Strategy, dataset: Dataset, given: TrainSettings, steps: int = 50, build: Any = None, jit: bool = False
) -> tuple[Model, dict[str, float]]:
    """Return the model after `steps` steps in one call, and the mean loss and accuracy of them."""
    model = (build or small_cnn)(dataset, where)
    means = start(where, model, dataset, replace(given, epochs=100, steps_per_call=steps), jit).run(0, steps)
    return model, means


def assert_replicas_equal_one_device(
    dataset: Dataset, given: TrainSettings, steps: int, build: Any, replicas: int = 2
) -> None:
    """Asserts that weights are equal within 2e-7 of the largest; the sums of metrics are added in float64."""
    one, means = after_steps(one_device(), dataset, given, steps, build)
    several, of_several = after_steps(mirrored(replicas), dataset, given, steps, build)
    weights = flat(one.network)
    np.testing.assert_allclose(flat(several.network), weights, rtol=0, atol=2e-7 * max(1, np.abs(weights).max()))
    assert of_several == pytest.approx(means, rel=5e-7, abs=1e-7)


def settings(**changes: object) -> TrainSettings:
    """Return settings of a short training with momentum."""
    given = TrainSettings(epochs=2, optimizer=SgdSettings(), schedule=ScheduleSettings(), seed=1)
    return replace(given, **changes)  # type: ignore[arg-type]


def strong(**changes: object) -> AugmentSettings:
    """Return settings with every change switched on."""
    given = AugmentSettings(
        horizontal_flip=True, vertical_flip=True, crop=0.3, aspect=1.33, rotation=0.1, zoom=0.2, translation=0.1,
        brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1, rand_augment=3, mixup=0.4, cutmix=1.0,
    )  # fmt: skip
    return replace(given, **changes)  # type: ignore[arg-type]


def adam(**changes: float) -> AdamSettings:
    return AdamSettings(**changes)  # type: ignore[arg-type]


def flat(network: keras.Model) -> np.ndarray:
    """Return all weights as one vector."""
    return np.concatenate([weight.ravel() for weight in network.get_weights()])


def elements(source: object, replicas: int = 1) -> list[tuple[np.ndarray, ...]]:
    """Return what an input function yields, as arrays."""
    context = tf.distribute.InputContext(1, 0, replicas)
    return [tuple(part.numpy() for part in tf.nest.flatten(element)) for element in source(context)]  # type: ignore[operator]


def table_of(folder: Path, frame: Any, cache: Path | None = None, **given: Any) -> Dataset:
    """Return the data set of a table, a frame of pandas, whose file is written to `folder`."""
    frame.to_csv(folder / "table.csv", index=False)
    return table(TableSettings(files=str(folder / "table.csv"), **given), cache=cache)


def scores_by_parts(
    task: Task, targets: np.ndarray, outputs: tf.Tensor, weights: np.ndarray, parts: int
) -> dict[str, float]:
    """Return the scores of batches of unequal sizes, whose sums are added in float64."""
    places = np.arange(len(targets))
    cuts = np.random.default_rng(0).choice(places[1:], parts - 1, replace=False)
    sums: dict[str, Any] = {"examples": weights.sum(dtype=np.float64)}
    for rows in np.split(places, np.sort(cuts)):
        given = tf.constant(targets[rows]), tf.gather(outputs, rows), tf.constant(weights[rows])
        for name, value in task.add_all(*given).items():
            sums[name] = sums.get(name, 0.0) + value.numpy().astype(np.float64)
    return task.all_scores(sums)
