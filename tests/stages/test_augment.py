"""What is done to images in training: each change by itself, mixing, and that nobody can tell who has made them."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from stages.augment import COLUMNS, STRONGEST, Augmentation, Changes, RandAugment, augment
from stages.augmentations import color
from stages.augmentations.mixing import Mixing, beta
from stages.data.batches import training_input
from stages.data.split import Split
from stages.results import Dataset
from stages.settings.data import AugmentSettings
from tests.stages.experiments import assemble, elements, real_digits, strong
from tests.stages.images import Telling

NOISE = np.random.default_rng(7).integers(0, 256, (6, 9, 7, 3)).astype(np.float32)
BYTES = (0.0, 255.0)
FLIP = AugmentSettings(horizontal_flip=True)


def changed(
    settings: AugmentSettings, images: np.ndarray = NOISE, pixel_range: tuple[float, float] = BYTES, **numbers: float
) -> np.ndarray:
    """Return images changed with the given random numbers, the others being in the middle."""
    change = Changes(settings, pixel_range)
    uniforms = np.full((len(images), Augmentation(settings).randoms), 0.5, np.float32)
    for name, number in numbers.items():
        uniforms[:, COLUMNS.index(name)] = number
    return change(tf.constant(images), tf.constant(uniforms)).numpy()


def random_numbers(change: Changes, count: int, seed: int = 1) -> tf.Tensor:
    return tf.random.stateless_uniform([count, Augmentation(change.settings).randoms], [seed, 2])


def key(purpose: str) -> tf.Tensor:
    return tf.constant([len(purpose), 3])


@pytest.mark.parametrize("given", [
    {}, {"rotation": 0.5, "zoom": 0.9, "translation": 1.0, "aspect": 4.0}, {"brightness": 1.0},
    {"rand_augment": 2, "magnitude": 0.0}, {"horizontal_flip": True, "vertical_flip": True},
], ids=str)  # fmt: skip
def test_what_changes_nothing_leaves_every_pixel_as_it_is(given: dict) -> None:
    """In the middle of its range, each change is none; to the bit."""
    np.testing.assert_array_equal(changed(AugmentSettings(**given), area=1.0), NOISE)


def test_flips_are_exact_and_one_image_in_two_is_flipped() -> None:
    both = AugmentSettings(horizontal_flip=True, vertical_flip=True)
    np.testing.assert_array_equal(changed(both, flip_x=0.49), NOISE[:, :, ::-1])
    np.testing.assert_array_equal(changed(both, flip_y=0.49), NOISE[:, ::-1])
    np.testing.assert_array_equal(changed(AugmentSettings(horizontal_flip=True), flip_y=0.0), NOISE)


def test_geometry_moves_pixels_to_where_it_says() -> None:
    square = NOISE[:, :7]
    turned = changed(AugmentSettings(rotation=0.25), square, rotation=1.0)
    assert min(np.abs(turned - np.rot90(square, turns, (1, 2))).max() for turns in (1, 3)) < 1e-2
    shifted = changed(AugmentSettings(translation=1.0), square, shift_x=0.5 + 1 / 7, shift_y=0.5 - 0.5 / 7)
    np.testing.assert_allclose(shifted[:, :-1, 2:], square[:, 1:, :-2], atol=1e-2)
    edge = changed(AugmentSettings(translation=1.0), square, shift_x=0.5 + 1 / 7)
    np.testing.assert_allclose(edge[:, :, :2], square[:, :, 1::-1], atol=1e-2)  # mirrored in
    ramp = np.tile(np.arange(9, dtype=np.float32)[None, None, :, None], (1, 9, 1, 1))
    larger = changed(AugmentSettings(zoom=0.5), ramp, zoom=1.0)
    np.testing.assert_allclose(larger[0, 0, :, 0], 4 + (np.arange(9) - 4) / 1.5, atol=1e-5)
    left = changed(AugmentSettings(crop=0.5), ramp, area=0.0, crop_x=0.0)
    np.testing.assert_allclose(left[0, 4, 2:, 0], 1.75 + (np.arange(9) - 4)[2:] / 2, atol=1e-5)  # pixels -0.25 to 3.75


def test_a_crop_lies_within_the_image() -> None:
    """Its corners are read from no further than half a pixel beyond the edge, where the outermost pixels end."""
    settings = AugmentSettings(crop=0.7, aspect=2.0)
    columns = tf.unstack(tf.cast(random_numbers(Changes(settings, BYTES), 500), tf.float64), axis=1)
    numbers = dict(zip(COLUMNS, columns, strict=True))
    [matrix], _ = Changes(settings, BYTES).geometry_matrices(numbers, *tf.unstack(tf.constant([9.0, 7.0], tf.float64)))
    corners = matrix.numpy() @ np.array([[4.5, 3.5, 1.0], [-4.5, -3.5, 1.0]]).T
    assert (np.abs(corners[:, 0]) <= 4.5 + 1e-9).all()
    assert (np.abs(corners[:, 1]) <= 3.5 + 1e-9).all()
    areas = np.linalg.det(matrix.numpy())
    assert areas.min() == pytest.approx(0.09, abs=0.01)
    assert areas.max() > 0.9


def test_colors_are_those_of_pillow() -> None:
    pillow = [Image.fromarray(image.astype(np.uint8)) for image in NOISE]
    kinds = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}
    for name, enhance in kinds.items():
        for number, factor in ((0.1, 0.52), (0.9, 1.48)):
            ours = changed(replace(AugmentSettings(), **{name: 0.6}), **{name: number})  # type: ignore[arg-type]
            theirs = np.stack([np.asarray(enhance(image).enhance(factor)) for image in pillow])
            assert np.abs(ours - theirs).max() < 2, name  # Pillow rounds to bytes, twice


def test_posterize_and_solarize_are_those_of_pillow() -> None:
    pillow = [Image.fromarray(image.astype(np.uint8)) for image in NOISE]
    names = list(STRONGEST)
    for name, expected in {
        "posterize": [ImageOps.posterize(image, 4) for image in pillow],
        "solarize": [ImageOps.solarize(image, 51) for image in pillow],
    }.items():
        strength = 0.8 if name == "solarize" else 1.0
        numbers = tf.constant([[(names.index(name) + 0.5) / len(names), 0.3]] * 6, tf.float64)
        drawn = RandAugment(numbers, strength, 3)
        ours = color.solarize(
            color.posterize(tf.constant(NOISE), drawn.steps(*BYTES), 0.0), drawn.thresholds(*BYTES), *BYTES
        )
        np.testing.assert_array_equal(ours, np.stack([np.asarray(image) for image in expected]))


def test_hue_keeps_grey_and_brightness_and_a_turn_comes_back() -> None:
    middle = (NOISE / 4 + 96).astype(np.float32)
    half = changed(AugmentSettings(hue=0.5), middle, hue=1.0)
    luma = np.array(color.LUMA)
    np.testing.assert_allclose(half @ luma, middle @ luma, atol=1e-2)
    assert np.abs(half - middle).max() > 20
    np.testing.assert_allclose(changed(AugmentSettings(hue=0.5), half, hue=1.0), middle, atol=1e-2)
    grey = np.repeat(NOISE[..., :1], 3, axis=3)
    np.testing.assert_allclose(changed(AugmentSettings(hue=0.5), grey, hue=0.8), grey, atol=1e-2)


def test_rand_augment_draws_each_operation_as_often() -> None:
    uniforms = tf.random.stateless_uniform([22_000, 2], [1, 2], dtype=tf.float64)
    amounts = RandAugment(uniforms, 0.9, 3).amounts
    shares = [float(tf.reduce_mean(tf.cast(amounts[name] != 0, tf.float64))) for name in STRONGEST if STRONGEST[name]]
    assert shares == pytest.approx([1 / 11] * 10, abs=0.01)
    assert float(tf.reduce_max(amounts["rotate"])) == pytest.approx(0.9 * 30 / 360)
    assert float(tf.reduce_mean(tf.cast(amounts["shear_x"] > 0, tf.float64))) == pytest.approx(1 / 22, abs=0.01)
    assert "saturation" not in RandAugment(uniforms, 0.9, 1).amounts


@pytest.mark.parametrize(("pixel_range", "channels"), [(BYTES, 3), ((0.0, 16.0), 1), ((-1.0, 1.0), 3), (BYTES, 4)])
def test_pixels_stay_in_their_range(pixel_range: tuple[float, float], channels: int) -> None:
    low, high = pixel_range
    most = strong(brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5, magnitude=10.0, zoom=0.9)
    if channels != 3:
        most = replace(most, saturation=0.0, hue=0.0)
    noise = np.random.default_rng(1).choice([low, high, (low + high) / 3], (64, 8, 8, channels)).astype(np.float32)
    for operations in (0, 4):
        change = Changes(replace(most, rand_augment=operations), pixel_range)
        random = random_numbers(change, 64)
        for uniforms in (random, tf.round(random) * (1 - 2**-24)):
            found = change(tf.constant(noise), uniforms).numpy()
            assert np.isfinite(found).all()
            assert low <= found.min() <= found.max() <= high
            assert np.abs(found - noise).max() > (high - low) / 4


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 8.0])
def test_shares_are_drawn_from_beta(alpha: float) -> None:
    draws = beta(alpha, 4000, key).numpy()
    assert np.isfinite(draws).all()
    assert draws.var() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.1)
    if alpha >= 0.2:  # below it, float64 rounds shares to 1
        assert stats.kstest(draws, "beta", args=(alpha, alpha)).pvalue > 1e-3


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_partners_are_others_of_the_batch(count: int) -> None:
    mixing, rows = Mixing(1.0, 0.0, (), tf.identity, 1), tf.range(count, dtype=tf.int64)
    distances = set()
    for seed in [tf.constant([7, step]) for step in range(60)]:
        partners = mixing.partners(rows, tf.constant(count, tf.int64), {"partners": seed}.__getitem__).numpy()
        [distance] = set((partners - rows.numpy()) % count)
        distances.add(int(distance))
        assert sorted(partners) == list(range(count))
    assert distances == ({0} if count == 1 else set(range(1, count)))


def colors_by_class(classes: int = 4, examples: int = 50) -> Dataset:
    """Return a data set whose channels are the classes: the mean of an image is what its label says."""
    labels = np.arange(examples, dtype=np.int32) % classes
    images = np.broadcast_to(np.eye(classes, dtype=np.float32)[labels][:, None, None], (examples, 6, 5, classes))
    split = Split.of_images(np.ascontiguousarray(images), labels)
    return assemble("colors", split, split, split, tuple("abcd"), (0.0, 1.0))


@pytest.mark.parametrize("alphas", [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_mixed_labels_are_what_the_pixels_show(alphas: tuple[float, float]) -> None:
    mixup, cutmix = alphas
    dataset = augment(colors_by_class(), AugmentSettings(mixup=mixup, cutmix=cutmix))
    batches = elements(training_input(dataset, 16, 3, 4))
    images, labels = (np.concatenate([batch[index] for batch in batches]) for index in (0, 1))
    assert (images.dtype, labels.dtype, labels.shape) == (np.float32, np.float32, (200, 4))
    np.testing.assert_allclose(labels.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(images.mean(axis=(1, 2)), labels, atol=1e-6)
    is_blended = ((images > 1e-6) & (images < 1 - 1e-6)).any(axis=(1, 2, 3))
    shares = np.sort(labels, axis=1)[:, -2]
    assert (shares > 0.05).mean() > 0.3
    assert (is_blended.any(), (~is_blended & (shares > 0.05)).any()) == (bool(mixup), bool(cutmix))


def test_a_partner_is_its_row_s_own_augmented_image() -> None:
    """By MixUp, a batch minus each example's share of itself is the batch of augmented images, moved by some rows."""
    plain = augment(real_digits(40), AugmentSettings(rotation=0.2))
    mixed = augment(real_digits(40), AugmentSettings(rotation=0.2, mixup=1.0))
    batches = (elements(training_input(data, 16, 3, 1)) for data in (plain, mixed))
    for (before, labels, _), (after, shares, _) in zip(*batches, strict=True):
        found = []
        for distance in range(1, len(labels)):
            others, names = np.roll(before, -distance, axis=0), np.roll(labels, -distance)
            own = np.where(names == labels, 0.5, shares[np.arange(len(labels)), labels])[:, None, None, None]
            differ = names != labels
            found.append(np.abs(own * before + (1 - own) * others - after)[differ].max())
        assert min(found) < 1e-4
        assert sorted(found)[1] > 1


def test_what_changes_nothing_is_no_augmentation() -> None:
    dataset = real_digits(20)
    for given in (AugmentSettings(), AugmentSettings(rand_augment=2, magnitude=0.0, where="model")):
        found = augment(dataset, given)
        assert found.transforms == ()
    for settings, kinds in (
        (replace(FLIP, where="model"), [Augmentation]),
        (replace(FLIP, mixup=1.0), [Augmentation, Mixing]),
    ):
        assert [type(transform) for transform in augment(dataset, settings).transforms] == kinds
    [mixing] = augment(dataset, AugmentSettings(cutmix=1.0)).transforms
    assert mixing == Mixing(0.0, 1.0, ("images",), dataset.task.targets.soften, 10)


def test_color_is_left_out_where_there_is_none() -> None:
    dataset, told = real_digits(20), Telling()
    found = augment(dataset, strong(), told)
    assert told.lines == ["augment: skipped saturation, hue (the images have 1 channel, not 3)"]
    assert found.record.params == {"skipped": "saturation, hue (the images have 1 channel, not 3)"}
    change = found.transforms[0]
    assert isinstance(change, Augmentation)
    assert change.settings.saturation == change.settings.hue == 0
    [batch, *_] = elements(training_input(found, 16, 3, 1))
    assert np.isfinite(batch[0]).all()
