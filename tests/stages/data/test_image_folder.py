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
        assert set(split.target_values) == {0, 1, 2}


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
    with pytest.raises(UserError, match=r"has the folders other/, train/, validation/"):
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


@pytest.mark.parametrize(("one", "two"), [
    ("train/Cat", "test/cat"), ("train/caf\u00e9", "test/cafe\u0301"), ("train/cat", "train/cat "), ("Cat", "cat"),
    ("big dog", "big  dog"), ("straße", "STRASSE"), ("cat", "cat\u200b"), ("val/İ", "train/i\u0307"),
    ("ﬁsh", "fish"), ("a\u00a0b", "a b"),
])  # fmt: skip
def test_names_that_mean_one_class_are_refused(one: str, two: str, tmp_path: Path) -> None:
    """Also before TensorFlow is imported, by `check`."""
    root = tmp_path / "images"
    for name in (one, two, f"{Path(one).parent}/other"):
        folder_of(root / name, classes=0)
        write(root / name / "1.png")
    for refuse in (lambda: image_folder(settings(root)), lambda: settings(root).check("data")):
        with pytest.raises(UserError, match="differ only in case, spaces or the Unicode form of a letter") as caught:
            refuse()
        for name in (one, two):
            assert repr(name) in str(caught.value) or ascii(name) in str(caught.value)
        assert "rename" in caught.value.expected


LEFT = (
    "__MACOSX/class 0/._001.png", "__macosx/x.png", "@eaDir/001.png", "class 0/@eaDir/001.png/thumb.png",
    ".ipynb_checkpoints/x.png", "class 1/.ipynb_checkpoints/x.png", "class 0/._001.png", "class 0/Thumbs.db",
    "desktop.ini", "class 1/Desktop.ini", ".DS_Store", "lost+found/x.png", "$RECYCLE.BIN/x.png",
    "#snapshot/x.png", "Temporary Items/x.png",
)  # fmt: skip


@pytest.mark.parametrize("below", [".", "train"])
def test_what_archives_and_programs_leave_is_no_example(below: str, tmp_path: Path) -> None:
    clean, root = tmp_path / "clean", tmp_path / "images"
    for folder in (clean, root):
        folder_of(folder / below)
    for place in LEFT:
        for top in {root / below} if place.startswith("class") else {root, root / below}:
            write(top / f"{place}.png", 7).rename(top / place)
    reporter = Telling()
    assert image_folder(settings(root), reporter).fingerprint == image_folder(settings(clean)).fingerprint
    assert not any("ignored" in line for line in reporter.lines)


def test_links_lose_no_image_without_a_word(tmp_path: Path) -> None:
    plain, root, other = folder_of(tmp_path / "plain"), tmp_path / "images", tmp_path / "elsewhere"
    folder_of(root, classes=1)
    folder_of(other)
    (root / "class 1").symlink_to(other / "class 1")  # a class
    (root / "class 0" / "000.png").unlink()
    (root / "class 0" / "000.png").symlink_to(other / "class 0" / "000.png")
    reporter = Telling()
    assert image_folder(settings(root), reporter).fingerprint == image_folder(settings(plain)).fingerprint
    assert not reporter.warnings
    moved = other / "moved"
    moved.mkdir()
    for number in range(6, 12):
        (root / "class 0" / f"{number:03}.png").rename(moved / f"{number:03}.png")
    (root / "class 0" / "more").symlink_to(moved)  # a folder in a class
    (root / "class 0" / "notes.txt").touch()
    (root / "class 0" / "up").symlink_to(root)
    (root / "class 0" / "itself").symlink_to(root / "class 0" / "itself")
    (root / "class 1" / "gone").symlink_to(other / "gone")
    (root / "class 2").symlink_to(other / "gone")
    reporter = Telling()
    dataset = image_folder(settings(root), reporter)
    assert sum(len(split) for split in dataset.splits.values()) == 24
    [warning] = reporter.warnings
    assert "skipped 4 links that point to nothing or to a folder above them, such as class" in warning
    assert any(": ignored 1 files" in line for line in reporter.lines)


def test_a_folder_above_the_classes_is_found(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos")
    (tmp_path / "__MACOSX").mkdir()
    with pytest.raises(UserError, match=r"has 1 class folder\(s\): photos") as caught:
        settings(tmp_path).check("data")
    assert caught.value.fix == f"data.dir={tmp_path / 'photos'}"
    settings(tmp_path / "photos").check("data")


def test_splits_beside_another_folder_are_no_classes(tmp_path: Path) -> None:
    for name in ("Train", "Test", "predictions"):
        folder_of(tmp_path / name)
    with pytest.raises(UserError, match=r"has the folders Test/, Train/, predictions/\. Expected only train/"):
        settings(tmp_path).check("data")


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
