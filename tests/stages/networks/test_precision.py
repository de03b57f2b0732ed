"""Half precision reaches the accuracy of float32, and the loss and the last layer keep float32."""

import dataclasses
import functools
from pathlib import Path

import pytest

from benchmarks.cases import real_digits
from stages.evaluation.eval_step import Scorer
from stages.load.tfds import tfds
from stages.model import model
from stages.normalize import normalize
from stages.results import Dataset, Split
from stages.settings.data import TfdsSettings
from stages.settings.images import NormalizeSettings
from stages.settings.model import CnnSettings, MlpSettings, ModelSettings, PrecisionSettings
from stages.settings.optimizer import AdamSettings, ScheduleSettings
from stages.settings.train import TrainSettings
from stages.train import train
from tests.conftest import shared
from tests.stages.experiments import mirrored

pytestmark = pytest.mark.slow

HALF = ("mixed_bfloat16", "mixed_float16")


def accuracy(dataset: Dataset, network: object, policy: str, epochs: int, batch_size: int) -> float:
    """Returns the test accuracy of two replicas."""
    where = mirrored(2)
    built = model(dataset, where, ModelSettings(network=network, precision=PrecisionSettings(policy=policy), seed=1))
    settings = TrainSettings(
        epochs=epochs,
        batch_size=batch_size,
        optimizer=AdamSettings(learning_rate=0.002),
        schedule=ScheduleSettings(),
        seed=1,
    )
    trained = train(built, dataset, where, settings)
    return Scorer(where, trained.model, dataset.num_classes).score(dataset.test, 256).accuracy


@functools.cache
def on_digits(policy: str) -> float:
    return accuracy(real_digits(1293), CnnSettings(dropout=0.0), policy, epochs=20, batch_size=64)


@functools.cache
def mnist(folder: Path) -> Dataset:
    """Returns MNIST with every third training image."""
    dataset = normalize(tfds(TfdsSettings(name="mnist", dir=str(folder), split_seed=1)), NormalizeSettings())
    split = Split(dataset.train.images[::3], dataset.train.labels[::3])
    return dataclasses.replace(dataset, train=split)


@functools.cache
def on_mnist(policy: str, folder: Path) -> float:
    return accuracy(mnist(folder), MlpSettings(hidden=[256]), policy, epochs=3, batch_size=128)


@pytest.mark.parametrize("policy", HALF)
def test_mixed_precision_reaches_float32_on_digits(policy: str) -> None:
    assert on_digits("float32") >= 0.97
    assert abs(on_digits(policy) - on_digits("float32")) <= 0.01


@pytest.mark.parametrize("policy", HALF)
def test_mixed_precision_reaches_float32_on_mnist(policy: str) -> None:
    folder = shared("tfds")
    assert on_mnist("float32", folder) >= 0.95
    assert abs(on_mnist(policy, folder) - on_mnist("float32", folder)) <= 0.01


@pytest.mark.parametrize(
    ("policy", "compute", "variable", "last"),
    [
        ("float32", "float32", "float32", "float32"),
        ("mixed_float16", "float16", "float32", "float32"),
        ("mixed_bfloat16", "bfloat16", "float32", "float32"),
        ("float16", "float16", "float16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16", "float32"),
        ("float64", "float64", "float64", "float64"),
    ],
)
def test_layers_compute_in_their_dtypes(policy: str, compute: str, variable: str, last: str) -> None:
    given = ModelSettings(network=CnnSettings(), precision=PrecisionSettings(policy=policy), seed=1)
    core = model(real_digits(64), mirrored(2), given).network.core
    convolution, dense = core.layers[0], core.layers[-1]
    assert (convolution.compute_dtype, convolution.kernel.dtype) == (compute, variable)
    assert dense.compute_dtype == last
