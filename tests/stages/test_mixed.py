"""Images among the other columns of a table: read, encoded, trained on, augmented and exported together."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.serving import models
from pipeline.serving.rows import rows_of_files
from stages.augment import augment
from stages.data import batches
from stages.data.split import Split
from stages.errors import UserError
from stages.evaluation.by_column import importance_of
from stages.export import export
from stages.features.images import ImageFeature
from stages.features.kinds import IMAGES
from stages.networks.encoders import suitable
from stages.normalize import normalize
from stages.results import Dataset, Model, Trained
from stages.settings.data import AugmentSettings, NormalizeSettings
from stages.settings.model import (
    ApplicationSettings,
    AutoSettings,
    CnnPhotoSettings,
    CnnSettings,
    MlpSettings,
    TextCnnSettings,
)
from stages.settings.results import ExportSettings, KerasSettings, SavedModelSettings
from stages.settings.train import SgdSettings
from stages.transfer.pretrained import backbone_of, backbones_of, is_frozen, unfreeze
from tests.stages.experiments import (
    after_steps,
    built_of,
    flat,
    kept,
    mirrored,
    one_device,
    settings,
)
from tests.stages.images import Telling
from tests.stages.mixed_tables import IMAGE, TWO_IMAGES, load, write_table
from tests.stages.training.stopped import assert_resumes_as, run

pytestmark = pytest.mark.slow

SMALL = {"front": CnnSettings(filters=[4, 8]), "back": CnnPhotoSettings(filters=[4, 8])}
"""Encoders, one with BatchNorm."""

TEXT = {"note": "text"}

SIZES = {"front": 16, "back": [12, 20]}
"""The size of each column of images, of which `back` differs from that of its files."""


def build(dataset: Dataset, where: Any, **more: Any) -> Model:
    """Return a small network of the columns with encoders."""
    chosen = {name: one for name, one in SMALL.items() if name in dataset.features}
    network = more.pop("network", MlpSettings(hidden=[16]))
    return built_of(network, dataset, where, **{"encoders": chosen, "encoder_width": 8, **more})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("homes")
    write_table(path)
    return path


@pytest.fixture(scope="module")
def one(folder: Path) -> Dataset:
    return normalize(load(folder, IMAGE), NormalizeSettings())


@pytest.fixture(scope="module")
def two(folder: Path) -> Dataset:
    return normalize(load(folder, {**TWO_IMAGES, **TEXT}, size=SIZES), NormalizeSettings())


@pytest.mark.smoke
def test_each_row_has_its_images_and_its_columns(folder: Path) -> None:
    frame = write_table(folder)
    dataset = load(folder, TWO_IMAGES, cache=folder / "cache")
    assert [*dataset.features] == ["size", "town", "front", "back"]
    for split in dataset.splits.values():
        for place, number in enumerate(np.asarray(split.numbers)):
            row = frame.iloc[number]
            for column in TWO_IMAGES:
                expected = np.asarray(Image.open(folder / "photos" / row[column]).convert("RGB"))
                np.testing.assert_array_equal(split.features[column][place], expected)
            assert split.features["town"][place] == row.town
            np.testing.assert_equal(float(split.features["size"][place]), row["size"])
            assert split.targets[place] == pytest.approx(row.price, rel=1e-6)
    again = load(folder, TWO_IMAGES, cache=folder / "cache", memory_gib=0.0)
    assert again.fingerprint == dataset.fingerprint
    assert not again.train.is_in_memory
    other = load(folder, {"front": "image", "back": "image"}, channels=1)
    assert other.fingerprint != dataset.fingerprint  # by its images alone


def test_a_row_without_one_of_its_images_is_refused_or_skipped(tmp_path: Path) -> None:
    write_table(tmp_path)
    (tmp_path / "photos" / "front" / "4.png").unlink()
    (tmp_path / "photos" / "back" / "4.png").write_text("no image")
    (tmp_path / "photos" / "back" / "9.png").write_text("no image")
    with pytest.raises(UserError, match=r"homes.csv row 5, column front: 'front/4.png': No such file"):
        load(tmp_path, TWO_IMAGES)
    reporter = Telling()
    dataset = load(tmp_path, TWO_IMAGES, reporter, on_error="skip")
    rows = [number for split in dataset.splits.values() for number in np.asarray(split.numbers)]
    assert sorted(rows) == [row for row in range(150) if row not in (4, 9)]
    assert any("left out 2 examples" in line for line in reporter.lines)
    whole = load(folder := tmp_path, IMAGE, on_error="skip")
    assert len(whole.train) + len(whole.val) + len(whole.test) == 149, folder
    for split in dataset.splits.values():
        for place, number in enumerate(np.asarray(split.numbers)):
            pixels = np.asarray(Image.open(tmp_path / "photos" / "front" / f"{number}.png").convert("RGB"))
            np.testing.assert_array_equal(split.features["front"][place], pixels)


def test_images_alone_are_a_data_set_of_images(folder: Path) -> None:
    alone = load(folder, IMAGE, only_images=True)
    assert (
        [*alone.features] == ["images"] == [*load(folder, {**IMAGE, "size": "leave_out", "town": "leave_out"}).features]
    )
    mixed = load(folder, IMAGE)
    assert [*mixed.features] == ["size", "town", "front"]
    assert (alone.unit, mixed.unit) == ("images", "rows")
    np.testing.assert_array_equal(alone.train.images, mixed.train.features["front"])


def test_an_encoder_learns_nothing_of_images_and_each_has_its_scaling(folder: Path) -> None:
    dataset = normalize(load(folder, TWO_IMAGES), NormalizeSettings(method="standardize"))
    assert [*dataset.train.inputs] == ["numbers", "front", "back"]
    assert dataset.encoder is not None
    assert [*dataset.encoder.input] == ["size", "town"]
    model = build(dataset, one_device())
    for name in TWO_IMAGES:
        pixels = np.asarray(dataset.train.features[name], np.float64)
        layer = model.network.get_layer(f"scaling_{name}")
        scaled = layer(pixels.astype(np.float32)).numpy()
        np.testing.assert_allclose(scaled.mean(axis=(0, 1, 2)), 0, atol=1e-5)
        np.testing.assert_allclose(scaled.std(axis=(0, 1, 2)), 1, atol=1e-4)


def test_the_default_encoder_is_by_the_size_of_the_image(two: Dataset) -> None:
    assert isinstance(suitable(ImageFeature(63, 90, 3)), CnnSettings)
    assert isinstance(suitable(ImageFeature(64, 64, 3)), CnnPhotoSettings)
    model = built_of(AutoSettings(columns="tabular"), two, one_device())
    layers = {layer.name: layer for layer in model.network.core.layers}
    assert layers["encode_front"].output_shape == (None, 64) == layers["encode_back"].output_shape
    assert model.task.name != two.task.name or model.task is not two.task  # it has members
    assert not any(name.startswith("encode_note") for name in layers)  # the mean of its words


def test_a_text_can_have_an_encoder(two: Dataset) -> None:
    model = build(two, one_device(), encoders={**SMALL, "note": TextCnnSettings(filters=4)})
    assert model.network.core.get_layer("encode_note").output_shape == (None, 8)


def test_replicas_equal_one_device(two: Dataset) -> None:
    """The last of the batches has another size; an encoder has a BatchNorm over all replicas."""
    train = augment(two, AugmentSettings(horizontal_flip=True, brightness=0.2))
    given = settings(batch_size=25, optimizer=SgdSettings(learning_rate=0.002))
    models = [
        after_steps(where, train, given, 6, partial(build, policy="float64"))[0] for where in (one_device(), mirrored())
    ]
    weights = [flat(model.network) for model in models]
    np.testing.assert_allclose(weights[1], weights[0], rtol=0, atol=1e-12)


def test_streamed_images_and_columns_equal_those_in_memory(folder: Path) -> None:
    weights = []
    for memory in (None, 0.0):
        cache = folder / "cache"
        dataset = load(folder, {**TWO_IMAGES, **TEXT}, cache=cache, memory_gib=memory, size=SIZES)
        assert [dataset.train.features[name].shape[1:3] for name in TWO_IMAGES] == [(16, 16), (12, 20)]
        dataset = normalize(dataset, NormalizeSettings(), cache=cache)
        assert dataset.train.is_in_memory == (memory is None)
        weights.append(flat(after_steps(one_device(), dataset, settings(batch_size=25), 8, build)[0].network))
    np.testing.assert_array_equal(weights[0], weights[1])
    size = 150 * 3 * (16 * 16 + 12 * 20)
    for allowed in (size, size - 1000):  # each column of images has its share
        dataset = load(folder, TWO_IMAGES, cache=cache, memory_gib=(allowed + 1) / 2**30, size=SIZES)
        assert dataset.train.is_in_memory == (allowed == size)


def test_images_on_the_disk_leave_the_columns_in_memory(folder: Path) -> None:
    dataset = load(folder, IMAGE, cache=folder / "cache", memory_gib=0.00005)
    dataset = normalize(dataset, NormalizeSettings(), cache=folder / "cache")
    assert isinstance(dataset.train.inputs["numbers"], np.ndarray)
    assert not isinstance(dataset.train.inputs["front"], np.ndarray)


def test_jit_equals_no_jit(one: Dataset) -> None:
    given = settings(batch_size=25, optimizer=SgdSettings(learning_rate=0.01))
    dense = partial(build, encoders={"front": MlpSettings(hidden=[8])})  # XLA has no deterministic gradient of pooling
    plain, compiled = (flat(after_steps(one_device(), one, given, 6, dense, jit)[0].network) for jit in (False, True))
    np.testing.assert_allclose(compiled, plain, rtol=0, atol=2e-6)


def test_a_resumed_training_equals_an_uninterrupted_one(two: Dataset, tmp_path: Path) -> None:
    train = augment(two, AugmentSettings(horizontal_flip=True))
    changes: dict[str, Any] = {"dataset": train, "build": build, "batch_size": 25, "epochs": 3}
    whole, told = run(one_device(), None, **changes)
    assert_resumes_as(whole, told, one_device, tmp_path, (3, 7), **changes)


def test_augmentation_changes_images_alone_each_by_its_own_numbers(folder: Path, two: Dataset) -> None:
    flipped = augment(two, AugmentSettings(horizontal_flip=True))
    before, after = (batches.first_batch(each, 100, 3) for each in (two, flipped))
    are_flipped = {}
    for name, values in after.inputs.items():
        original, changed = before.inputs[name].numpy(), values.numpy()
        if name not in TWO_IMAGES:
            np.testing.assert_array_equal(changed, original)
            continue
        mirrored = (changed == original[:, :, ::-1]).all(axis=(1, 2, 3))
        assert (mirrored | (changed == original).all(axis=(1, 2, 3))).all()
        are_flipped[name] = mirrored
        assert 25 < mirrored.sum() < 75
    assert 20 < (are_flipped["front"] != are_flipped["back"]).sum() < 80
    np.testing.assert_array_equal(before.targets, after.targets)
    other = normalize(load(folder, TWO_IMAGES, size=SIZES), NormalizeSettings())
    again = augment(other, AugmentSettings(horizontal_flip=True))
    np.testing.assert_array_equal(batches.first_batch(again, 100, 3).inputs["back"], after.inputs["back"])
    with pytest.raises(UserError, match="mix images alone, but there are other columns"):
        augment(two, AugmentSettings(mixup=0.2))


def test_exported_files_take_features_by_name_and_encoded_images(folder: Path, two: Dataset, tmp_path: Path) -> None:
    model = build(two, one_device())
    formats: Any = {"saved_model": SavedModelSettings(), "keras": KerasSettings()}
    exported = export(Trained(model, (), 1, 0), two, ExportSettings(formats=formats), tmp_path)
    assert exported.columns == {
        "size": "float64", "town": "string", "note": "string", "front": "image", "back": "image",
    }  # fmt: skip
    assert exported.max_abs_diff < 1e-5
    loaded = tf.saved_model.load(str(exported.path))
    test = two.test.take(np.arange(9))
    inputs = {
        name: tf.cast(column[:], tf.float32 if name != "note" else tf.int32) for name, column in test.inputs.items()
    }
    expected = model.task.head.predictions(model.network(inputs, training=False)).numpy()
    rows = np.asarray(test.numbers)
    given: dict[str, Any] = {name: tf.constant(test.features[name][:]) for name in ("size", "town", "note")}
    for name in TWO_IMAGES:
        given[name] = tf.constant([(folder / "photos" / name / f"{row}.png").read_bytes() for row in rows])
    answers = loaded.signatures["serve_bytes"](**given)["prediction"]
    np.testing.assert_allclose(answers, expected, rtol=1e-6, atol=1e-6)
    reading = models.reading_settings(loaded, [folder / "homes.csv"], folder / "photos")
    parts = [part for _, _, part in rows_of_files(loaded, reading, models.drift_of(loaded))]
    of_file = np.concatenate([models.outputs_of(loaded, part)["prediction"] for part in parts])
    np.testing.assert_allclose(of_file[rows], expected, rtol=1e-6, atol=1e-6)


def test_what_a_run_has_learned_is_kept_for_other_rows(folder: Path, two: Dataset, tmp_path: Path) -> None:
    raw = load(folder, {**TWO_IMAGES, **TEXT}, size=SIZES)
    other = kept(two, replace(raw, train=raw.test, test=raw.train), tmp_path)
    assert other.scalings == two.scalings
    for name, column in other.train.inputs.items():
        np.testing.assert_array_equal(column[:], two.test.inputs[name][:])


def test_importance_tells_of_images_too(one: Dataset) -> None:
    model = build(one, one_device())
    section = importance_of(model, one, 0.95)
    found = {row[0]: row[1] for row in section.rows[1:]}
    assert {*found} == {"size", "town", "front"}
    assert all(value != 0 for value in found.values())


class OwnHead:
    """Networks of a user."""

    @staticmethod
    def raw(input_shape: dict[str, tuple[int, ...]], outputs: int) -> Any:
        """Return a network that takes images as they are."""
        import keras

        inputs = {name: keras.Input(shape, name=name) for name, shape in input_shape.items()}
        joined = keras.layers.Concatenate()([keras.layers.Flatten()(value) for value in inputs.values()])
        return keras.Model(inputs, keras.layers.Dense(outputs)(joined))


def own_network(input_shape: dict[str, tuple[int, ...]], outputs: int) -> Any:
    """Return a network that takes every input as it is."""
    return OwnHead.raw(input_shape, outputs)


OWN = {"_target_": "tests.stages.test_mixed.own_network"}


def test_a_network_of_ones_own_gets_images_as_they_are_without_an_encoder(one: Dataset) -> None:
    plain = built_of(OWN, one, one_device()).network
    assert plain.core.input["front"].shape == (None, 16, 16, 3)
    encoded = build(one, one_device(), network=OWN).network
    assert encoded.core.get_layer("encode_front").output_shape == (None, 8)


@pytest.mark.parametrize(("network", "encoders", "message"), [
    (CnnSettings(), {}, "takes one image and nothing else"),
    (AutoSettings(), {"size": "cnn"}, "model.encoders.size: size is a number"),
    (AutoSettings(), {"photo": "cnn"}, "there is no column photo of images or texts"),
    (AutoSettings(), {"front": CnnPhotoSettings(filters=[4] * 9)}, "the encoder of front, of shape"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(one: Dataset, network: Any, encoders: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        built_of(network, one, one_device(), encoders=encoders)


def test_only_images_is_refused_with_other_columns(folder: Path) -> None:
    with pytest.raises(UserError, match=r"declares size, but data.only_images=true uses nothing but front"):
        load(folder, {**IMAGE, "size": "number"}, only_images=True)


@pytest.mark.parametrize(("size", "message"), [
    ({"front": 16, "bach": 12}, "bach is not a column of images. Expected sizes of front, back, or one size for all"),
    ({"front": 16, "size": 12}, "data.size: size is not a column of images"),
    ({"front": 16}, "data.size lacks back, a column of images"),
    ({"front": 16, "back": [12, 0]}, r"data.size.back=\[12, 0\] is not an image size"),
    ({"front": 16, "back": {"height": 3}}, "data.size.back=.* is not an image size"),
])  # fmt: skip
def test_sizes_that_do_not_fit_the_columns_are_refused(folder: Path, size: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(folder, TWO_IMAGES, size=size)


def test_a_backbone_in_an_encoder_has_its_scaling_its_weights_and_stays_frozen(folder: Path, tmp_path: Path) -> None:
    dataset = normalize(load(folder, TWO_IMAGES, size=32), NormalizeSettings())
    application = ApplicationSettings(name="MobileNetV2", arguments={"alpha": 0.35})
    encoders = {"front": application, "back": SMALL["back"]}
    donor = backbone_of(built_of(application, only(dataset, "back"), one_device(), seed=5).network)
    assert donor is not None
    donor.save_weights(tmp_path / "backbone.weights.h5")
    chosen: dict[str, Any] = {"encoders": encoders, "weights": str(tmp_path / "backbone.weights.h5"), "frozen": True}
    model = build(dataset, one_device(), **chosen)
    assert model.record.params["weights_of"] == "backbone"
    assert model.network.get_layer("scaling_front").scale == pytest.approx(2 / 255)
    assert model.network.get_layer("scaling_back").scale == pytest.approx(1 / 255)
    trained, _ = after_steps(one_device(), dataset, settings(batch_size=25), 2, partial(build, **chosen))
    backbone = backbone_of(trained.network)
    assert backbone is not None
    for weight, expected in zip(backbone.get_weights(), donor.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_the_backbones_of_several_encoders_get_the_same_weights(folder: Path, tmp_path: Path) -> None:
    """From the file of one. Both are frozen, and unfrozen, together."""
    dataset = normalize(load(folder, TWO_IMAGES, size={"front": 32, "back": [32, 40]}), NormalizeSettings())
    application = ApplicationSettings(name="MobileNetV2", arguments={"alpha": 0.35})
    encoders = dict.fromkeys(TWO_IMAGES, application)
    donor = backbone_of(built_of(application, only(dataset, "back"), one_device(), seed=5).network)
    assert donor is not None
    donor.save_weights(tmp_path / "backbone.weights.h5")
    file = str(tmp_path / "backbone.weights.h5")
    model = build(dataset, one_device(), encoders=encoders, weights=file, frozen=True)
    found = model.record.params
    assert (found["weights_of"], found["weights_loaded"]) == ("backbone", 2 * len(donor.weights))
    backbones = backbones_of(model.network)
    assert len(backbones) == 2
    assert is_frozen(model.network)
    for backbone in backbones:
        for weight, expected in zip(backbone.get_weights(), donor.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, expected)
    unfreeze(model.network, 3)
    assert [sum(layer.trainable for layer in backbone.layers) for backbone in backbones] == [2, 2]  # not BatchNorm
    assert not is_frozen(model.network)


def only(dataset: Dataset, name: str) -> Dataset:
    """Return the data set of one of the images of `dataset`."""

    def alone(split: Split) -> Split:
        return Split({IMAGES: split.features[name]}, split.targets)

    return dataset.with_each_split(alone, features={IMAGES: dataset.features[name]}, encoder=None, scalings={})
