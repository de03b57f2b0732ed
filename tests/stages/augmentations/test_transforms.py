"""Transforms of examples: masks move with their images, other columns stay, and a custom one follows the same rule."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from stages.augment import augment
from stages.augmentations.transforms import Example, Transform
from stages.data.batches import training_input
from stages.data.columns import Streamed
from stages.data.split import Split
from stages.data.splits import dataset_of
from stages.errors import UserError
from stages.features.images import ImageFeature
from stages.results import Dataset
from stages.settings.data import AugmentSettings
from stages.tasks.classification import ClassTargets, classification
from tests.stages.experiments import elements, real_digits, strong, with_a_column

IGNORED = 255
GEOMETRY: dict[str, AugmentSettings] = {
    "flips": AugmentSettings(horizontal_flip=True, vertical_flip=True),
    "moves": AugmentSettings(horizontal_flip=True, rotation=0.2, zoom=0.3, translation=0.3, crop=0.4, aspect=1.5),
    "in the step": AugmentSettings(horizontal_flip=True, vertical_flip=True, where="model"),
    "RandAugment": AugmentSettings(rand_augment=2, magnitude=9.0),
}


NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Masks(ClassTargets):
    """A class for each pixel."""

    @property
    def ignored_pixel(self) -> int:
        return IGNORED

    def check(self, where: str, targets: Any) -> None:
        assert targets.shape[1:] == (12, 10), where


def with_masks(stored: bool) -> Dataset:
    """Return images with three areas, and masks of them: the first channel of a pixel is 50 times its class."""
    random = np.random.default_rng(2)
    masks = np.zeros((40, 12, 10), np.uint8)
    for mask, (x, y) in zip(masks, random.integers(2, 6, (40, 2)), strict=True):
        mask[y : y + 5], mask[:, x : x + 3] = 1, 2
    images = np.stack([masks * 50, *random.integers(0, 256, (2, *masks.shape))], axis=-1).astype(np.uint8)
    targets = Streamed.of(masks) if stored else masks
    split = Split({"images": images}, targets)
    features = {"images": ImageFeature(12, 10, 3)}
    task = replace(classification(NAMES), targets=Masks(NAMES))
    return dataset_of("areas", dict.fromkeys(("train", "val", "test"), split), task, features)


@pytest.mark.parametrize("mixing", [AugmentSettings(mixup=0.2), AugmentSettings(cutmix=1.0)], ids=["MixUp", "CutMix"])
def test_masks_are_not_mixed(mixing: AugmentSettings) -> None:
    with pytest.raises(UserError, match=r"augment\.mixup and augment\.cutmix do not support targets that are masks"):
        augment(with_masks(stored=False), mixing)


@pytest.mark.parametrize("name", ["flips", "moves"])
def test_masks_move_with_their_images(name: str) -> None:
    batches = elements(training_input(augment(with_masks(stored=True), GEOMETRY[name]), 16, 3, 4))
    images, masks = (np.concatenate([batch[place] for batch in batches]) for place in (0, 1))
    assert (masks.dtype, masks.shape) == (np.int32, (160, 12, 10))
    red, is_known = images[..., 0], masks != IGNORED
    assert set(np.unique(masks)) == ({0, 1, 2} if name == "flips" else {0, 1, 2, IGNORED})
    assert (np.abs(red - 50 * masks)[is_known] <= 75 + 1e-3).all()  # a quarter, at least, is the nearest pixel
    is_pure = is_known & (np.abs(red / 50 - np.round(red / 50)) < 1e-3)
    assert is_pure.mean() > (0.99 if name == "flips" else 0.3)
    # A mixture of the areas 0 and 2 may look like 1.
    assert (np.round(red / 50)[is_pure] == masks[is_pure]).mean() > (1 - 1e-9 if name == "flips" else 0.95)


@pytest.mark.parametrize("name", GEOMETRY)
def test_stored_masks_are_the_same_on_any_number_of_replicas(name: str) -> None:
    held, stored = (augment(with_masks(one), GEOMETRY[name]) for one in (False, True))
    whole = elements(training_input(held, 16, 3, 1))
    parts = elements(training_input(stored, 16, 3, 1), replicas=3)
    for step, expected in enumerate(whole):
        for place, column in enumerate(expected):
            found = np.concatenate([part[place] for part in parts[3 * step : 3 * step + 3]])
            np.testing.assert_array_equal(found, column)


def test_images_among_columns_are_changed_and_the_columns_are_not() -> None:
    alone = replace(strong(), mixup=0.0, cutmix=0.0)
    changed, plain = (
        elements(training_input(augment(with_a_column(50), given), 16, 3, 2)) for given in (alone, AugmentSettings())
    )
    for one, other in zip(changed, plain, strict=True):
        images, number, labels, _ = one
        assert images.shape == other[0].shape
        np.testing.assert_array_equal(labels, other[2])
        assert not np.array_equal(images, other[0])
        np.testing.assert_array_equal(number, other[1])


class Brighter(Transform):
    """A transform as a user writes it: adds up to 8 to all pixels of an image."""

    randoms = 1

    def __call__(self, example: Example, numbers: tf.Tensor) -> Example:
        images = example.inputs["images"] + 8 * numbers[:, :, None, None]
        return example._replace(inputs={**example.inputs, "images": images})


def test_a_custom_transform_gives_each_row_numbers_of_its_own() -> None:
    plain = real_digits(50)
    dataset = replace(plain, transforms=(Brighter(),))
    before, whole = (elements(training_input(one, 16, 3, 2)) for one in (plain, dataset))
    parts, late = (
        elements(training_input(dataset, 16, 3, 2), replicas=2),
        elements(training_input(dataset, 16, 3, 2, 5)),
    )
    added = np.concatenate([one[0] - other[0] for one, other in zip(whole, before, strict=True)])
    assert np.ptp(added, axis=(1, 2, 3)).max() < 1e-4
    assert len(np.unique(added[:, 0, 0, 0].round(4))) > 90
    np.testing.assert_array_equal(
        np.concatenate([part[0] for part in parts]), np.concatenate([one[0] for one in whole])
    )
    np.testing.assert_array_equal(late[0][0], whole[5][0])
