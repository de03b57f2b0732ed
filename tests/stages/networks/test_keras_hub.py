"""Backbones of KerasHub: a preset's weights and scaling, under every law that other backbones keep."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from stages.export import export
from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.model import KerasHubSettings
from stages.settings.results import ExportSettings, KerasSettings, SavedModelSettings
from stages.transfer.pretrained import backbone_of
from tests.stages.experiments import after_steps, built_of, flat, mirrored, one_device, real_digits, settings

pytestmark = pytest.mark.engines
keras_hub = pytest.importorskip("keras_hub", reason="needs the extra hub")

SCALE, OFFSET = [1 / 58, 1 / 57, 1 / 56], [-2.1, -2.0, -1.9]


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ResNet with weights, and its scaling."""
    folder = tmp_path_factory.mktemp("hub") / "preset"
    keras.utils.set_random_seed(5)
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[3], stackwise_num_filters=[64], stackwise_num_blocks=[1],
        stackwise_num_strides=[1], block_type="basic_block", use_pre_activation=False, image_shape=(None, None, 3),
    )  # fmt: skip
    backbone.save_to_preset(str(folder))
    converter = keras_hub.layers.ImageConverter(image_size=(8, 8), scale=SCALE, offset=OFFSET)
    keras_hub.models.ResNetImageClassifierPreprocessor(converter).save_to_preset(str(folder))
    return folder


@pytest.fixture(scope="module")
def data() -> Dataset:
    return real_digits(200)


def build(preset: Path, data: Dataset, where: Strategy, policy: str = "float32", frozen: bool = False) -> Model:
    return built_of(KerasHubSettings(preset=str(preset), dropout=0.3), data, where, policy, frozen=frozen)


@pytest.mark.parametrize(("policy", "near"), [("float32", 1e-5), ("mixed_bfloat16", 0.1)])
def test_it_answers_as_the_preset_does_behind_its_scaling(
    preset: Path, data: Dataset, policy: str, near: float
) -> None:
    network = build(preset, data, one_device(), policy).network
    images = np.asarray(data.test.images[:4])
    given = keras_hub.models.Backbone.from_preset(str(preset))
    pixels = np.repeat(images, 3, axis=-1) * (255 / 16)
    features = np.asarray(given(pixels * np.mean(SCALE) + np.mean(OFFSET))).mean(axis=(1, 2))
    inner: Any = network
    head = inner.core.get_layer("head")
    expected = features @ np.asarray(head.kernel) + np.asarray(head.bias)
    np.testing.assert_allclose(np.asarray(network(images)), expected, rtol=near, atol=near)


def test_replicas_equal_one_device(preset: Path, data: Dataset) -> None:
    given = settings(batch_size=50)
    one, means = after_steps(one_device(), data, given, 3, lambda data, where: build(preset, data, where))
    several, of_several = after_steps(mirrored(3), data, given, 3, lambda data, where: build(preset, data, where))
    np.testing.assert_allclose(flat(several.network), flat(one.network), rtol=0, atol=2e-6)
    assert of_several == pytest.approx(means, rel=2e-6)


def test_frozen_it_keeps_its_weights_and_the_exports_need_no_project(
    preset: Path, data: Dataset, tmp_path: Path
) -> None:
    trained, _ = after_steps(
        one_device(), data, settings(batch_size=50), 3, lambda data, where: build(preset, data, where, frozen=True)
    )
    backbone = backbone_of(trained.network)
    assert backbone is not None
    given = keras_hub.models.Backbone.from_preset(str(preset))
    for weight, original in zip(backbone.get_weights(), given.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, original)
    formats = {"saved_model": SavedModelSettings(), "keras": KerasSettings()}
    exported = export(Trained(trained, (), 1, 3), data, ExportSettings(formats=formats, reload="process"), tmp_path)
    differences = [value for name, value in exported.record.metrics.items() if name.endswith("/max_abs_diff")]
    assert max(differences) <= 1e-6
