"""Arrays from a function or a file as data sets: kinds, task and splits are determined as for a table."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from scipy.sparse import csr_matrix

from stages.errors import UserError
from stages.inspect import statistics
from stages.load.arrays import arrays, dataset_of_result
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.arrays import ArraysSettings
from stages.settings.data import NormalizeSettings
from stages.settings.train import RegressionSettings
from stages.tasks.classification import ClassTargets
from stages.tasks.multi_label import LabelTargets
from stages.tasks.regression import NumberTargets
from tests.stages.experiments import kept

ROWS = 300
RANDOM = np.random.default_rng(3)
NUMBERS = RANDOM.normal(5, 2, ROWS)
CLASSES = RANDOM.permutation(ROWS) % 20
VECTORS = RANDOM.normal(3, 4, (ROWS, 7))
TEXTS = np.array([f"a text of words, number {row}" for row in range(ROWS)])
PIXELS = RANDOM.integers(0, 256, (ROWS, 6, 5), np.uint8)


def cut(features: Any, targets: Any) -> Dataset:
    return dataset_of_result((features, targets))


def ends_of(dataset: Dataset) -> tuple[float, float]:
    """Return the range of the pixels of a data set of images."""
    assert dataset.images is not None
    return dataset.images.ends


def test_the_task_is_the_chosen_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=VECTORS, y=CLASSES, both=np.where(CLASSES > 9, "a", "b"))
    file = str(tmp_path / "a.npz")
    chosen = arrays(ArraysSettings(files=file, target="y", features=["x"], task=RegressionSettings()))
    assert isinstance(chosen.task.targets, NumberTargets)
    with pytest.raises(UserError, match=r"train row 1, column both: '.' is not a number"):
        arrays(ArraysSettings(files=file, target="both", features=["x"], task=RegressionSettings()))


@pytest.mark.parametrize(("targets", "task", "names"), [
    (CLASSES, ClassTargets, [*map(str, range(20))]),
    (np.array(["b", "a", "c"])[CLASSES % 3], ClassTargets, ["a", "b", "c"]),
    (CLASSES % 2 == 1, ClassTargets, ["False", "True"]), (NUMBERS, NumberTargets, ["target"]),
    (NUMBERS[:, np.newaxis], NumberTargets, ["target"]), (VECTORS[:, :2], NumberTargets, ["target_0", "target_1"]),
    (CLASSES[:, np.newaxis] % [2, 3, 1] == 1, LabelTargets, ["target_0", "target_1", "target_2"]),
    (np.float32(CLASSES[:, np.newaxis] % [2, 3, 1] == 0), LabelTargets, ["target_0", "target_1", "target_2"]),
    (pd.DataFrame({"wet": CLASSES % 2, "old": CLASSES // 10}), LabelTargets, ["wet", "old"]),
])  # fmt: skip
def test_the_task_follows_from_the_targets(targets: Any, task: type, names: list[str]) -> None:
    dataset = cut(VECTORS, targets)
    assert isinstance(dataset.task.targets, task)
    assert list(dataset.task.names) == names
    given = np.asarray(targets).reshape(ROWS, -1)[dataset.test.numbers]
    if task is ClassTargets:
        assert [names[row] for row in dataset.test.target_values] == list(map(str, given[:, 0]))
    else:
        np.testing.assert_array_equal(dataset.test.targets, given.astype(dataset.test.targets.dtype))


def test_features_keep_their_kinds_and_values() -> None:
    color = np.array(["red", "blue", None], object)[CLASSES % 3]
    features = {"size": NUMBERS, "parts (m)": VECTORS, "color": color, "note": TEXTS, "grade": CLASSES % 4}
    for given in (features, pd.DataFrame({name: features[name] for name in ("size", "color", "note", "grade")})):
        dataset = normalize(dataset_of_result((given, CLASSES % 3)), NormalizeSettings())
        kinds = {name: feature.kind for name, feature in dataset.features.items()}
        expected = {"size": "number", "color": "category", "note": "text", "grade": "category"}
        assert kinds == (expected if "parts (m)" not in given else {**expected, "parts__m_": "vector"})
    dataset = normalize(cut(features, CLASSES % 3), NormalizeSettings())
    rows = dataset.test.numbers
    np.testing.assert_array_equal(dataset.test.features["parts__m_"], VECTORS[rows])
    np.testing.assert_array_equal(dataset.test.features["size"], NUMBERS[rows])
    train = VECTORS[dataset.train.numbers]
    scaled = ((VECTORS[rows] - train.mean(axis=0)) / train.std(axis=0)).astype(np.float32)
    tensor = np.asarray(dataset.test.inputs["numbers"])
    places = [next(place for place in range(tensor.shape[1]) if np.allclose(tensor[:, place], one)) for one in scaled.T]
    assert (len({*places}), len(dataset.fingerprint)) == (VECTORS.shape[1], 32)
    changed = {**features, "parts (m)": VECTORS + (np.arange(ROWS)[:, np.newaxis] == 5)}
    assert cut(changed, CLASSES % 3).fingerprint != cut(features, CLASSES % 3).fingerprint


def test_masks_large_numbers_and_similar_names_are_preserved() -> None:
    masked, large = np.ma.masked_less(NUMBERS, 4), CLASSES.astype(np.uint64) + np.uint64(2**63)
    dataset = cut({"a b": VECTORS, "a_b": masked, "large": large}, CLASSES % 3)
    features, rows = dataset.test.features, dataset.test.numbers
    np.testing.assert_array_equal(features["a_b"], masked.filled(np.nan)[rows])
    np.testing.assert_array_equal(features["a_b_"], VECTORS[rows])
    np.testing.assert_array_equal(features["large"], large[rows].astype(np.float64))
    assert isinstance(cut(NUMBERS, np.ma.array(CLASSES % 3)).task.targets, ClassTargets)


def test_missing_elements_of_vectors_are_imputed() -> None:
    vectors = np.where(RANDOM.random(VECTORS.shape) < 0.1, np.nan, VECTORS)
    vectors[:, 3] = np.nan
    dataset = normalize(cut(vectors, CLASSES % 3), NormalizeSettings())
    assert statistics(dataset).rows[0][3] == "vector"
    tensor, rows = np.asarray(dataset.train.inputs["numbers"]), dataset.train.numbers
    assert tensor.shape[1] == 14
    assert np.isfinite(tensor).all()
    np.testing.assert_array_equal(tensor[:, 7:], np.isnan(vectors[rows]))
    column = vectors[rows][:, 0]
    median = (np.nanmedian(column) - np.nanmean(column)) / np.nanstd(column)
    np.testing.assert_allclose(tensor[np.isnan(column), 0], median, rtol=1e-5)


@pytest.mark.parametrize(("images", "ends"), [
    (PIXELS, (0, 255)), (PIXELS[..., np.newaxis] // 3, (0, 255)), (PIXELS[..., np.newaxis] / 255 * 1.0001, (0, 1)),
    (PIXELS[..., np.newaxis] / 255 * 0.3, (0, 1)), (PIXELS[..., np.newaxis] > 99, (0, 1)),
    ((PIXELS > 99).astype(np.uint8), (0, 1)), (np.zeros_like(PIXELS), (0, 1)),
    (PIXELS[..., np.newaxis] / 255 - 0.5, (-0.5, 0.5)), (PIXELS[..., np.newaxis] / 127.5 - 1, (-1, 1)),
    (PIXELS[..., np.newaxis] * np.uint16(257), (0, 65535)), (PIXELS // 15, (0, 17)),
    (PIXELS[..., np.newaxis] * 16.0, (0, 4080)), (PIXELS[..., np.newaxis] - 300.0, (-300, -45)),
    (PIXELS[..., np.newaxis] / 255 / 255, (0, 1 / 255)),
])  # fmt: skip
def test_pixels_are_images(images: np.ndarray, ends: tuple[float, float]) -> None:
    """Their range is the usual one that contains them, or else the range of the training pixels."""
    dataset = cut(images, CLASSES % 3)
    assert dataset.features["images"].shape == (6, 5, 1)
    assert ends_of(dataset) == pytest.approx(ends)
    np.testing.assert_allclose(dataset.test.images[:, :, :, 0], images.reshape(PIXELS.shape)[dataset.test.numbers])


def test_the_range_of_pixels_is_that_of_training() -> None:
    """A test image with other extremes does not change the scaling of others; an image with another unit is refused."""
    images = PIXELS[..., np.newaxis] - 300.0
    train, bright = (images[:200], CLASSES[:200] % 3), np.where(images[200:] > -60, -40.0, images[200:])
    dataset = dataset_of_result((train, (bright, CLASSES[200:] % 3)))
    assert ends_of(dataset) == (-300, -45)
    with pytest.raises(UserError, match="the test pixels are in"):
        dataset_of_result((train, (bright * 20, CLASSES[200:] % 3)))


GRAY = PIXELS[..., np.newaxis].astype(np.float32)


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (GRAY / 60 - 2.1, (-2, 2.25)),  # standardized pixels have the range of the training pixels
        (GRAY / 255, (0, 1)),
        (GRAY * 9, "are in 0..2295, outside the pixel_range "),
    ],
)
def test_a_reused_model_keeps_the_range_that_was_measured(given: np.ndarray, ends: Any, tmp_path: Path) -> None:
    """Data with another unit keeps its own range, so the trained weights refuse it."""
    trained_on = normalize(cut(GRAY / 60 - 2, CLASSES % 3), NormalizeSettings())
    if isinstance(ends, str):
        with pytest.raises(UserError, match=ends):
            kept(trained_on, cut(given, CLASSES % 3), tmp_path)
    else:
        other = kept(trained_on, cut(given, CLASSES % 3), tmp_path)
        assert ends_of(other) == pytest.approx(ends)


def test_given_splits_are_unchanged_and_others_are_cut() -> None:
    parts = [
        (NUMBERS[rows], CLASSES[rows] % 3, 1.0 + NUMBERS[rows] ** 2) for rows in np.split(np.arange(ROWS), [200, 240])
    ]
    dataset = dataset_of_result(tuple(parts))
    for (features, targets, weights), split in zip(parts, dataset.splits.values(), strict=True):
        np.testing.assert_array_equal(split.features["features"], features)
        np.testing.assert_array_equal(split.targets, targets)
        np.testing.assert_array_equal(split.weights, weights)
    for given in ((parts[0], parts[2]), (parts[0], None, parts[2])):
        dataset = dataset_of_result(given)
        assert [len(split) for split in dataset.splits.values()] == [180, 20, 60]
        np.testing.assert_array_equal(dataset.test.features["features"], parts[2][0])


@pytest.mark.parametrize(("names", "settings", "sizes"), [
    ({"x_train": PIXELS, "y_train": CLASSES, "x_test": PIXELS[:40], "y_test": CLASSES[:40]}, {}, [270, 30, 40]),
    ({"x": VECTORS, "y": NUMBERS, "w": NUMBERS**2}, {}, [216, 24, 60]),
    ({"x": VECTORS, "y": NUMBERS, "size": NUMBERS**2}, {"weight": "size"}, [216, 24, 60]),
    ({"x_train": NUMBERS, "y_train": CLASSES, "s_train": NUMBERS**2}, {"weight": "s_train"}, [216, 24, 60]),
    ({"x_train": VECTORS, "y_train": NUMBERS, "x_valid": VECTORS[:9], "y_valid": NUMBERS[:9]}, {}, [240, 9, 60]),
    ({"size": NUMBERS, "hot": CLASSES % 2, "note": TEXTS}, {"target": "hot", "weight": None}, [216, 24, 60]),
    ({"a": NUMBERS, "b": -NUMBERS, "c": VECTORS}, {"target": ["a", "b"]}, [216, 24, 60]),
])  # fmt: skip
def test_files(names: Mapping[str, np.ndarray], settings: dict[str, Any], sizes: list[int], tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", allow_pickle=False, **names)
    given = ArraysSettings(files=str(tmp_path / "some.npz"), **settings)
    given.check("data")
    dataset = arrays(given, folder=tmp_path)
    assert [len(split) for split in dataset.splits.values()] == sizes
    assert (dataset.train.weights is not None) == ("w" in names or settings.get("weight") is not None)


def load_file(settings: ArraysSettings) -> Dataset:
    settings.check("data")
    return arrays(settings)


def words(**columns: Any) -> tuple[Any, Any]:
    return {"size": NUMBERS, **columns}, CLASSES % 3


@pytest.mark.parametrize(("make", "message"), [
    (lambda: (), "the data function returned ()"),
    (lambda: {"x": NUMBERS, "y": CLASSES}, "the data function returned a dict. Expected a tuple (train"),
    (lambda: tf.data.Dataset.range(3), "returned a _RangeDataset. Expected a tuple (train"),
    (lambda: (NUMBERS, CLASSES % 2 * 1.0), "target has only 2 different values (0, 1): classes or amounts"),
    (lambda: (NUMBERS, CLASSES % 3 + 1.0), "target has only 3 different values (1, 2, 3): classes or"),
    (lambda: (NUMBERS, np.eye(3)[CLASSES % 3]), "exactly one of target_0, target_1, target_2 is 1 in every row"),
    (lambda: (NUMBERS,), "the data function returned (ndarray)"),
    (lambda: ((NUMBERS, CLASSES), NUMBERS), "the data function returned (tuple, ndarray)"),
    (lambda: words(color=TEXTS[:9]), "train: color has 9 rows, and target has 300"),
    (lambda: (pd.DataFrame(np.eye(300)[:, :2], columns=["x", "x"]), CLASSES % 3), "train has two columns named x"),
    (lambda: ({1: NUMBERS, "1": NUMBERS}, CLASSES % 3), "train has two columns named 1"),
    (lambda: (csr_matrix(VECTORS), CLASSES % 3), "train: features is a csr_matrix. Expected an array with one row"),
    (lambda: words(target=NUMBERS), "train: target is both a feature and a target"),
    (lambda: words(film=np.zeros((ROWS, 2, 2, 2, 1))), "film has dtype float64 and shape (300, 2, 2, 2, 1)"),
    (lambda: (np.where(PIXELS[..., np.newaxis] == 7, np.nan, 1.0), CLASSES), "train: features is nan in row "),
    (lambda: words(pair=np.array([["a", "b"]] * ROWS)), "train: pair has dtype <U1 and shape (300, 2)"),
    (lambda: words(mixed=np.array([1, "a"] * 150, object)), "train, column mixed: Could not convert 'a' with type str"),
    (lambda: words(name=np.array([b"\xff", b"a"] * 150)), "train, column name: Invalid UTF8 payload"),
    (lambda: words(wave=NUMBERS * 1j), "train, column wave: Unsupported numpy type"),
    (lambda: ([[1, 2], [3]] * 150, CLASSES % 3), "train: features is not an array (setting an array element"),
    (lambda: words(lists=np.array([[1], [2, 3]] * 150, object)), "train: the column lists has the type list"),
    (lambda: words(part=np.where(VECTORS > 9, np.inf, VECTORS)), "train: part is inf in row "),
    (lambda: (NUMBERS, CLASSES, -NUMBERS), "train weights are float64 "),
    (lambda: ((VECTORS, CLASSES % 3), (VECTORS[:, :2], CLASSES % 3)), "test: examples of features have the shape (2,)"),
    (lambda: (words(), words(more=NUMBERS)), "different columns: more is only in one of them"),
    (lambda: ({}, CLASSES % 3), "data has no features"),
    (lambda: ((NUMBERS, CLASSES), (NUMBERS[:0], CLASSES[:0]), (NUMBERS, CLASSES)), "val has no examples"),
    (lambda: ((NUMBERS, CLASSES), (NUMBERS[:0], CLASSES[:0])), "test has no examples"),
])  # fmt: skip
def test_unusable_arrays_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        dataset_of_result(make())
    assert message in str(error.value)
    assert "\n" not in str(error.value).strip()


@pytest.mark.parametrize(("names", "settings", "message"), [
    (None, {}, "cannot be read (No such file or directory)"),
    (b"no zip", {}, "cannot be read (File is not a zip file)"),
    ({"a": NUMBERS, "b": CLASSES}, {}, "some.npz has the arrays a, b"),
    ({"a": NUMBERS, "b": CLASSES}, {"target": "c"}, "data.target=c: "),
    ({"a": NUMBERS, "b": CLASSES}, {"target": "b", "weight": "c"}, "data.weight=c: "),
    ({"x": NUMBERS, "y": CLASSES}, {"weight": "c"}, "data.weight=c: "),
    ({"a": NUMBERS, "b": CLASSES}, {"target": "b", "features": {"c": "number"}}, "data.features: c is not an array"),
    ({"a": NUMBERS, "b": CLASSES}, {"target": "b", "features": {"a": "numbr"}}, "a has the unknown kind numbr"),
    ({"x": np.array([None, 1], object), "y": CLASSES}, {}, "without pickled objects"),
])  # fmt: skip
def test_unusable_files_are_refused(names: Any, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    if isinstance(names, dict):
        np.savez(path, **names)
    elif names is not None:
        path.write_bytes(names)
    with pytest.raises(UserError) as error:
        load_file(ArraysSettings(files=str(path), **settings))
    assert message in str(error.value)


def test_images_stand_among_other_features() -> None:
    bright = (PIXELS[..., np.newaxis] / 255).astype(np.float32)
    dataset = cut({"size": NUMBERS, "photo": PIXELS, "images": bright}, CLASSES % 3)
    assert {name: one.kind for name, one in dataset.features.items()} == {
        "size": "number", "photo": "image", "images_": "image",
    }  # fmt: skip
    prepared = normalize(dataset, NormalizeSettings())
    assert [*prepared.train.inputs] == ["numbers", "photo", "images_"]
    assert (prepared.scalings["photo"].scale, prepared.scalings["images_"].scale) == ((1 / 255,), (1.0,))
    for split in dataset.splits.values():
        rows = np.asarray(split.numbers)
        np.testing.assert_array_equal(split.features["photo"][:], PIXELS[rows][..., np.newaxis])
        np.testing.assert_array_equal(split.features["images_"][:], bright[rows])
        np.testing.assert_array_equal(split.features["size"][:], NUMBERS[rows])
