"""A directory of images: what is found, how it is divided, what is done with files that are no images."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.errors import UserError
from stages.load.folders import image_folder
from stages.settings.data import ImageFolderSettings, TfdsSettings
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
    for before, name in ((root / "train", "Training"), (root / "validation", "valid"), (tmp_path / "other", "Testing")):
        before.rename(root / name)
    assert [len(split) for split in image_folder(settings(root)).splits.values()] == [8, 8, 8]


CONTENT = {"truncated": lambda content: content[:-200], "text": lambda _: b"no image at all", "nothing": lambda _: b""}


@pytest.mark.parametrize("kind", CONTENT)
def test_what_is_no_image_is_named_or_left_out_and_recorded(tmp_path: Path, kind: str) -> None:
    root = folder_of(tmp_path / "images", suffix=".jpg")
    without = folder_of(tmp_path / "without", suffix=".jpg")
    (without / "class 0" / "003.jpg").unlink()
    path = root / "class 0" / "003.jpg"
    path.write_bytes(CONTENT[kind](path.read_bytes()))
    for cache in (None, tmp_path / "cache"):
        with pytest.raises(UserError, match=str(path)) as refused:
            image_folder(settings(root), cache=cache)
        assert refused.value.fix == "data.on_error=skip"
        reporter = Telling()
        dataset = image_folder(settings(root, on_error="skip"), reporter, tmp_path / "run", cache)
        assert dataset.fingerprint == image_folder(settings(without)).fingerprint
        assert dataset.task.names == ("class 0", "class 1")
        assert dataset.record.params["data/skipped"] == 1
        assert str(path) in (tmp_path / "run" / "data" / "skipped.csv").read_text()
        assert any(str(path) in line for line in reporter.lines)
        with pytest.raises(UserError, match=str(path)):  # also where another run has prepared it without
            image_folder(settings(root), cache=cache)


def test_a_tenth_is_for_the_test_as_of_other_images() -> None:
    assert ImageFolderSettings().test_fraction == TfdsSettings().test_fraction == 0.1


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.dir=.* is not a directory"):
        settings(tmp_path / "absent").check("data")


def test_names_of_files_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(20):
            write(tmp_path / name / os.fsdecode(b"caf\xe9 %d.png" % number), number)
    dataset = image_folder(settings(tmp_path))
    assert dataset.test.files is not None
    for file in dataset.test.files:
        assert file.encode()
        assert "caf\\xe9" in file
