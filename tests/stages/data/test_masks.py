"""Masks: decoded with the geometry of their images, from memory and from the disk, and refused if they cannot fit."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stages.augment import augment
from stages.data.batches import distributed, training_input
from stages.data.convert import InvalidImageError
from stages.data.decode import Decoder
from stages.data.masks import MaskDecoder, classes_of_values
from stages.errors import UserError
from stages.load.arrays import dataset_of_result
from stages.load.folders import image_folder
from stages.results import Dataset
from stages.settings.data import AugmentSettings, ImageFolderSettings
from stages.settings.ranges import check
from stages.tasks.segmentation import IGNORED, segmentation
from tests.stages.experiments import one_device

random = np.random.default_rng(7)


def encoded(array: np.ndarray, mode: str | None = None, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).convert(mode or None).save(file, form, **options)
    return file.getvalue()


def mask(height: int = 20, width: int = 30, classes: int = 3) -> np.ndarray:
    return random.integers(0, classes, (height, width)).astype(np.uint8)


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(16, 16), (40, 24), (20, 30)])
def test_a_mask_has_the_geometry_of_its_image(resize: str, size: tuple[int, int]) -> None:
    """Blocks of one color stay with their class, whatever way they are resized; only pixels at edges may mix."""
    classes = np.kron(np.arange(12).reshape(3, 4), np.ones((40, 40))).astype(np.uint8)
    pixels = np.repeat(classes[..., None] * 20 + 10, 3, axis=2)
    picture = encoded(pixels)
    [image] = Decoder((*size, 3), resize)([picture])
    [found] = MaskDecoder(size, resize)([(picture, encoded(classes))])
    assert isinstance(image, np.ndarray)
    assert isinstance(found, np.ndarray)
    is_inside = found != IGNORED
    assert is_inside.all() == (resize != "pad")
    np.testing.assert_array_equal(image[~is_inside], 0)
    expected = found[is_inside].astype(int) * 20 + 10
    difference = np.abs(image[is_inside][:, 0].astype(int) - expected)
    assert np.median(difference) <= 10
    shift = np.abs(image[..., 0].astype(int)[is_inside] - np.roll(found, 5, axis=1)[is_inside].astype(int) * 20 - 10)
    assert difference.mean() < shift.mean() / 2


@pytest.mark.parametrize("size", [(10, 15), (32, 46), (64, 8)])
def test_stretching_is_the_nearest_pixel_of_pillow(size: tuple[int, int]) -> None:
    given = mask()
    [found] = MaskDecoder(size, "stretch")([(encoded(np.zeros((20, 30, 3), np.uint8)), encoded(given))])
    wanted = np.asarray(Image.fromarray(given).resize(size[::-1], Image.Resampling.NEAREST))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", ["P", "L", "1", "I;16"])
def test_every_kind_of_mask_has_its_values(mode: str) -> None:
    given = mask(classes=2)
    picture = Image.fromarray(given)
    if mode == "P":
        picture.putpalette([0, 0, 0, 200, 10, 10])
    elif mode == "1":
        picture = Image.fromarray(given.astype(bool))
    elif mode == "I;16":
        picture = Image.fromarray(given.astype(np.uint16))
    assert picture.mode == mode
    file = io.BytesIO()
    picture.save(file, "PNG")
    [found] = MaskDecoder((20, 30), "stretch")([(encoded(np.zeros((20, 30, 3), np.uint8)), file.getvalue())])
    np.testing.assert_array_equal(found, given)


def test_an_upright_photo_fits_its_mask() -> None:
    """A photo with an EXIF tag that turns it by a quarter has the sides of its mask only when it is upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = encoded(np.zeros((30, 20, 3), np.uint8), form="JPEG", exif=exif)
    upright, other = MaskDecoder((8, 8), "stretch")([(photo, encoded(mask())), (photo, encoded(mask(30, 20)))])
    assert isinstance(upright, np.ndarray)
    assert "its mask has 20×30 pixels, not 30×20" in str(other)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encoded(np.zeros((20, 30, 3), np.uint8)), "has colors .mode RGB., not class numbers. Save masks as gray"),
        (encoded(np.full((20, 30), 700, np.uint16)), "has the value 700, but a class is at most 254"),
        (encoded(mask(), form="JPEG"), "is a JPEG, which changes the values of pixels"),
        (b"no image", "its mask cannot be read"),
        (encoded(mask())[:60], "its mask cannot be read"),
        (encoded(np.full((20, 30), 9, np.uint8)), "has the value 9, which is not in data.mask_values"),
    ],
)
def test_a_mask_that_cannot_be_used_says_why(content: bytes, message: str) -> None:
    decoder = MaskDecoder((8, 8), "stretch", {0: 0, 1: 1})
    [found] = decoder([(encoded(np.zeros((20, 30, 3), np.uint8)), content)])
    assert isinstance(found, InvalidImageError)
    assert re.search(message, str(found))


def test_values_become_classes_in_the_order_of_the_mapping() -> None:
    classes, names = classes_of_values({1: "pet", 2: "background", 3: None, 7: "pet"})
    assert (classes, names) == ({1: 0, 2: 1, 3: IGNORED, 7: 0}, ["pet", "background"])
    given = np.array([[1, 2], [3, 7]], np.uint8)
    [found] = MaskDecoder((2, 2), "stretch", classes)([(encoded(np.zeros((2, 2, 3), np.uint8)), encoded(given))])
    np.testing.assert_array_equal(found, [[0, 1], [IGNORED, 0]])


def folder_of(place: Path, count: int = 24, values: Mapping[int, int] | None = None, split: str = "") -> Path:
    """Write photos and masks; each photo shows its mask as gray."""
    for number in range(count):
        given = mask(18, 24)
        shown = np.repeat((given * 100)[..., None], 3, axis=2)
        for part, array in (("photos", shown), ("masks", given)):
            path = place / part / split / f"{number % 3}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = np.array([(values or {}).get(value, value) for value in range(3)], np.uint8)
            Image.fromarray(table[array] if part == "masks" else array).save(path)
    return place


def settings(place: Path, **more: Any) -> ImageFolderSettings:
    given = ImageFolderSettings(dir=str(place / "photos"), masks=str(place / "masks"), **{"size": None, **more})
    given.size = [18, 24] if given.size is None else given.size
    check(given, "data")
    return given


def targets(data: Dataset) -> np.ndarray:
    return np.concatenate([np.asarray(split.targets[:]) for split in data.splits.values()])


def test_a_folder_has_splits_classes_and_the_masks_of_its_images(tmp_path: Path) -> None:
    data = image_folder(settings(folder_of(tmp_path), classes=["sky", "tree", "house"]))
    assert data.task.names == ("sky", "tree", "house")
    assert data.task.kind == "segmentation"
    assert [len(split) for split in data.splits.values()] == [18, 3, 3]
    for split in data.splits.values():
        np.testing.assert_array_equal(np.asarray(split.images[:])[..., 0], np.asarray(split.targets[:]) * 100)
    assert len(data.test.files or ()) == 3
    assert image_folder(settings(tmp_path)).task.names == ("0", "1", "2")


def test_splits_may_be_folders_in_both(tmp_path: Path) -> None:
    for split, count in (("train", 9), ("val", 4), ("test", 5)):
        folder_of(tmp_path, count, split=split)
    data = image_folder(settings(tmp_path))
    assert [len(split) for split in data.splits.values()] == [9, 4, 5]


def test_from_the_disk_the_same_masks_and_a_second_run_reads_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder_of(tmp_path)
    memory = image_folder(settings(tmp_path))
    first, second = (image_folder(settings(tmp_path, memory_gib=0.0), cache=cache) for _ in range(2))
    assert not isinstance(first.train.targets, np.ndarray)
    for data in (first, second):
        np.testing.assert_array_equal(targets(data), targets(memory))
        assert data.fingerprint == memory.fingerprint
    assert len([*cache.glob("images-*")]) == 1


def test_a_changed_mask_changes_the_fingerprint_and_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder_of(tmp_path)
    before = image_folder(settings(tmp_path), cache=cache)
    Image.fromarray(np.ones((18, 24), np.uint8)).save(tmp_path / "masks" / "0" / "0.png")
    after = image_folder(settings(tmp_path), cache=cache)
    assert after.fingerprint != before.fingerprint
    assert len([*cache.glob("images-*")]) == 2


def test_black_and_white_masks_need_names(tmp_path: Path) -> None:
    folder_of(tmp_path, values={1: 255, 2: 255})
    with pytest.raises(UserError, match=r"only 0 and 255.*Try: 'data.mask_values=\{0: background, 255: object\}'"):
        image_folder(settings(tmp_path))
    data = image_folder(settings(tmp_path, mask_values={0: "background", 255: "object"}))
    assert data.task.names == ("background", "object")
    assert {*np.unique(targets(data))} == {0, 1}


def test_a_mask_that_cannot_be_used_fails_or_is_left_out(tmp_path: Path) -> None:
    folder_of(tmp_path)
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(tmp_path / "masks" / "1" / "1.png")
    with pytest.raises(UserError, match=r"1\.png: its mask has 5×5 pixels, not 24×18"):
        image_folder(settings(tmp_path))
    data = image_folder(settings(tmp_path, on_error="skip"))
    assert sum(map(len, data.splits.values())) == 23
    with pytest.raises(UserError, match="its mask has the class 2, but there are only 2 classes"):
        image_folder(settings(tmp_path, classes=["a", "b"], on_error="fail"))


def test_what_can_be_known_before_is_refused_before(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "masks" / "2" / "2.png").unlink()
    with pytest.raises(UserError, match=r"an image has no mask; the first is .*photos/2/2\.png.*masks/2/2\.png"):
        settings(tmp_path)
    with pytest.raises(UserError, match=r"data.masks=/none is not a directory"):
        check(ImageFolderSettings(dir=str(tmp_path / "photos"), masks="/none"), "data")
    with pytest.raises(UserError, match=r"data.classes has no effect without data.masks"):
        check(ImageFolderSettings(dir=str(tmp_path / "photos"), classes=["a", "b"]), "data")
    for wrong in ({"classes": ["a"]}, {"classes": "a"}, {"mask_values": {0: "a"}}, {"mask_values": {300: "a", 1: "b"}}):
        with pytest.raises(UserError, match="is not"):
            settings(tmp_path, **wrong)


def test_augmentation_moves_a_mask_with_its_image(tmp_path: Path) -> None:
    """The photos show their masks, and still do when they are flipped."""
    data = image_folder(settings(folder_of(tmp_path)))
    changed = augment(data, AugmentSettings(horizontal_flip=True, vertical_flip=True))
    [batch] = distributed(one_device().distribution, training_input(changed, 18, 5, 1))
    images, masks = np.asarray(batch.inputs["images"]), np.asarray(batch.targets)
    np.testing.assert_array_equal(images[..., 0], masks * 100)
    before = {one.tobytes() for one in np.asarray(data.train.targets[:], np.int32)}
    moved = sum(one.tobytes() not in before for one in masks)
    assert 5 < moved < 18


def test_arrays_of_whole_numbers_are_masks_of_their_images() -> None:
    """With names of their own, with missing splits, and with pixels that do not count."""
    masks = random.integers(0, 3, (30, 8, 6))
    masks[0, 0, 0] = IGNORED
    images = (masks[..., None] * 60).clip(0, 255).astype(np.uint8)
    data = dataset_of_result((images, masks))
    assert (data.task.kind, data.task.names) == ("segmentation", ("0", "1", "2"))
    assert sum(map(len, data.splits.values())) == 30
    for split in data.splits.values():
        np.testing.assert_array_equal(split.images[:][..., 0], (split.target_values * 60).clip(0, 255))
    train, test = ({"photo": images[:20]}, {"mask": masks[:20]}), ({"photo": images[20:]}, {"mask": masks[20:]})
    assert [len(split) for split in dataset_of_result((train, test)).splits.values()] == [18, 2, 10]


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [
        (np.zeros((9, 8, 6, 3), np.uint8), np.ones((9, 8, 5), np.uint8), r"masks of shape \(9, 8, 5\), and features"),
        (np.zeros((9, 4)), np.ones((9, 8, 5), np.uint8), "images .N, H, W, C. and masks"),
        (np.zeros((9, 8, 6, 3), np.uint8), np.full((9, 8, 6), 255), "the masks have only 0 and 255"),
        ({"a": np.zeros(9), "b": np.zeros(9)}, np.ones((9, 8, 6), int), "no other features"),
    ],
)
def test_arrays_that_are_no_images_with_masks_are_refused(features: Any, targets: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataset_of_result((features, targets))


def test_a_gallery_shows_masks_of_each_class_on_their_images() -> None:
    """Pixels that do not count stay as they are; half of the others is the color of the class."""
    masks = np.zeros((3, 4, 4), np.uint8)
    masks[1, 0, 0], masks[2, :2], masks[0, 3, 3] = 1, 2, IGNORED
    targets = segmentation(["a", "b", "c"]).targets
    assert {name: rows.tolist() for name, rows in targets.groups(masks).items()} == {"a": [0, 1, 2], "b": [1], "c": [2]}
    drawn = targets.drawn_on(np.ones((3, 4, 4, 1), np.float32), masks, (0.0, 1.0))
    assert drawn.shape == (3, 4, 4, 3)
    np.testing.assert_allclose(drawn[0, 3, 3], 1.0)
    np.testing.assert_allclose(drawn[0, 0, 0], 0.5, atol=0.01)
    assert not np.allclose(drawn[1, 0, 0], drawn[2, 0, 0])
