"""Networks that return a class for each pixel: images of any size, and backbones with a decoder."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.data.split import Split
from stages.data.splits import dataset_of
from stages.errors import UserError
from stages.features.images import ImageFeature
from stages.networks.applications import application
from stages.networks.batch_norm import BatchNormalization
from stages.networks.unet import unet
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import NormalizeSettings
from stages.settings.model import ApplicationSettings, AutoSettings, CnnSettings, MlpSettings, UnetSettings
from stages.settings.train import AutoTaskSettings
from stages.tasks.segmentation import IGNORED, segmentation
from stages.transfer.pretrained import backbone_of
from tests.stages.experiments import (
    adam,
    after_steps,
    assert_replicas_equal_one_device,
    built_of,
    flat,
    one_device,
    real_digits,
    settings,
)
from tests.stages.training import stopped


@cache
def areas(examples: int = 70, size: tuple[int, int] = (12, 10)) -> Dataset:
    """Return images with bright and dark areas, and their masks; some pixels do not count."""
    random = np.random.default_rng(2)
    masks = np.zeros((examples, *size), np.uint8)
    for mask, (x, y) in zip(masks, random.integers(1, 6, (examples, 2)), strict=True):
        mask[y : y + 5], mask[:, x : x + 3] = 1, 2
    noise = random.integers(0, 60, (*masks.shape, 3))
    images = (noise + masks[..., None] * [90, 40, 0]).astype(np.uint8)
    masks[random.random(masks.shape) < 0.05] = IGNORED
    split = Split({"images": images}, masks, weights=random.uniform(0.3, 2, examples))
    few = split.take(np.arange(20))
    splits = {"train": split, "val": few, "test": few}
    loaded = dataset_of("areas", splits, segmentation(("ground", "bar", "pole")), {"images": ImageFeature(*size, 3)})
    return normalize(loaded, NormalizeSettings())


SMALL = UnetSettings(filters=[4, 8])


def small_unet(dataset: Dataset, where: Any, policy: str = "float32", **given: Any) -> Any:
    return built_of(replace(SMALL, **given), dataset, where, policy, task=AutoTaskSettings())


def names_of(network: keras.Model) -> set[type]:
    return {type(layer) for layer in network._flatten_layers() if "BatchNorm" in type(layer).__name__}


@pytest.mark.parametrize("size", [(16, 16), (13, 10), (5, 9), (1, 1)])
def test_a_unet_returns_a_map_for_images_of_any_size(size: tuple[int, int]) -> None:
    network = unet((*size, 3), 4, [4, 8, 8], 0.1, (*size, 4))
    assert network(tf.zeros((2, *size, 3))).shape == (2, *size, 4)
    assert names_of(network) == {BatchNormalization}


def test_parameters_are_those_of_the_description() -> None:
    given = UnetSettings()
    assert unet((128, 128, 3), 3, given.filters, given.dropout, (128, 128, 3)).count_params() == 489_443


def test_a_pixel_changes_with_its_own_image_and_place() -> None:
    """A shift of the image by the smallest resolution shifts the map, away from the borders."""
    network = unet((32, 32, 1), 2, [4, 8, 8], 0.0, (32, 32, 2))
    images = np.zeros((2, 32, 32, 1), np.float32)
    images[0, 10:14, 12:15] = images[1, 14:18, 16:19] = 1
    first, second = network(images, training=False).numpy()
    assert np.ptp(first) > 0
    np.testing.assert_allclose(first[8:18, 8:18], second[12:22, 12:22], atol=1e-5)


@pytest.mark.parametrize(("size", "decoder"), [((32, 32), [16, 8]), ((45, 33), [16, 8, 8, 8, 8]), ((40, 40), [])])
def test_a_backbone_with_a_decoder_returns_a_map(size: tuple[int, int], decoder: list[int]) -> None:
    make = partial(application, (*size, 3), 4, "MobileNetV2", {"alpha": 0.35}, 0.2)
    network = make(decoder, (*size, 4))
    assert network(tf.zeros((1, *size, 3))).shape == (1, *size, 4)
    assert names_of(network) == {BatchNormalization}
    plain = make().get_layer("backbone")
    backbone = network.get_layer("backbone")
    assert [tuple(one.shape) for one in backbone.weights] == [tuple(one.shape) for one in plain.weights]
    kinds = [(type(one), one.name.partition("_")[0]) for one in plain.layers]
    layers = [one for one in backbone.layers if one.name != "images"]
    assert [(type(one), one.name.partition("_")[0]) for one in layers] == kinds, "the order of the weights"
    heights = [output.shape[1] for output in backbone.outputs]
    assert heights == sorted(heights)
    assert len(heights) == 1 + len(decoder)


def test_a_backbone_with_a_decoder_can_be_frozen() -> None:
    network = ApplicationSettings(name="MobileNetV2", arguments={"alpha": 0.35}, decoder=[8, 8])
    built = built_of(network, areas(24, (32, 32)), one_device(), frozen=True)
    backbone = {id(weight) for weight in backbone_of(built.network).weights}  # type: ignore[union-attr]
    assert backbone
    assert len(built.network.trainable_weights) == 2 * 2 * 3 + 2  # of each level: kernels, gammas and betas; the head
    assert not backbone & {id(weight) for weight in built.network.trainable_weights}


def test_auto_is_a_unet_and_other_networks_are_refused() -> None:
    dataset, where = areas(), one_device()
    assert built_of(AutoSettings(), dataset, where).network.core.name == "unet"
    for network in (CnnSettings(), MlpSettings()):
        with pytest.raises(UserError, match=r"returns one vector per image, .* \(12, 10, 3\).*Try: model=unet"):
            built_of(network, dataset, where)
    with pytest.raises(UserError, match=r"unet returns a map, but the targets need 10 outputs.*Try: model=auto"):
        built_of(UnetSettings(), real_digits(20), where)
    with pytest.raises(UserError, match=r"float32 of shape \(2, 3\)\. Expected a single output, .*\(2, 12, 10, 3\)"):
        built_of({"_target_": f"{__name__}.pooled"}, dataset, where)


def pooled(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    layers = [keras.layers.Input(input_shape), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(num_classes)]
    return keras.Sequential(layers)


WEIGHTED: dict[str, Any] = {"batch_size": 16, "class_weights": "balanced", "label_smoothing": 0.1}


def test_replicas_equal_one_device() -> None:
    """In float64, so that only a wrong law could differ. Three replicas share no batch evenly."""
    build = partial(small_unet, policy="float64")
    assert_replicas_equal_one_device(areas(), settings(**WEIGHTED), 12, build, 3)


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Any) -> None:
    given: dict[str, Any] = {"dataset": areas(), "build": small_unet, "epochs": 2, "optimizer": adam(), **WEIGHTED}
    whole, told = stopped.run(one_device(), None, **given)
    assert "val/mean_iou" in whole.history[0]
    stopped.assert_resumes_as(whole, told, one_device, tmp_path, (7,), **given)


def convolution(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """A network without pooling, whose gradient XLA does not have with deterministic operations, as tests use."""
    layers = [keras.layers.Input(input_shape), keras.layers.Conv2D(8, 3, padding="same", activation="relu")]
    return keras.Sequential([*layers, keras.layers.Conv2D(num_classes, 1, dtype="float32")])


def test_xla_changes_nothing_but_rounding() -> None:
    build, given = partial(built_of, {"_target_": f"{__name__}.convolution"}), settings(**WEIGHTED)
    (plain, means), (compiled, of_compiled) = (
        after_steps(one_device(), areas(), given, 20, build, jit) for jit in (False, True)
    )
    np.testing.assert_allclose(flat(compiled.network), flat(plain.network), atol=2e-6)
    assert of_compiled == pytest.approx(means, rel=1e-4)
    assert not np.array_equal(flat(plain.network), flat(build(areas(), one_device()).network))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_learns_the_areas(policy: str) -> None:
    given = settings(batch_size=16, optimizer=adam(learning_rate=0.01))
    _, means = after_steps(one_device(), areas(), given, 60, partial(small_unet, policy=policy))
    assert means["mean_iou"] > 0.5
