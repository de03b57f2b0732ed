"""The networks: their sizes, what they want of pixels, and that replicas make one batch of their statistics."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.errors import UserError
from stages.features.images import ImageFeature
from stages.load.synthetic import synthetic
from stages.networks.applications import application, preprocessing
from stages.networks.batch_norm import BatchNormalization
from stages.networks.cnn import cnn, cnn_photo, resnet
from stages.networks.joined import member_outputs
from stages.networks.mlp import mlp
from stages.networks.rescaling import for_pixels_of
from stages.normalize import normalize
from stages.results import Dataset, Model, Normalization
from stages.settings.data import NormalizeSettings, SyntheticSettings
from stages.settings.model import ApplicationSettings, CnnPhotoSettings
from tests.stages.experiments import after_steps, built_of, flat, mirrored, one_device, settings

pytestmark = pytest.mark.slow

SMALL_MOBILENET = ApplicationSettings(name="MobileNetV2", arguments={"alpha": 0.35}, dropout=0.0)
SMALL_PHOTO = CnnPhotoSettings(filters=[4, 8], dropout=0.0)


@cache
def images(channels: int = 3, side: int = 32, classes: int = 3) -> Dataset:
    given = SyntheticSettings(examples=80, test_examples=8, height=side, width=side, split_seed=1)
    given = replace(given, channels=channels, num_classes=classes)
    return normalize(synthetic(given), NormalizeSettings())


def build(network: object, dataset: Dataset | None = None) -> Model:
    return built_of(network, dataset or images(), one_device())


def an_application(name: str, arguments: Mapping[str, Any] | None = None, side: int = 32, classes: int = 3) -> Any:
    return application((side, side, 3), classes, name, arguments or {}, dropout=0.2)


@pytest.mark.smoke
def test_parameters_are_those_of_the_papers() -> None:
    assert mlp((28, 28, 1), 10, [256, 256], 0.0).count_params() == 269_322
    resnet20 = resnet((32, 32, 3), 10, blocks=3, filters=[16, 32, 64])
    assert resnet20.name == "resnet20"
    assert_shares_statistics(resnet20)
    trained = sum(int(np.prod(weight.shape)) for weight in resnet20.trainable_weights)
    assert (trained, resnet20.count_params()) == (269_722, 271_098)  # without and with BatchNorm's statistics
    given = CnnPhotoSettings()
    photo = cnn_photo((160, 160, 3), 5, given.filters, given.convolutions, given.dropout)
    assert photo.count_params() == 1_183_029
    assert cnn((28, 28, 1), 10, [32, 64], 3, 0.5).count_params() == 34_826  # the one of Keras' example
    mobilenet = an_application("MobileNetV2", {"alpha": 0.35})
    assert mobilenet.get_layer("backbone").count_params() == 410_208
    assert mobilenet.output_shape == (None, 3)
    assert_shares_statistics(mobilenet)


def assert_shares_statistics(network: keras.Model) -> None:
    """Asserts that every BatchNorm takes the statistics of the whole batch, however many replicas share it."""
    norms = [layer for layer in network._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    assert norms
    assert all(isinstance(layer, BatchNormalization) and layer.synchronized for layer in norms)


@pytest.mark.smoke
def test_the_residual_shortcut_subsamples_and_adds_zeros() -> None:
    """Where the convolutions give nothing, a group is its shortcut, then ReLU."""
    network = resnet((6, 6, 2), 3, blocks=1, filters=[4, 8])
    convolutions = [layer for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]
    for layer in convolutions[1:]:
        layer.kernel.assign(tf.zeros_like(layer.kernel.value))
    adds = [layer.output for layer in network.layers if isinstance(layer, keras.layers.Add)]
    first, second = keras.Model(network.input, adds)(np.random.default_rng(1).normal(size=(2, 6, 6, 2)))
    np.testing.assert_array_equal(second[..., 2:6], tf.nn.relu(first)[:, ::2, ::2])
    assert not second[..., :2].numpy().any()
    assert not second[..., 6:].numpy().any()


def test_two_replicas_equal_one_device() -> None:
    """In float64, so that only a wrong law could differ; 33 examples do not divide.

    What could differ in the other networks is their BatchNorm, which is this one's: `assert_shares_statistics`.
    """
    small, given = partial(built_of, SMALL_PHOTO, policy="float64"), settings(batch_size=33)
    one, means = after_steps(one_device(), images(), given, 3, small)
    two, of_two = after_steps(mirrored(2), images(), given, 3, small)
    np.testing.assert_allclose(flat(two.network), flat(one.network), rtol=0, atol=1e-9)
    assert of_two["loss"] == pytest.approx(means["loss"], abs=1e-6)
    untrained = small(images(), one_device())
    assert np.abs(flat(one.network) - flat(untrained.network)).max() > 1e-3  # they have learned something


@pytest.mark.parametrize("name", ["MobileNetV2", "VGG16"])
def test_a_backbone_gets_the_pixels_it_was_made_for(name: str) -> None:
    """Scaled to -1..1; blue first and without their mean: keras' own functions say so."""
    built = build(ApplicationSettings(name=name))
    assert list(built.record.params["scale"]) != list(images().scalings["images"].scale)
    core = built.network.core
    features = keras.Model(core.input, core.get_layer("pooling").output)
    unscaled = images().train.images[:4].astype(np.float32)
    mine = features(built.network.get_layer("scaling")(unscaled))
    preprocess = sys.modules[getattr(keras.applications, name).__module__].preprocess_input
    theirs = tf.reduce_mean(core.get_layer("backbone")(preprocess(unscaled.copy())), axis=(1, 2))
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())
    assert np.ptp(theirs) > 0


@pytest.mark.parametrize("name", ["DenseNet121", "MobileNetV3Small"])
def test_the_scaling_for_a_backbone_is_that_of_keras(name: str) -> None:
    """As PyTorch's; pixels as they are, where the backbone scales them."""
    wanted = preprocessing(name, {})
    assert wanted is not None
    pixels = images().train.images[:4].astype(np.float32)
    preprocess = sys.modules[getattr(keras.applications, name).__module__].preprocess_input
    np.testing.assert_allclose(pixels * wanted.scale + wanted.offset, preprocess(pixels.copy()), rtol=1e-4, atol=1e-4)


def test_what_a_network_wants_is_for_any_range_of_pixels() -> None:
    wanted = Normalization((0.5, 0.25, 1.0), (-1.0, -2.0, -3.0))
    grey = for_pixels_of(wanted, ImageFeature(8, 8, 1, high=16.0))  # 0 to 16, one channel: the mean of three
    low, high = (np.array([0.0, 16.0]) * grey.scale + grey.offset).tolist()
    assert (low, high) == (pytest.approx(-2.0), pytest.approx(255 * (0.5 + 0.25 + 1.0) / 3 - 2.0))
    colors = for_pixels_of(wanted, ImageFeature(8, 8, 3))
    np.testing.assert_allclose(colors.scale, wanted.scale)
    np.testing.assert_allclose(colors.offset, wanted.offset)
    assert for_pixels_of(Normalization((2.0,) * 3, (1.0,) * 3), ImageFeature(8, 8, 3)) == Normalization((2.0,), (1.0,))
    assert preprocessing("EfficientNetV2B0", {"include_preprocessing": False}) is None


def test_grey_images_are_repeated_for_the_three_channels_of_a_backbone() -> None:
    core = build(SMALL_MOBILENET, dataset=images(channels=1)).network.core
    assert core.input_shape == (None, 32, 32, 1)
    assert core.get_layer("backbone").input_shape == (None, 32, 32, 3)
    repeated = keras.Model(core.input, core.get_layer("to_rgb").output)
    grey = np.random.default_rng(1).normal(size=(2, 32, 32, 1)).astype(np.float32)
    np.testing.assert_array_equal(repeated(grey), np.repeat(grey, 3, axis=-1))


@pytest.mark.parametrize(("name", "given", "message"), [
    ("MobilNetV2", {}, r"Expected one of: .*Try: model.network.name=MobileNetV2$"),
    ("zzz", {}, "Expected one of: ConvNeXtBase.*Try: model.network.name="),
    ("MobileNetV2", {"arguments": {"alfa": 1}}, r"applications.application cannot be built .*MobileNetV2.*alfa"),
    ("MobileNetV2", {"side": 16}, r"cannot be built for images of shape \(16, 16, 3\) .*at least 32x32"),
])  # fmt: skip
def test_what_keras_has_not_is_refused(name: str, given: dict[str, Any], message: str) -> None:
    side = given.pop("side", 32)
    with pytest.raises(UserError, match=message):
        build(ApplicationSettings(name=name, **given), dataset=images(side=side))


@pytest.mark.parametrize(("members", "outputs"), [(8, 1), (1, 3), (4, 4)])
def test_outputs_of_members_are_products_that_litert_has(members: int, outputs: int) -> None:
    """With a single output, Keras would add the bias with the channels first."""
    values = keras.Input((members, 5))
    network = keras.Model(values, member_outputs(values, outputs))
    kernel, bias = network.get_layer("heads").get_weights()
    network.get_layer("heads").set_weights([kernel, bias := np.arange(bias.size, dtype="f4").reshape(bias.shape)])
    given = np.random.default_rng(0).normal(size=(3, members, 5)).astype("f4")
    expected = np.einsum("bkh,kho->bko", given, kernel) + bias
    np.testing.assert_allclose(network(given), expected, rtol=1e-5, atol=1e-6)
    function = tf.function(network, input_signature=[tf.TensorSpec((None, members, 5))])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], network)
    assert converter.convert()
