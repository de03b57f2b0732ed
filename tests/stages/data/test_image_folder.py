"""A directory of images: what is found, how it is divided, what is done with files that are no images."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.errors import UserError
from stages.load.image_folder import image_folder
from tests.conftest import shared
from tests.stages.images import Telling, folder_of, image, settings, write


def test_classes_are_folders_whatever_their_names(tmp_path: Path) -> None:
    for label, name in enumerate(("кошки", "big dogs", "鳥")):
        for index in range(10):
            suffix = (".jpg", ".png", ".bmp", ".gif", ".JPEG")[index % 5]
            write(tmp_path / name / ("deeper" if index % 2 else ".") / f"an image {index}{suffix}", 100 * label + index)
    (tmp_path / "鳥" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    dataset = image_folder(settings(tmp_path))
    assert dataset.task.names == ("big dogs", "кошки", "鳥")
    assert sum(len(split) for split in dataset.splits.values()) == 30
    assert dataset.features["images"].shape == (16, 16, 3)
    for split in dataset.splits.values():
        assert set(split.targets) == {0, 1, 2}


def test_splits_share_nothing_and_are_a_function_of_the_seed(tmp_path: Path) -> None:
    folder_of(tmp_path, classes=2, examples=20)
    first, again, other = (image_folder(settings(tmp_path, split_seed=seed)) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    digests = np.concatenate([split.described.digests for split in first.splits.values()])
    assert len(digests) == len(set(digests)) == 40
    assert [len(split) for split in first.splits.values()] == [25, 7, 8]
    for split in first.splits.values():
        assert abs(split.targets.mean() - 0.5) < 0.1


def test_folders_that_are_splits_stay_apart(tmp_path: Path) -> None:
    root = tmp_path / "images"
    for number, name in enumerate(("train", "validation", "test")):
        for label in range(2):
            for index in range(4):
                write(root / name / f"c{label}" / f"{index}.png", 100 * number + 10 * label + index)
    dataset = image_folder(settings(root))
    assert [len(split) for split in dataset.splits.values()] == [8, 8, 8]
    expected = Image.fromarray(image(213)).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(dataset.test.images[7].astype(int), np.asarray(expected), atol=1)
    (root / "train" / "c0" / "1.png").write_bytes(b"no image")  # all that follow are numbered anew
    for cache in (None, tmp_path / "cache"):
        left = image_folder(settings(root, on_error="skip"), cache=cache)
        assert [len(split) for split in left.splits.values()] == [7, 8, 8]
        for name in ("val", "test"):
            np.testing.assert_array_equal(left.splits[name].images, dataset.splits[name].images)
            np.testing.assert_array_equal(left.splits[name].targets, dataset.splits[name].targets)
    write(root / "train" / "c0" / "1.png", 1)
    (root / "test").rename(root / "other")
    with pytest.raises(UserError, match=r"has other/, train/, validation/"):
        image_folder(settings(root))
    (root / "other").rename(tmp_path / "other")
    assert [len(split) for split in image_folder(settings(root)).splits.values()] == [6, 8, 2]


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_resizing_is_what_its_name_says(tmp_path: Path, resize: str) -> None:
    folder_of(tmp_path, examples=5)
    half = np.zeros((10, 30, 3), np.uint8)
    half[:, :10], half[:, 10:20], half[:, 20:] = 50, 100, 150
    for index in range(5):
        Image.fromarray(half).save(tmp_path / "class 0" / f"{index:03}.png")
    dataset = image_folder(settings(tmp_path, resize=resize, size=[10, 10]))
    shown = dataset.train.images[int(np.flatnonzero(dataset.train.targets == 0)[0])][:, :, 0]
    if resize == "stretch":
        assert shown[5].tolist()[::9] == [50, 150]
    elif resize == "crop":
        assert set(shown.ravel()) == {100}
    else:
        assert (shown[:3] == 0).all()
        assert (shown[7:] == 0).all()
        assert shown[5].tolist()[::9] == [50, 150]


def _spoil(root: Path, kind: str) -> Path:
    """Puts something that is no example in place of an image and returns its path."""
    path = root / "class 0" / "003.jpg"
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif kind == "text":
        path.write_text("no image at all")
    elif kind == "nothing":
        path.write_bytes(b"")
    elif kind == "1×1":
        Image.fromarray(np.zeros((1, 1, 3), np.uint8)).save(path)
    return path


@pytest.mark.parametrize("kind", ["truncated", "text", "nothing", "1×1"])
def test_what_is_no_image_is_named_or_left_out_and_recorded(tmp_path: Path, kind: str) -> None:
    root = folder_of(tmp_path / "images", suffix=".jpg")
    without = folder_of(tmp_path / "without", suffix=".jpg")
    (without / "class 0" / "003.jpg").unlink()
    path = _spoil(root, kind)
    for cache in (None, tmp_path / "cache"):
        with pytest.raises(UserError, match=str(path)):
            image_folder(settings(root), cache=cache)
        reporter = Telling()
        dataset = image_folder(settings(root, on_error="skip"), reporter, tmp_path / "run", cache)
        assert dataset.fingerprint == image_folder(settings(without)).fingerprint
        assert dataset.task.names == ("class 0", "class 1")
        assert dataset.record.params["data/skipped"] == 1
        assert str(path) in (tmp_path / "run" / "data" / "skipped.csv").read_text()
        assert any(str(path) in line for line in reporter.lines)
        with pytest.raises(UserError, match=str(path)):  # also where another run has prepared it without
            image_folder(settings(root), cache=cache)


def test_a_photo_of_twenty_megapixels_and_other_kinds_of_pixels(tmp_path: Path) -> None:
    folder_of(tmp_path, examples=5)
    Image.fromarray(image(1, 4000, 5000)).save(tmp_path / "class 0" / "000.jpg")
    grey = (np.arange(400).reshape(20, 20) * 160).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "class 0" / "001.png")
    Image.fromarray(image(3)).convert("P").save(tmp_path / "class 0" / "002.png")
    Image.fromarray(image(4)).convert("RGBA").save(tmp_path / "class 0" / "003.png")
    Image.fromarray(image(4)).convert("CMYK").save(tmp_path / "class 0" / "004.jpg")
    listed = image_folder(settings(tmp_path, val_fraction=0.2, test_fraction=0.2, size=20))
    everything = np.concatenate([split.images for split in listed.splits.values()])
    assert len(everything) == 12
    large = np.asarray(Image.fromarray(image(1, 4000, 5000)).resize((20, 20), Image.Resampling.BILINEAR))
    assert np.abs(everything.astype(int) - large).mean(axis=(1, 2, 3)).min() < 3
    deep = np.repeat((grey >> 8)[..., None], 3, axis=2)
    assert (np.abs(everything.astype(int) - deep).max(axis=(1, 2, 3)) == 0).any()


def test_a_photo_is_put_upright_and_odd_notes_of_a_camera_harm_nothing(tmp_path: Path) -> None:
    folder_of(tmp_path, examples=5)
    pixels = image(5, 16, 16)
    for index, (orientation, odd) in enumerate(((6, {}), (1, {0x829A: "no fraction", 0x9286: 7}))):
        notes = Image.Exif()
        notes[0x0112] = orientation
        for tag, value in odd.items():
            notes[tag] = value
        Image.fromarray(pixels).save(tmp_path / "class 0" / f"00{index}.jpg", exif=notes, quality=100, subsampling=0)
    shown = np.concatenate([split.images for split in image_folder(settings(tmp_path)).splits.values()])
    for expected in (np.rot90(pixels, -1), pixels):
        assert any(np.allclose(one.astype(int), expected, atol=4) for one in shown)


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.dir=.* is not a directory"):
        settings(tmp_path / "absent").check("data")
    write(tmp_path / "one" / "a.png")
    with pytest.raises(UserError, match=r"has 1 class folder\(s\): one"):
        image_folder(settings(tmp_path))


def test_real_photos_of_two_classes() -> None:
    dataset = image_folder(settings(shared("image_folder", "cats_dogs"), size=32))
    assert dataset.task.names == ("cats", "dogs")
    assert sum(len(split) for split in dataset.splits.values()) == 1000


def test_names_of_files_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(20):
            write(tmp_path / name / os.fsdecode(b"caf\xe9 %d.png" % number), number)
    dataset = image_folder(settings(tmp_path))
    assert dataset.test.files is not None
    for file in dataset.test.files:
        assert file.encode()
        assert "caf\\xe9" in file
