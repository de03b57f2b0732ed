"""`precision.layers`: layers by the patterns of their names, in networks of any kind, on any number of replicas."""

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.networks.keras_internals import all_layers
from stages.results import Dataset, Model
from stages.settings.model import CnnSettings, PrecisionSettings, ResnetSettings
from tests.stages.experiments import built_of, one_device, real_digits

CONVOLUTIONS = {"conv2d*": "mixed_bfloat16"}


@functools.cache
def digits() -> Dataset:
    return real_digits(128)


def built(layers: dict[str, str], network: Any = None, policy: str = "float32") -> Model:
    precision = PrecisionSettings(policy=policy, layers=layers)
    network = network or CnnSettings(filters=[8, 16], dropout=0.0)
    return built_of(network, digits(), one_device(), precision=precision)


def computes(network: keras.Model, kind: Any) -> set[str]:
    layers = all_layers(network, include_self=False)
    return {layer.compute_dtype for layer in layers if isinstance(layer, kind)}


class Subclassed(keras.Model):
    """Layers in attributes, one of them in a wrapper."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.flat = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(8, name="hidden")
        self.last = keras.layers.Dense(classes, dtype="float32", name="last")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.last(self.hidden(self.flat(inputs)))


def subclassed(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    return Subclassed(num_classes)


def test_matching_layers_compute_in_their_policy_and_keep_float32_variables() -> None:
    result = built(CONVOLUTIONS)
    core = result.network.core
    assert computes(core, keras.layers.Conv2D) == {"bfloat16"}
    assert computes(core, keras.layers.Dense) == {"float32"}
    assert {weight.dtype for weight in core.weights} == {"float32"}
    assert (result.policy, result.record.params["policy"]) == ("mixed_bfloat16", "float32")


@pytest.mark.parametrize(("network", "pattern", "kind"), [
    ({"_target_": f"{__name__}.subclassed"}, "hidden", keras.layers.Dense),
    (ResnetSettings(blocks=1, filters=[4, 8, 8]), "conv2d*", keras.layers.Conv2D),
])  # fmt: skip
def test_networks_of_any_kind(network: Any, pattern: str, kind: type) -> None:
    result = built({pattern: "mixed_bfloat16"}, network=network)
    assert "bfloat16" in computes(result.network, kind)


def test_a_network_that_is_built_again_has_the_same_layers() -> None:
    first, second = built({"conv2d_1": "mixed_bfloat16"}), built({"conv2d_1": "mixed_bfloat16"})
    for result in (first, second):
        dtypes = [layer.compute_dtype for layer in result.network.core.layers if isinstance(layer, keras.layers.Conv2D)]
        assert dtypes == ["float32", "bfloat16"]
    assert computes(second.in_float32.network, keras.layers.Conv2D) == {"float32"}


def test_all_layers_in_a_policy_are_the_policy_to_the_bit() -> None:
    images = tf.cast(digits().train.images[:8], tf.float32)
    layered, whole = built({"*": "mixed_bfloat16"}), built({}, policy="mixed_bfloat16")
    np.testing.assert_array_equal(layered.network(images), whole.network(images))
    assert not np.array_equal(layered.network(images), built({}).network(images))


def test_the_policies_are_kept_by_a_keras_file(tmp_path: Path) -> None:
    core = built(CONVOLUTIONS).network.core
    core.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    assert computes(restored, keras.layers.Conv2D) == {"bfloat16"}
    images = tf.cast(digits().train.images[:8], tf.float32)
    np.testing.assert_array_equal(restored(images), core(images))


@pytest.mark.parametrize(("layers", "message"), [
    ({"conv3d*": "mixed_bfloat16"}, r"conv3d\* does not match any layer.*Expected one of: conv2d, "),
    ({"conv*": "float32", "conv2d_1": "mixed_bfloat16"}, "conv2d_1 does not match any layer, or earlier patterns"),
    ({"dense": "mixed_bfloat16"}, "the network returns bfloat16"),
])  # fmt: skip
def test_patterns_that_change_nothing_or_too_much_are_refused(layers: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        built(layers)


@pytest.mark.parametrize(
    ("policy", "of_layer", "named"), [("float32", "bfloat16", "bfloat16"), ("float64", "float32", "float64")]
)
def test_policies_that_cannot_be_mixed_are_refused(policy: str, of_layer: str, named: str) -> None:
    with pytest.raises(
        UserError, match=f"precision.layers does not support the policy {named}, whose variables are not"
    ):
        PrecisionSettings(policy=policy, layers={"a": of_layer}).check("precision")


def test_the_policy_of_the_fewest_digits_decides_how_a_network_is_trained() -> None:
    for policy, layers, lowest in (
        ("float32", {}, "float32"),
        ("float32", {"a": "mixed_bfloat16"}, "mixed_bfloat16"),
        ("mixed_bfloat16", {"a": "float32", "b": "mixed_float16"}, "mixed_float16"),
        ("float64", {}, "float64"),
        ("float32", {"a": "mixed", "b": "mixed_bfloat16"}, "mixed"),
    ):
        assert PrecisionSettings(policy=policy, layers=layers).lowest == lowest
