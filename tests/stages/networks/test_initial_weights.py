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
from stages.networks.precision import last_dtype
from stages.normalize import normalize
from stages.results import Dataset, Strategy
from stages.settings.data import NormalizeSettings, SyntheticSettings
from stages.settings.model import CnnPhotoSettings, CnnSettings, MlpSettings
from tests.stages.experiments import built_of, mirrored, model_parallel, one_device

pytestmark = pytest.mark.slow

POLICIES = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64")


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
    "cnn_photo": CnnPhotoSettings(filters=[4, 8], dropout=0.1),
    "lazy": {"_target_": f"{__name__}.lazy"},
}


@pytest.fixture(scope="module")
def images() -> Dataset:
    given = SyntheticSettings(examples=60, test_examples=6, height=32, width=32, num_classes=3)
    return normalize(synthetic(given), NormalizeSettings(method="rescale"))


def weights(dataset: Dataset, network: Any, policy: str, where: Strategy, seed: int = 1, **more: Any) -> list[Any]:
    built = built_of(network, dataset, where, policy, seed=seed, **more)
    return [(variable.dtype, np.array(variable)) for variable in built.network.weights]


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
    for policy in POLICIES:
        found = weights(images, NETWORKS[name], policy, one_device())
        kinds = {dtype for dtype, _ in found if "float" in dtype}
        assert kinds >= {"float32" if policy.startswith("mixed") else policy}
        equal(found, float32)


@pytest.mark.parametrize("where", [mirrored, model_parallel])
def test_they_are_under_every_strategy(where: Callable[[], Strategy], images: Dataset) -> None:
    network = CnnSettings(filters=[4, 8])
    float32 = weights(images, network, "float32", one_device())
    for policy in ("float32", "mixed_float16", "float64"):
        equal(weights(images, network, policy, where()), float32)
    other = weights(images, network, "float32", where(), seed=2)
    assert max(np.abs(one[1] - two[1]).max() for one, two in zip(other, float32, strict=True)) > 0.01


def test_pretrained_weights_are_rounded_too(images: Dataset, tmp_path: Path) -> None:
    network = CnnSettings(filters=[4, 8])
    built_of(network, images, one_device(), seed=2).network.save_weights(tmp_path / "donor.weights.h5")
    float32 = weights(images, network, "float32", one_device(), weights=str(tmp_path / "donor.weights.h5"))
    for policy in ("float64", "bfloat16"):
        equal(weights(images, network, policy, one_device(), weights=str(tmp_path / "donor.weights.h5")), float32)
