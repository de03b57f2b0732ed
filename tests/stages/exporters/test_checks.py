"""What a format cannot hold is refused before training, and what is not refused can be loaded again."""

import functools
import importlib.util
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from pipeline.console import Console
from pipeline.decide.job import Job
from pipeline.exit_codes import FAILED
from pipeline.launch.run import run_job
from stages.errors import UserError
from stages.export import check, export
from stages.exporters.keras_file import KerasFile
from stages.exporters.onnx_file import OnnxFile
from stages.exporters.reload import load
from stages.normalize import normalize
from stages.results import Model, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import MlpSettings, ResnetSettings, TransformerSettings
from stages.settings.results import ExportSettings, KerasSettings, LiteRTSettings, OnnxSettings
from stages.tasks.regression import regression
from tests.pipeline.experiments import experiment
from tests.stages.experiments import built_of, one_device, real_digits, table_of

pytestmark = pytest.mark.slow

needs_onnx = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in OnnxSettings.requires), reason="needs the extra onnx"
)


def halved(values: Any) -> Any:
    return keras.ops.relu(values) / 2


@keras.saving.register_keras_serializable("tests")
def registered(values: Any) -> Any:
    return keras.ops.relu(values)


@keras.saving.register_keras_serializable("tests")
class Own(keras.layers.Layer):
    def call(self, values: Any) -> Any:
        return 2 * values


class Subclass(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.flat = keras.layers.Flatten()
        self.head = keras.layers.Dense(10)

    def call(self, values: Any) -> Any:
        return self.head(self.flat(values))


LAYERS = {
    "gelu": lambda: keras.layers.Dense(8, activation="gelu"),
    "function of Keras": lambda: keras.layers.Lambda(keras.activations.silu),
    "activation layer": lambda: keras.layers.Dense(8, activation=keras.layers.LeakyReLU(0.1)),
    "array in a wrapper": lambda: keras.layers.SpectralNormalization(
        keras.layers.Dense(8, bias_initializer=keras.initializers.Constant(np.ones(8)))
    ),
    "exact gelu": lambda: keras.layers.Dense(8, activation=lambda x: keras.activations.gelu(x, approximate=False)),
    "partial": lambda: keras.layers.Dense(8, activation=functools.partial(keras.activations.gelu, approximate=False)),
    "lambda": lambda: keras.layers.Lambda(lambda values: 2 * values),
    "registered function": lambda: keras.layers.Dense(8, activation=registered),
    "registered layer": Own,
    "own layer in a wrapper": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(8, activation=halved)),
}


def with_layer(image_shape: tuple[int, int, int], num_classes: int, layer: str) -> keras.Model:
    """Have one of LAYERS in the middle, and an operation that is not a layer."""
    images = keras.Input(image_shape)
    values = LAYERS[layer]()(keras.layers.Flatten()(images))
    return keras.Model(images, keras.layers.Dense(num_classes, dtype="float32")(keras.ops.abs(values)))


def subclass(image_shape: tuple[int, int, int], num_classes: int, **of_mlp: Any) -> keras.Model:
    return Subclass()


def grouped(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = [keras.layers.Conv2D(4, 3), keras.layers.Conv2D(4, 3, groups=2), keras.layers.Flatten()]
    return keras.Sequential([keras.Input(image_shape), *layers, keras.layers.Dense(num_classes)])


def shifted(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Add a tensor, where it might add an array."""
    images = keras.Input(image_shape)
    values = keras.layers.Flatten()(images) + keras.ops.ones(int(np.prod(image_shape)))
    return keras.Model(images, keras.layers.Dense(num_classes)(values))


def by_rows(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    rows = keras.layers.Reshape((image_shape[0], -1))
    return keras.Sequential([keras.Input(image_shape), rows, keras.layers.LSTM(4), keras.layers.Dense(num_classes)])


def network(name: str, policy: str = "float32", **settings: Any) -> Model:
    network = {"_target_": f"{__name__}.{name}", **settings}
    return built_of(network, real_digits(), one_device(), policy)


def refusal(of: Model, **formats: Any) -> str:
    """Return why the formats cannot hold the network; empty where they can."""
    try:
        check(ExportSettings(formats=formats), real_digits(), of)
    except UserError as error:
        refused = error
    else:
        return ""
    assert refused.fix == "export=saved_model"
    assert "\n" not in str(refused)
    return refused.problem


@contextmanager
def without_registered_objects() -> Iterator[None]:
    """Hide classes and functions that were registered for loading: a process without their modules lacks them."""
    table = keras.saving.get_custom_objects()
    registered = dict(table)
    table.clear()
    try:
        yield
    finally:
        table.update(registered)


@pytest.mark.parametrize("layer", LAYERS)
def test_keras_refuses_what_it_would_not_load_again_as_it_is(layer: str, tmp_path: Path) -> None:
    """A file of every network that is not refused is loaded without what this process has registered."""
    built = network("with_layer", layer=layer)
    names = list(LAYERS)
    reason = refusal(built, keras=KerasSettings())
    assert bool(reason) == (names.index(layer) >= names.index("exact gelu")), reason
    if reason:
        assert reason.startswith("this network cannot be saved as a .keras file ")
        with pytest.raises(UserError, match=r"cannot be saved as a \.keras file"):
            KerasFile().write(built, real_digits(), tmp_path / "model.keras")
        return
    KerasFile().write(built, real_digits(), tmp_path / "model.keras")
    images = real_digits().test.images[:4]
    expected = built.task.head.predictions(built.network(images.astype(np.float32)))
    with without_registered_objects():
        np.testing.assert_allclose(load(str(tmp_path / "model.keras"))(images), expected, rtol=1e-5)


@needs_onnx
def test_exact_gelu_is_computed_by_onnx(tmp_path: Path) -> None:
    built = network("with_layer", "mixed_bfloat16", layer="exact gelu")
    assert refusal(built, onnx=OnnxSettings()) == ""
    OnnxFile().write(built, real_digits(), tmp_path / "model.onnx")
    images = real_digits().test.images[:100]
    expected = built.task.head.predictions(built.in_float32.network(images.astype(np.float32)))
    np.testing.assert_allclose(load(str(tmp_path / "model.onnx"))(images), expected, atol=1e-6)


@needs_onnx
def test_operations_that_onnx_lacks_are_named() -> None:
    reason = refusal(network("grouped"), onnx=OnnxSettings())
    assert reason.startswith("ONNX does not support this network (No Op registered for StatefulPartitionedCall")
    reason = refusal(network("shifted"), onnx=OnnxSettings())
    assert reason.startswith("ONNX does not support this network (a constant tensor would become the input ")


@needs_onnx
def test_a_text_is_exported_whatever_columns_are_called(tmp_path: Path) -> None:
    """Keras' operations have such names, too."""
    names = ["softmax", "cast", "where", "stack", "add_1", "multiply_2"]
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, len(names))), columns=names)
    frame["dense"] = [f"good film {row}" if row % 2 else "bad " * 500 for row in range(60)]
    frame["label"] = ["pos", "neg"] * 30
    loaded = table_of(tmp_path, frame, target="label", features={"dense": "text"})
    data = normalize(loaded, NormalizeSettings(length=8))
    built = built_of(TransformerSettings(width=16, blocks=1, dropout=0.0), data, one_device())
    given = ExportSettings(formats={"keras": KerasSettings(), "onnx": OnnxSettings()}, reload="here")
    assert set(export(Trained(built, (), 1, 0), data, given, tmp_path).others) == {"onnx"}


def test_operations_that_litert_lacks_are_named() -> None:
    reason = refusal(network("by_rows"), litert=LiteRTSettings())
    assert reason.startswith("LiteRT does not support the operation TensorList")


@pytest.mark.parametrize("settings", [LiteRTSettings(), LiteRTSettings(weights="float16")])
def test_targets_that_float16_cannot_hold_are_refused(settings: LiteRTSettings) -> None:
    built = built_of(MlpSettings(), real_digits(), one_device())
    built = replace(built, task=regression(built.task.names, (7e4,) * 10, (1.0,) * 10))
    given = {"a": settings, "b": LiteRTSettings(weights="int8")}
    assert ("too large for LiteRT's float16" in refusal(built, **given)) == (settings.weights == "float16")


def test_a_check_leaves_the_model_and_random_numbers_as_they_were() -> None:
    formats = {"keras": KerasSettings(), "litert": LiteRTSettings()}
    built = built_of(ResnetSettings(blocks=1), real_digits(), one_device(), "mixed_bfloat16")
    layers = [type(layer) for layer in built.network.core.layers]
    weights = built.network.get_weights()
    state = random.getstate()
    check(ExportSettings(formats=formats), real_digits(), built)
    assert random.getstate() == state
    assert [type(layer) for layer in built.network.core.layers] == layers
    assert all(np.array_equal(a, b) for a, b in zip(weights, built.network.get_weights(), strict=True))
    built.network.set_weights([np.zeros_like(weight) for weight in weights])
    assert not any(weight.any() for weight in built.in_float32.network.get_weights())  # a copy made after the check


@pytest.mark.smoke
def test_a_run_ends_before_training_where_its_export_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = f"model.network._target_={__name__}.subclass"
    overrides = ("data=digits", "model=mlp", network, "export=keras", "tracking=off", "pipeline.inspect=null")
    assert run_job(Job(experiment(*overrides, outputs=tmp_path)), Console()) == FAILED
    assert "cannot be saved as a .keras file" in capsys.readouterr().out
    [summary] = tmp_path.glob("runs/*/*/summary.json")
    stages = {name: stage["status"] for name, stage in json.loads(summary.read_text())["stages"].items()}
    assert (stages["model"], stages["train"]) == ("failed", "skipped")
