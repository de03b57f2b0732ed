"""What a source of data says when it cannot be used: what and where it is, and a fix that works when it is typed."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets
from tensorflow_datasets import features as kinds

from stages.data.loading import Invalid, _refuse
from stages.errors import UserError
from stages.inspect import log, statistics
from stages.load.folders import image_folder
from stages.load.tfds import tfds
from stages.results import Dataset
from stages.settings.data import TfdsSettings
from tests.stages import tfds_sets
from tests.stages.images import Telling, folder_of, image, settings, write


def refused(load: Callable[[Any], Dataset], given: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        load(given)
    assert "0x" not in str(caught.value)
    return caught.value


def typed(given: Any, error: UserError) -> Any:
    """Return the settings after the user has typed what the error says."""
    assert error.fix, str(error)
    for override in error.fix.split():
        name, _, text = override.partition("=")
        value: Any = None if text == "null" else float(text) if re.fullmatch(r"[\d.e-]+", text) else text
        given = replace(given, **{name.removeprefix("data."): int(value) if name == "data.size" else value})
    return given


def test_files_that_are_passed_over_are_counted(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images", suffix=".JPG")
    inside = root / "class 0"
    for name in ("a.txt", "b.TXT", "c.tif", "README", ".hidden.png", "deeper/d.tif", ".git/e.png"):
        (inside / name).parent.mkdir(exist_ok=True)
        (inside / name).write_text("no image")
    (root / "MANIFEST").write_text("sums")
    (inside / "a folder.png").mkdir()
    write(inside / "a folder.png" / "x.png", 77)
    (inside / "linked").symlink_to(tmp_path / "images" / "class 1")
    (inside / "link.jpg").symlink_to(root / "class 1" / "000.JPG")
    reporter = Telling()
    dataset = image_folder(settings(root), reporter)
    assert any(
        "ignored 6 files that are not in a class folder or do not end in .jpg, " in line for line in reporter.lines
    )
    assert sum(len(split) for split in dataset.splits.values()) == 26 + 12  # of the linked folder
    (inside / "broken.png").symlink_to(tmp_path / "nowhere.png")
    assert "broken.png: No such file" in str(refused(image_folder, settings(root)))


def test_splits_are_found_by_any_case(tmp_path: Path) -> None:
    for split in ("Train", "Test"):
        folder_of(tmp_path / split, examples=6)
    dataset = image_folder(settings(tmp_path))
    assert dataset.task.names == ("class 0", "class 1")
    assert len(dataset.test) == 12
    (tmp_path / "Train").rename(tmp_path / "val")
    assert "has the folders Test/, val/. Expected only train/" in str(refused(image_folder, settings(tmp_path)))
    folder_of(tmp_path / "vehicles")
    (tmp_path / "vehicles" / "class 0").rename(tmp_path / "vehicles" / "Train")
    assert image_folder(settings(tmp_path / "vehicles")).task.names == ("Train", "class 1")


@pytest.mark.parametrize(("made", "said"), [
    ({"a": 4, "b": 0}, "only the class a has training examples"), ({"a": 4}, r"has 1 class folder\(s\): a"),
    ({}, r"has 0 class folder\(s\)"),
])  # fmt: skip
def test_too_few_classes_are_refused_whatever_is_left_out(made: dict[str, int], said: str, tmp_path: Path) -> None:
    for name, count in made.items():
        (tmp_path / name).mkdir()
        for index in range(count):
            write(tmp_path / name / f"{index}.png", index)
    for on_error in ("fail", "skip"):
        with pytest.raises(UserError, match=said) as caught:
            image_folder(settings(tmp_path, on_error=on_error))
        assert "on_error" not in caught.value.fix


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_whose_folder_is_empty_is_not_cut_from_another(split: str, tmp_path: Path) -> None:
    """As it would be where there is no such folder: a mount may be missing."""
    folder_of(tmp_path / "train", examples=20)
    assert len(image_folder(settings(tmp_path)).test) > 0
    (tmp_path / split / "class 0").mkdir(parents=True)
    (tmp_path / split / "class 0" / ".gitkeep").touch()
    name = "test" if split == "test" else "val"
    assert f"the {name} split of {tmp_path.name} has no examples in its class folders" in str(
        refused(image_folder, settings(tmp_path))
    )
    write(tmp_path / split / "class 0" / "1.png", 7)
    assert len(image_folder(settings(tmp_path)).splits[name]) == 1


def test_a_class_without_a_test_example_is_warned_of(tmp_path: Path) -> None:
    for path in sorted((folder_of(tmp_path, classes=3, examples=40) / "class 2").iterdir())[3:]:
        path.unlink()
    dataset = image_folder(settings(tmp_path, test_fraction=0.06, val_fraction=0.1))
    assert len(np.unique(dataset.test.target_values)) < 3
    reporter = Telling()
    log(statistics(dataset), dataset, reporter)
    assert any("have no example in test (for instance class 2" in line for line in reporter.lines)


def _default(feature: Any) -> Any:
    if type(feature).__name__ == "Image":
        return image(500).astype(feature.np_dtype)
    return {"ClassLabel": 0, "Text": "x", "Sequence": []}[type(feature).__name__]


def _usable(tmp_path: Path, name: str, features: dict[str, Any], keys: tuple[str, str], **more: Any) -> TfdsSettings:
    examples = [
        {other: _default(feature) for other, feature in features.items()} | {keys[0]: image(index), keys[1]: index % 2}
        for index in range(20)
    ]
    tfds_sets.make_set(tmp_path, {"train": examples}, features, name, **more)
    return TfdsSettings(name=name, dir=str(tmp_path), size=16)


IMAGE, LABEL, TEXT = tfds_sets.IMAGE, tfds_sets.LABEL, kinds.Text()
BOXES = kinds.Sequence(kinds.BBoxFeature())


@pytest.mark.parametrize(("name", "features", "keys"), [
    ("others", {"photo": IMAGE, "kind": LABEL, "id": TEXT}, ("photo", "kind")),
    ("chosen", {"left": IMAGE, "right": IMAGE, "a": LABEL, "b": LABEL}, ("right", "b")),
])  # fmt: skip
def test_a_set_of_tfds_is_read_whatever_its_features_are_called(
    name: str, features: dict[str, Any], keys: tuple[str, str], tmp_path: Path
) -> None:
    made = _usable(tmp_path, name, features, keys)
    if name == "chosen":
        error = refused(tfds, made)
        assert "has the features a (ClassLabel), b (ClassLabel), left (Image), right (Image)" in str(error)
        assert "data.label_key" in refused(tfds, typed(made, error)).fix
        made = replace(made, image_key="right", label_key="b")
    dataset = tfds(made)
    assert sum(len(split) for split in dataset.splits.values()) == 20
    assert set(dataset.train.target_values) == {0, 1}
    assert len(np.unique(dataset.train.described.digests)) == len(dataset.train)


def test_the_pair_that_a_set_declares_comes_first(tmp_path: Path) -> None:
    features = {"image": IMAGE, "label": LABEL, "breed": LABEL}
    made = _usable(tmp_path, "declared", features, ("image", "breed"), supervised=("image", "breed"))
    assert set(tfds(made).train.target_values) == {0, 1}  # those of `label` are all 0


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "detection": ({"image": IMAGE, "boxes": BOXES}, r"has the features boxes \(Sequence\), image \(Image\)"),
    "boxes": (
        {"boxes": BOXES},
        r"has the features boxes \(Sequence\). Expected a class, labels, a number, a text or a mask",
    ),
    "deep": ({"image": kinds.Image(dtype=np.uint16), "label": LABEL}, "Expected one uint8 Image"),
    "single": ({"image": IMAGE, "label": kinds.ClassLabel(num_classes=1)}, "at least two classes"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_set_of_tfds_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    features, said = UNUSABLE[name]
    tfds_sets.make_set(
        tmp_path, {"train": [{key: _default(feature) for key, feature in features.items()}]}, features, name
    )
    with pytest.raises(UserError, match=said):
        tfds(TfdsSettings(name=name, dir=str(tmp_path), size=16))


def test_settings_that_do_not_fit_a_set_of_tfds_are_refused_with_a_fix_that_works(tmp_path: Path) -> None:
    made = _usable(tmp_path, "good", {"image": IMAGE, "label": LABEL}, ("image", "label"))
    changes: list[dict[str, Any]] = [
        {"size": None}, {"test_split": "nope"}, {"train_split": "trian[:80%]"}, {"val_split": "train[:10"},
        {"label_key": "lable"}, {"image_key": "label"}, {"train_split": "train[:60%]", "test_split": "train[50%:]"},
    ]  # fmt: skip
    for change in changes:
        given = replace(made, **change)
        tfds(typed(given, refused(tfds, given)))
    assert "the test split of good/1.0.0 has no examples" in str(refused(tfds, replace(made, test_split="train[:0%]")))


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_examples_come_in_the_order_of_their_files(file_format: str, tmp_path: Path) -> None:
    """Also of several files; numbers count them."""
    examples = [{"image": image(index), "label": index % 2} for index in range(30)]
    place = tfds_sets.make_set(
        tmp_path, {"train": examples}, {"image": IMAGE, "label": LABEL}, file_format=file_format, shards=3
    )
    given = TfdsSettings(name="made", dir=str(tmp_path), size=16, train_split="train[3:25]")
    dataset = tfds(given)
    builder = tensorflow_datasets.builder_from_directory(place)
    if file_format == "array_record":
        stored = [int(example["label"]) for example in builder.as_data_source("train[3:25]")]
    else:
        config = tensorflow_datasets.ReadConfig(interleave_cycle_length=1)
        read = builder.as_dataset("train[3:25]", read_config=config)
        stored = [int(example["label"]) for example in read.as_numpy_iterator()]
    for split in dataset.splits.values():
        assert split.numbers is not None
        np.testing.assert_array_equal(split.targets, np.array(stored)[split.numbers])


@pytest.mark.parametrize(("broken", "fix"), [(1, "data.on_error=skip"), (3, "")])
def test_to_skip_is_advised_only_where_something_remains(broken: int, fix: str) -> None:
    with pytest.raises(UserError) as raised:
        _refuse([Invalid("a.png", "cannot be decoded")] * broken, "fail", 3)
    assert raised.value.fix == fix
