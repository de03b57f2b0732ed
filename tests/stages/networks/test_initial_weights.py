"""Initial weights and random masks are those of float32 in every precision, rounded to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from stages.load.synthetic import synthetic
from stages.model import model
from stages.networks.precision import last_dtype
from stages.normalize import normalize
from stages.results import Dataset, Strategy
from stages.settings.data import SyntheticSettings
from stages.settings.images import NormalizeSettings
from stages.settings.model import (
    ApplicationSettings,
    CnnPhotoSettings,
    CnnSettings,
    MlpSettings,
    ModelSettings,
    PrecisionSettings,
    ResnetSettings,
)
from stages.settings.strategy import ModelParallelSettings
from stages.strategy import strategy
from tests.stages.experiments import mirrored, one_device

pytestmark = pytest.mark.slow

POLICIES = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64")


class Table(keras.layers.Layer):
    """Makes weights in every way that a layer can: by name, function, array, and variables of its own."""

    def build(self, shape: Any) -> None:
        channels = int(shape[-1])
        self.by_name = self.add_weight(shape=(channels, 5), initializer="lecun_normal", name="a")
        self.by_function = self.add_weight(shape=(3, 4), initializer=_uneven, name="b")
        self.by_lambda = self.add_weight(
            shape=(7,), initializer=lambda shape, dtype: keras.random.normal(shape, dtype=dtype, seed=5), name="c"
        )
        self.by_array = keras.Variable(np.linspace(0, 1, 11), dtype=self.variable_dtype, name="d")
        self.drawn = keras.Variable(keras.random.uniform((6,), dtype=self.variable_dtype, seed=7), name="e")
        self.count = self.add_weight(shape=(2,), initializer="ones", dtype="int32", trainable=False, name="f")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        total = sum(tf.reduce_sum(part.value) for part in (self.by_function, self.by_lambda, self.by_array, self.drawn))
        return tf.matmul(inputs, self.by_name) + tf.cast(total, inputs.dtype)


def _uneven(shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
    """Returns float64 values whatever the dtype, as NumPy does."""
    return np.random.default_rng(3).normal(size=shape)


def own(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Returns a network with a network inside, own layers, and initializers of every kind."""
    inner = keras.Sequential([keras.Input((8,)), Table(), keras.layers.Dense(6, kernel_initializer="he_uniform")])
    inputs = keras.Input(input_shape)
    outputs = keras.layers.Conv2D(8, 3, kernel_initializer=keras.initializers.VarianceScaling(2.0))(inputs)
    outputs = keras.layers.BatchNormalization()(outputs)
    outputs = keras.layers.GlobalAveragePooling2D()(outputs)
    outputs = inner(keras.layers.LayerNormalization()(outputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes, dtype=last_dtype())(outputs))


class Lazy(keras.Model):
    """A network that makes its weights when it is first called."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(5, kernel_initializer=keras.initializers.RandomNormal(0.3))
        self.head = keras.layers.Dense(num_classes, dtype=last_dtype())

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.head(self.hidden(self.flatten(inputs)))


def lazy(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    return Lazy(num_classes)


NETWORKS: dict[str, Any] = {
    "mlp": MlpSettings(),
    "cnn": CnnSettings(filters=[4, 8]),
    "cnn_photo": CnnPhotoSettings(filters=[4, 8], dropout=0.1),
    "resnet": ResnetSettings(blocks=1, filters=[4, 8]),
    "mobilenet": ApplicationSettings(name="MobileNetV2", arguments={"alpha": 0.35}),
    "own": {"_target_": f"{__name__}.own"},
    "lazy": {"_target_": f"{__name__}.lazy"},
}


@pytest.fixture(scope="module")
def images() -> Dataset:
    given = SyntheticSettings(examples=60, test_examples=6, height=32, width=32, num_classes=3)
    return normalize(synthetic(given), NormalizeSettings(method="rescale"))


def weights(dataset: Dataset, network: Any, policy: str, where: Strategy, seed: int = 1, **more: Any) -> list[Any]:
    given = ModelSettings(network=network, precision=PrecisionSettings(policy=policy), seed=seed, **more)
    return [(variable.dtype, np.array(variable)) for variable in model(dataset, where, given).network.weights]


def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    return value.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def equal(found: list[Any], float32: list[Any]) -> None:
    assert len(found) == len(float32)
    for (dtype, value), (_, expected) in zip(found, float32, strict=True):
        np.testing.assert_array_equal(value.astype(np.float64), rounded(expected, dtype).astype(np.float64))


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_weights_are_those_of_float32_rounded(name: str, images: Dataset) -> None:
    float32 = weights(images, NETWORKS[name], "float32", one_device())
    trained = [value for dtype, value in float32 if dtype == "float32" and value.ndim > 1]
    assert min(value.std() for value in trained) > 1e-3
    for policy in ("bfloat16",) if name == "mobilenet" else POLICIES:
        found = weights(images, NETWORKS[name], policy, one_device())
        kinds = {dtype for dtype, _ in found if "float" in dtype}
        assert kinds >= {"float32" if policy.startswith("mixed") else policy}
        equal(found, float32)


@pytest.mark.parametrize("where", [lambda: mirrored(2), lambda: strategy(ModelParallelSettings(deterministic=False))])
def test_they_are_under_every_strategy(where: Callable[[], Strategy], images: Dataset) -> None:
    network = NETWORKS["cnn"]
    float32 = weights(images, network, "float32", one_device())
    for policy in ("float32", "mixed_float16", "float16", "float64"):
        equal(weights(images, network, policy, where()), float32)


def test_pretrained_weights_are_rounded_too(images: Dataset, tmp_path: Path) -> None:
    network = NETWORKS["cnn"]
    donor = model(images, one_device(), ModelSettings(network=network, precision=PrecisionSettings(policy="float32")))
    donor.network.save_weights(tmp_path / "donor.weights.h5")
    float32 = weights(images, network, "float32", one_device(), weights=str(tmp_path / "donor.weights.h5"))
    for policy in ("float64", "bfloat16", "float16"):
        equal(weights(images, network, policy, one_device(), weights=str(tmp_path / "donor.weights.h5")), float32)
