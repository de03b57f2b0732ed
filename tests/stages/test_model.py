"""The model: scaling inside, the right precision, outputs that are what they are taken for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.exporters.saved_model import SavedModel
from stages.load.digits import digits
from stages.load.synthetic import synthetic
from stages.model import model, resolve_policy
from stages.normalize import normalize
from stages.results import Model, Normalization, Strategy
from stages.settings.data import DigitsSettings, NormalizeSettings, SyntheticSettings
from stages.settings.model import CnnSettings, MlpSettings, ModelSettings, PrecisionSettings
from tests.stages.experiments import built_of, one_device, real_digits
from tests.stages.images import Telling

SCALE = NormalizeSettings()


def with_probabilities(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    layers = [keras.layers.Input(input_shape), keras.layers.Flatten()]
    return keras.Sequential([*layers, keras.layers.Dense(num_classes, activation="softmax", dtype="float32")])


def with_wishes(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    return with_probabilities(input_shape, num_classes)


with_wishes.preprocessing = lambda: Normalization((2 / 255,), (-1.0,))  # type: ignore[attr-defined]


def build(network: object, policy: str = "float32", outputs: str = "logits") -> Model:
    return built_of(network, real_digits(), one_device(), policy, outputs=outputs)


def test_scaling_is_inside() -> None:
    built = build(MlpSettings())
    scaling = built.network.get_layer("scaling")
    images = tf.constant(real_digits().train.images[:4], tf.float32)
    np.testing.assert_allclose(scaling(images), images / 16.0, atol=1e-7)
    inner = built.network.layers[-1]
    np.testing.assert_allclose(built.network(images), inner(images / 16.0), atol=1e-6)


def test_parameters_and_operations_are_counted_and_summed_up(tmp_path: Path) -> None:
    dataset = normalize(synthetic(SyntheticSettings(examples=60, test_examples=6, num_classes=3, split_seed=1)), SCALE)
    given = ModelSettings(network=MlpSettings(), precision=PrecisionSettings(policy="float32"), seed=1)
    built = model(dataset, one_device(), given, folder=tmp_path)
    height, width, channels = dataset.train.images.shape[1:]
    pixels, layers = height * width * channels, ((256, 256), (256, 3))
    weights = pixels * 256 + sum(before * after for before, after in layers)
    biases = 256 + 256 + 3
    scaling = 2 * pixels
    assert built.record.params["parameters"] == weights + biases
    assert built.record.params["flops"] == 2 * weights + biases + scaling
    text = built.record.files["model"].read_text()
    assert built.record.files["model"] == tmp_path / "model" / "summary.txt"
    assert "scaling" in text
    assert f"{weights + biases:,}" in text
    assert text.count("Dense") == 3  # of the network inside


def test_pixels_are_scaled_as_the_network_wants_where_the_user_leaves_it_open() -> None:
    told = Telling()

    def scaling(method: str, **network: str) -> tuple[float, float]:
        dataset = normalize(digits(DigitsSettings(split_seed=1)), NormalizeSettings(method=method))
        target = {"_target_": f"{__name__}.{network['network']}"}
        given = ModelSettings(network=target, outputs="probabilities", precision=PrecisionSettings(), seed=1)
        layer = model(dataset, one_device(), given, told).network.get_layer("scaling")
        return layer.scale, layer.offset

    assert scaling("auto", network="with_probabilities") == (1 / 16, 0)
    assert (scaling("auto", network="with_wishes"), told.lines) == (pytest.approx((2 / 16, -1)), [])
    assert scaling("rescale", network="with_wishes") == (1 / 16, 0)
    assert len(told.lines) == 1
    assert "normalize=auto" in told.lines[0]


def test_mixed_is_bfloat16_without_a_gpu() -> None:
    assert resolve_policy("mixed", one_device()) == "mixed_bfloat16"
    assert resolve_policy("mixed_float16", one_device()) == "mixed_float16"


def a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> Strategy:
    """Return a strategy that names a GPU, which TensorFlow lists as one of `capability`; it computes on the CPU."""
    where, gpus = one_device(), [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    cpus = tf.config.list_physical_devices("CPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else cpus)
    details = {"compute_capability": capability}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    return replace(where, devices=("/job:localhost/replica:0/task:0/device:GPU:0",))


@pytest.fixture
def restores_tf32() -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.usefixtures("restores_tf32")
@pytest.mark.parametrize(
    ("capability", "policy", "tf32", "recorded", "lines"),
    [
        ((8, 0), "float32", False, "off", 1),
        ((8, 0), "float32", True, "on", 0),
        ((9, 0), "mixed_bfloat16", False, "off", 0),
        ((9, 0), "mixed", True, "on", 0),
        ((7, 5), "float32", True, "off", 0),
        ((7, 5), "float32", False, "off", 0),
        (None, "float32", True, "off", 0),
    ],
)
def test_tf32_is_set_for_the_process_and_recorded_where_the_devices_have_it(
    capability: tuple[int, int] | None, policy: str, tf32: bool, recorded: str, lines: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    told, dataset = Telling(), real_digits(8)
    where = a_gpu(monkeypatch, capability) if capability else one_device()
    tf.config.experimental.enable_tensor_float_32_execution(not tf32)
    precision = PrecisionSettings(policy=policy, tf32=tf32)
    built = model(dataset, where, ModelSettings(network=MlpSettings(hidden=[4]), precision=precision, seed=1), told)
    is_set = tf.config.experimental.tensor_float_32_execution_enabled()
    assert (is_set, built.record.params["tf32"]) == (tf32, recorded)
    assert (built.tf32, built.on_one_device().tf32) == (recorded == "on",) * 2
    assert len([line for line in told.lines if "precision.tf32=true or precision=mixed is faster" in line]) == lines
    is_exact = policy == "float32" and recorded == "off"
    assert SavedModel().limit(built.computes_in) == (1e-4 if is_exact else 0.05)


def test_logits_and_probabilities_are_told_apart() -> None:
    assert build(CnnSettings()).record.params["outputs"] == "logits"
    softmax = {"_target_": f"{__name__}.with_probabilities"}
    assert build(softmax, outputs="probabilities").record.params["outputs"] == "probabilities"
    with pytest.raises(UserError, match=r"do not add up to 1.*Try: model.outputs=logits"):
        build(CnnSettings(), outputs="probabilities")
    with pytest.raises(UserError, match=r"outputs for an example add up to 1.*Try: model.outputs=probabilities"):
        build(softmax)


def of_kind(input_shape: tuple[int, ...], num_classes: int, kind: str) -> Any:
    """Return a network of a single layer that takes or returns other things than images and logits."""
    dtype = "uint8" if kind == "whole numbers" else "float32"
    inputs = keras.Input((7, 7, 1) if kind == "other images" else input_shape, dtype=dtype)
    outputs: Any = keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs))
    if kind == "two inputs":
        return keras.Model([inputs, keras.Input(input_shape)], outputs)
    outputs = [outputs, outputs] if kind == "two outputs" else outputs
    inputs = {"a list": [inputs], "a dict": {"images": inputs}}.get(kind, inputs)
    found = keras.Model(inputs, outputs)
    found.compile("sgd", "mse", metrics=["accuracy"])  # training compiles it again
    found.mine = {
        "a variable": [tf.Variable(0.0)], "an optimizer": keras.optimizers.SGD(), "a metric": keras.metrics.R2Score(),
        "a metric of the task": keras.metrics.Mean("accuracy"),
    }.get(kind, {0: 1, "a": 2})  # fmt: skip
    return None if kind == "nothing" else found


@pytest.mark.parametrize(
    ("kind", "said"),
    {
        "two inputs": "does not accept the images .*Expected a single input",
        "other images": r"does not accept the images .*shape \(8, 8, 1\)",
        "whole numbers": "has an input of dtype uint8, .*Expected an input of dtype float32",
        "two outputs": "for two examples, .*Expected a single output, float32",
        "a variable": "has variables that checkpoints would not include: mine",
        "an optimizer": "has variables that checkpoints would not include: mine",
        "a metric of the task": "both have a metric named accuracy. Expected a different name",
        "a metric": "metric r2_score creates its variables when it is first used",
        "nothing": "of_kind returned None. Expected a keras.Model",
    }.items(),
)
def test_what_takes_and_returns_other_things_than_images_and_logits_is_refused(kind: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        build({"_target_": f"{__name__}.of_kind", "kind": kind})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["one", "a list", "a dict"])
def test_an_input_may_be_in_a_list_or_a_dict(kind: str) -> None:
    assert build({"_target_": f"{__name__}.of_kind", "kind": kind}).record.params["outputs"] == "logits"


def test_outputs_must_be_float32() -> None:
    with pytest.raises(UserError, match=r"returns bfloat16.*Expected a single output, float32.*dtype=\"float32\""):
        build({"_target_": f"{__name__}.of_kind", "kind": "one"}, "mixed_bfloat16")


def test_a_network_that_does_not_exist_or_fit_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be built for images of shape"):
        build(CnnSettings(filters=[4, 4, 4, 4]))
