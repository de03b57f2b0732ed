"""TFDS data sets other than image classification: texts, nested numbers, classes, several labels, images, masks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow_datasets import features as kinds

from stages.errors import UserError
from stages.load.tfds import tfds
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import NormalizeSettings, TfdsSettings
from stages.tasks.classification import ClassTargets
from stages.tasks.multi_label import LabelTargets
from stages.tasks.regression import NumberTargets
from stages.tasks.segmentation import IGNORED
from tests.stages.images import Telling, image
from tests.stages.tfds_sets import IMAGE, make_set

ROWS = 60
SEX = kinds.ClassLabel(names=["woman", "man"])
LABELS = kinds.Sequence(kinds.ClassLabel(names=["red", "wide", "old", "never"]))
NUMBERS = kinds.FeaturesDict(
    {"age": np.float32, "rooms": np.int64, "sex": SEX, "parts": kinds.Tensor(shape=(3,), dtype=np.float32)}
)


def mask_of(row: int) -> np.ndarray:
    """Return the mask of an image, with the values 1, 2 and 3, uint8 [20, 30, 1]."""
    return (image(row)[..., :1] // 86 + 1).astype(np.uint8)


def example(row: int) -> dict[str, Any]:
    """Return a row with values for all features that tests use."""
    return {
        "text": f"a review of many words, number {row}", "label": row % 2,
        "labels": [place for place in range(3) if row // 2**place % 2], "price": row / 7, "count": row * 3,
        "numbers": {"age": row / 3, "rooms": row % 4, "sex": row % 2, "parts": [row, 1 / (row + 1), row % 5]},
        "image": image(row), "boxes": [], "mask": mask_of(row),
    }  # fmt: skip


FEATURES = {
    "text": kinds.Text(), "label": kinds.ClassLabel(names=["bad", "good"]), "labels": LABELS, "price": np.float32,
    "count": np.int64, "numbers": NUMBERS, "image": IMAGE, "boxes": kinds.Sequence(kinds.BBoxFeature()),
    "mask": kinds.Image(shape=(None, None, 1)),
}  # fmt: skip
NESTED = {"numbers_age": "number", "numbers_rooms": "category", "numbers_sex": "category", "numbers_parts": "vector"}


def load(folder: Path, names: Sequence[str], telling: Telling | None = None, **given: Any) -> Dataset:
    rows = [{name: example(row)[name] for name in names} for row in range(ROWS)]
    splits = {"train": rows[:48], "test": rows[48:]}
    make_set(folder, splits, {name: FEATURES[name] for name in names}, "_".join(names), shards=2)
    return tfds(TfdsSettings(name="_".join(names), dir=str(folder), **{"size": 12, **given}), telling)


@pytest.mark.parametrize(("names", "given", "task", "expected"), [
    (["text", "label"], {}, ClassTargets, {"text": "text"}), (["text", "labels"], {}, LabelTargets, {"text": "text"}),
    (["numbers", "price"], {"label_key": "price"}, NumberTargets, NESTED),
    (["numbers", "count"], {"label_key": "count"}, NumberTargets, NESTED),
    (
        ["numbers"],
        {"label_key": "numbers/sex", "features": ["numbers/age"]},
        ClassTargets,
        {"numbers_age": "number"},
    ),
    (["image", "labels", "boxes"], {}, LabelTargets, {"images": "image"}),
    (["image", "price"], {"label_key": "price"}, NumberTargets, {"images": "image"}),
])  # fmt: skip
def test_kinds_and_task_are_detected(
    names: list[str], given: dict[str, Any], task: type, expected: dict[str, str], tmp_path: Path
) -> None:
    telling = Telling()
    dataset = load(tmp_path, names, telling, **given)
    assert isinstance(dataset.task.targets, task)
    assert {name: feature.kind for name, feature in dataset.features.items()} == expected
    assert [len(split) for split in dataset.splits.values()] == [43, 5, 12]
    if task is LabelTargets:
        assert dataset.task.names == ("red", "wide", "old")
        assert any(
            "left out 1 labels that have the same value in all examples: never" in line for line in telling.lines
        )
    if "text" in names:
        numbers = [int(text.rpartition(" ")[2]) for text in dataset.test.features["text"][:]]
        assert sorted(numbers) == list(range(48, 60))
        if task is ClassTargets:
            assert dataset.task.names == ("bad", "good")
            np.testing.assert_array_equal(dataset.test.targets, np.array(numbers) % 2)
        else:
            np.testing.assert_array_equal(dataset.test.targets, np.array(numbers)[:, np.newaxis] // [1, 2, 4] % 2)
    normalize(dataset, NormalizeSettings())


def test_a_missing_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has the features numbers/age \(Tensor\).*Try: data.label_key=numbers/sex"):
        load(tmp_path, ["numbers"], label_key="price")


TRIMAP = {1: "pet", 2: "background", 3: None}


def test_an_image_of_one_channel_is_a_mask(tmp_path: Path) -> None:
    """It is read like the mask of a file: by the nearest pixel, with its values renamed, and from the cache."""
    given: dict[str, Any] = {"label_key": "mask", "mask_values": TRIMAP, "size": [20, 30]}
    data = load(tmp_path, ["image", "label", "mask"], **given)
    assert (data.task.kind, data.task.names) == ("segmentation", ("pet", "background"))
    assert [len(split) for split in data.splits.values()] == [43, 5, 12]
    renamed = np.array([IGNORED, 0, 1, IGNORED], np.uint8)
    images = np.asarray(data.test.images[:])  # TFDS has shuffled them
    assert {one.tobytes() for one in images} == {image(row).tobytes() for row in range(48, 60)}
    np.testing.assert_array_equal(data.test.targets[:], renamed[images[..., 0] // 86 + 1])
    settings = TfdsSettings(name="image_label_mask", dir=str(tmp_path), memory_gib=0.0, **given)
    first, second = (tfds(settings, cache=tmp_path / "cache") for _ in range(2))
    for streamed in (first, second):
        assert not isinstance(streamed.train.targets, np.ndarray)
        np.testing.assert_array_equal(streamed.train.targets[:], data.train.targets[:])
        assert streamed.fingerprint == data.fingerprint
    settings.mask_values = {1: "pet", 2: "background", 3: "border"}
    other = tfds(settings, cache=tmp_path / "cache")
    assert other.task.names == ("pet", "background", "border")
    assert len([*(tmp_path / "cache").glob("images-*")]) == 2


def test_the_declared_target_may_be_a_mask(tmp_path: Path) -> None:
    rows = [{"image": example(row)["image"], "mask": mask_of(row)} for row in range(ROWS)]
    make_set(tmp_path, {"train": rows}, {name: FEATURES[name] for name in rows[0]}, supervised=("image", "mask"))
    data = tfds(TfdsSettings(name="made", dir=str(tmp_path), size=12, classes=["none", "a", "b", "c"]))
    assert (data.task.kind, data.task.names) == ("segmentation", ("none", "a", "b", "c"))
    with pytest.raises(UserError, match="has the class 3, but there are only 2 classes"):
        tfds(TfdsSettings(name="made", dir=str(tmp_path), size=12, classes=["a", "b"]))


def test_classes_of_masks_need_a_mask(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no effect, as label of .* is not a mask"):
        load(tmp_path, ["image", "label", "mask"], mask_values=TRIMAP)
