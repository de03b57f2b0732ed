"""Half precision reaches the accuracy of float32, and the loss and the last layer keep float32."""

import functools

import keras
import pytest

from benchmarks.cases import real_digits
from stages.evaluation.eval_step import Scorer
from stages.settings.model import CnnSettings
from stages.settings.train import AdamSettings
from stages.train import train
from tests.stages.experiments import built_of, mirrored, one_device, settings

pytestmark = pytest.mark.slow

HALF = ("mixed_bfloat16", "mixed_float16")


@functools.cache
def on_digits(policy: str) -> float:
    """Return the test accuracy of two replicas of convolutions and a dense layer: an mlp has nothing else."""
    dataset, where = real_digits(1293), mirrored(2)
    built = built_of(CnnSettings(filters=[8, 16], dropout=0.0), dataset, where, policy)
    given = settings(epochs=8, batch_size=32, optimizer=AdamSettings(learning_rate=0.004))
    trained = train(built, dataset, where, given)
    return Scorer(where, trained.model).score(dataset.test, 256).metrics["accuracy"]


@pytest.mark.parametrize("policy", HALF)
def test_mixed_precision_reaches_float32(policy: str) -> None:
    assert on_digits("float32") >= 0.95
    assert abs(on_digits(policy) - on_digits("float32")) <= 0.01


@pytest.mark.parametrize(("policy", "compute", "variable", "last"), [
    ("float32", "float32", "float32", "float32"), ("mixed_float16", "float16", "float32", "float32"),
    ("mixed_bfloat16", "bfloat16", "float32", "float32"), ("float16", "float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16", "float32"), ("float64", "float64", "float64", "float64"),
])  # fmt: skip
def test_layers_compute_in_their_dtypes(policy: str, compute: str, variable: str, last: str) -> None:
    before = keras.config.dtype_policy().name
    network = built_of(CnnSettings(), real_digits(64), one_device(), policy).network
    assert keras.config.dtype_policy().name == before
    assert network.get_layer("scaling").compute_dtype == last
    convolution, dense = network.core.layers[0], network.core.layers[-1]
    assert (convolution.compute_dtype, convolution.kernel.dtype) == (compute, variable)
    assert dense.compute_dtype == last
