"""What the `inspect` stage tells of a data set, and draws of it, is what training sees."""

import csv
import itertools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from stages import inspect as stage
from stages.augment import augment
from stages.data.batches import training_input
from stages.data.columns import Streamed, describe
from stages.data.split import Split
from stages.inspect import BATCH, first_batch, inspect, statistics
from stages.plots import charts
from stages.plots.charts import drawable, plot_confusion
from stages.plots.galleries import plot_batch, plot_rows, shown
from stages.results import Dataset
from stages.settings.data import AugmentSettings, InspectSettings
from stages.tasks.classification import classification
from tests.stages.experiments import assemble, elements, real_digits, with_a_column
from tests.stages.images import Telling

pytestmark = pytest.mark.slow

SETTINGS = InspectSettings(batch_size=40, seed=3)
CHANGE = AugmentSettings(horizontal_flip=True, vertical_flip=True, rotation=0.2)


def noise(examples: int, shape: tuple[int, int, int] = (6, 5, 3), classes: int = 4, seed: int = 0) -> Split:
    pixels = np.random.default_rng(seed).integers(0, 256, (examples, *shape)).astype(np.uint8)
    return Split.of_images(pixels, np.arange(examples, dtype=np.int32) % classes)


def three(train: Split, val: Split, test: Split, names: tuple[str, ...] = tuple("abcd")) -> Dataset:
    return assemble("x", train, val, test, names)


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_statistics_are_those_of_numpy(tmp_path: Path) -> None:
    dataset = three(noise(50), noise(20, seed=1), noise(30, seed=2))
    heard = Telling()
    record = inspect(dataset, SETTINGS, reporter=heard, folder=tmp_path)
    assert not heard.warnings
    rows = read_table(tmp_path / "data" / "statistics.csv")
    for row, (name, channel) in zip(rows, itertools.product(dataset.splits, range(3)), strict=True):
        split = dataset.splits[name]
        assert (row["split"], int(row["examples"]), row["feature"]) == (name, len(split), f"images[{channel}]")
        pixels = np.asarray(split.images[...])[..., channel].astype(np.float64)
        assert float(row["mean"]) == pytest.approx(pixels.mean(), rel=1e-12)
        assert float(row["std"]) == pytest.approx(pixels.std(), rel=1e-9)
    classes = read_table(tmp_path / "data" / "classes.csv")
    assert [list(row.values()) for row in classes] == [
        ["a", "13", "5", "8"], ["b", "13", "5", "8"], ["c", "12", "5", "7"], ["d", "12", "5", "7"],
    ]  # fmt: skip
    facts = {"train_examples": 50, "val_examples": 20, "test_examples": 30, "classes": 4, "height": 6, "width": 5}
    assert facts.items() <= dataset.implied_record.summary["data"].items()
    assert not record.metrics  # nothing of it is measured
    assert {key: value for key, value in record.params.items() if "duplicates" in key} == {
        f"data/duplicates_{pair}": 0 for pair in ("train", "val", "test", "train_val", "train_test", "val_test")
    }


def test_duplicates_are_counted_within_and_between_splits() -> None:
    train, val, test = noise(50), noise(20, seed=1), noise(30, seed=2)
    train.images[:][[7, 9]] = train.images[4]  # twice more
    val.images[:][3] = train.images[9]  # labels 3 there, 0, 3 and 1 here
    val.images[:][5] = train.images[11]  # 1 there, 3 here
    test.images[:][[1, 2]] = val.images[5]
    test.images[:][8] = test.images[29]
    test.images[:][0, 0, 0, 0] ^= 1  # of one pixel's difference nothing is said
    dataset, heard = three(train, val, test), Telling()
    found = statistics(dataset)
    assert found.repeated == {"train": 2, "val": 0, "test": 2}
    assert found.shared == {("train", "val"): 2, ("train", "test"): 2, ("val", "test"): 2}
    params = inspect(dataset, SETTINGS, reporter=heard).params
    assert params["data/duplicates_train_val"] == 2
    assert [line.split("  ")[-1].strip() for line in heard.lines[2:5]] == [
        "2 within train", "2 also in train", "2 within test, 2 also in train, 2 also in val",
    ]  # fmt: skip
    assert heard.warnings == [
        "2 of 20 val images are also in train, 2 of 30 test images are also in train, 2 of 30 test images are also in "
        "val: the scores may be too high, as the network can memorize these"
    ]


def test_a_class_without_training_examples_is_warned_of() -> None:
    heard = Telling()
    inspect(three(noise(9, classes=3), noise(8, seed=1), noise(8, seed=2)), SETTINGS, reporter=heard)
    assert heard.warnings == [
        "1 of 4 classes have no example in train (for instance d): add examples, or remove it from the data"
    ]


def test_classes_of_the_same_name_are_warned_of() -> None:
    """Of a table, arrays or TFDS; folders are refused."""
    given = three(noise(9), noise(8, seed=1), noise(8, seed=2))
    heard = Telling()
    inspect(replace(given, task=classification(("Cat", "cat", "caf\u00e9", "cafe\u0301 "))), SETTINGS, reporter=heard)
    assert heard.warnings == [
        "'Cat' and 'cat' are different classes: rename one if they mean the same",
        "'caf\\xe9' and 'cafe\\u0301 ' are different classes: rename one if they mean the same",
    ]


def test_images_of_few_levels_are_warned_of() -> None:
    """Those of 12 bits in files of 16, of which the upper 8 are read."""
    heard, given = Telling(), three(noise(20), noise(8, seed=1), noise(8, seed=2))
    dark = Split.of_images(np.asarray(given.train.images) // 17, given.train.target_values)
    inspect(three(dark, given.val, given.test), SETTINGS, reporter=heard)
    assert [line.partition(":")[0] for line in heard.warnings] == ["the images are very dark"]


def test_what_a_cache_has_noted_is_not_read_again() -> None:
    def unread(split: Split) -> Split:
        images = Streamed(lambda rows: pytest.fail("read"), split.images.shape, np.uint8)
        return Split.of_images(images, split.target_values).with_described(describe(split.features))

    train, val, test = noise(50), noise(20, seed=1), noise(30, seed=2)
    expected = inspect(three(train, val, test), SETTINGS)
    assert inspect(three(unread(train), unread(val), unread(test)), SETTINGS) == expected


@pytest.mark.parametrize("change", [AugmentSettings(), CHANGE, AugmentSettings(mixup=0.4, cutmix=1.0)])
def test_the_batch_shown_is_that_of_step_0(change: AugmentSettings) -> None:
    dataset = augment(real_digits(100), change)
    images, labels = first_batch(dataset, SETTINGS, "images")
    source = training_input(dataset, SETTINGS.batch_size, SETTINGS.seed, epochs=2)
    for replicas in (1, 2):
        shares = elements(source, replicas)[:replicas]
        expected = np.concatenate([part[0] for part in shares])[:BATCH]
        np.testing.assert_array_equal(labels, np.concatenate([part[1] for part in shares])[:BATCH])
        # Sines of another number of angles at once are rounded otherwise.
        np.testing.assert_allclose(images, expected, rtol=0, atol=0 if replicas == 1 else 1e-4)
    assert len(images) == BATCH


def test_labels_in_words() -> None:
    names = ("cat", "dog", "owl")
    assert classification(names).targets.title(np.array(1, np.int32), names) == "dog"
    for shares, title in (
        ([0.7, 0.3, 0.0], "cat 0.7 dog 0.3"), ([0.34, 0.36, 0.3], "dog 0.4 cat 0.3"), ([0.0, 0.0, 1.0], "owl 1.0"),
    ):  # fmt: skip
        assert classification(names).targets.title(np.array(shares, np.float32), names) == title


def within(whole: np.ndarray, part: np.ndarray) -> bool:
    """Return whether `part` lies somewhere in `whole`, both uint8 [h, w, 3], pixel for pixel."""
    windows = np.lib.stride_tricks.sliding_window_view(whole, part.shape)[..., 0, :, :, :]
    corner = (windows[:, :, 0, 0] == part[0, 0]).all(axis=-1)
    return any(np.array_equal(windows[tuple(place)], part) for place in np.argwhere(corner))


@pytest.mark.parametrize("size", [(8, 8, 1), (300, 40, 4)])
def test_images_are_drawn_pixel_for_pixel(size: tuple[int, int, int], tmp_path: Path) -> None:
    images, pixels = noise(9, size, seed=4).images[...], (0.0, 255.0)
    rows = plot_rows([images[:4], images[4:5]], [["first"], ["second"]], pixels, "rows", tmp_path / "rows.png")
    batch = plot_batch(images, tuple("abcdefghi"), pixels, "batch", tmp_path / "batch.png")
    for path, count in ((rows, 5), (batch, 9)):
        whole = np.rint(imread(path)[..., :3] * 255).astype(np.uint8)
        for drawn in shown(images, pixels)[:count]:
            assert max(drawn.shape[:2]) <= 96
            assert within(whole, drawn)


@pytest.mark.smoke
def test_pixels_are_scaled_from_the_range_of_the_data_set() -> None:
    grey = np.array([0, 8, 16, 99], np.float32).reshape(1, 2, 2, 1)
    small = shown(grey, (0.0, 16.0))[0, ::32, ::32]
    np.testing.assert_array_equal(small, np.array([[[0] * 3, [128] * 3], [[255] * 3, [255] * 3]], np.uint8))
    color = np.array([[[[-1.0, 0.0, 1.0, 0.3]]]], np.float32)
    np.testing.assert_array_equal(shown(color, (-1.0, 1.0))[0, 0, 0], [0, 128, 255])
    assert shown(np.full((1, 2, 2, 1), np.nan, np.float32), (0.0, 0.0)).max() == 0


BLACK = Split.of_images(np.zeros((8, 3, 3, 3), np.uint8), noise(8).target_values)
HUNDRED = noise(200, classes=100)
UNUSUAL = {
    "a hundred classes": three(HUNDRED, HUNDRED, HUNDRED, tuple(f"class {i}" for i in range(100))),
    "names": three(noise(8), noise(8), noise(8), ("猫", "собака", r"$\frac$", "a\tname " * 20)),
    "one pixel": three(noise(8, (1, 1, 1)), noise(8, (1, 1, 1)), noise(8, (1, 1, 1))),
    "constant": three(BLACK, BLACK, BLACK),
    "empty classes": three(noise(2, classes=1), noise(2), noise(2)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_data_is_told_and_drawn_without_a_warning_of_matplotlib(name: str, tmp_path: Path) -> None:
    change = replace(CHANGE, mixup=0.4, cutmix=1.0) if name == "names" else CHANGE
    dataset = augment(UNUSUAL[name], change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = inspect(dataset, SETTINGS, folder=tmp_path).files
        classes = np.eye(len(dataset.task.names), dtype=np.int64)
        plot_confusion(classes, dataset.task.names, tmp_path / "plots" / "confusion.png")
    names = [path.relative_to(tmp_path) for paths in files.values() for path in paths]
    assert list(map(str, names)) == [
        "data/statistics.csv", "data/classes.csv", "plots/classes.png", "plots/augmentation.png", "plots/batch.png",
    ]  # fmt: skip
    assert [row["class"] for row in read_table(tmp_path / "data" / "classes.csv")] == list(dataset.task.names)
    for path in files["plots"]:
        height, width, _ = imread(path).shape
        assert 32 < height < 1300
        assert 150 < width < 1500


def test_images_among_columns_are_drawn(tmp_path: Path) -> None:
    dataset, heard = augment(with_a_column(40), CHANGE), Telling()
    files = inspect(dataset, SETTINGS, reporter=heard, folder=tmp_path).files
    assert [path.name for path in files["plots"]] == ["classes.png", "augmentation.png", "batch.png"]
    assert heard.lines[0] == "digits: 10 classes, 2 features"
    assert [row["kind"] for row in read_table(tmp_path / "data" / "statistics.csv")] == ["image", "number"] * 3


def test_a_confusion_plot_has_the_weights_of_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(charts, "save", lambda figure, path: figures.append(figure))
    plot_confusion(np.array([[0.25, 0.0], [1.5, 12.0]]), ("a", "b"), tmp_path)
    [axes] = figures[0].axes
    assert [text.get_text() for text in axes.texts] == ["0.25", "1.5", "12"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[1.0, 0.0], [1 / 9, 8 / 9]])


def test_names_that_cannot_be_drawn_become_numbers() -> None:
    assert drawable(["cat", "猫", "собака", "x" * 30]) == ["cat", "#1", "собака", "x" * 23 + "…"]


def test_only_the_chief_tells_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, dataset = Telling(), real_digits(50)
    expected = inspect(dataset, SETTINGS)
    monkeypatch.setattr(stage, "is_chief", lambda strategy: False)
    record = inspect(dataset, SETTINGS, object(), heard, tmp_path)  # type: ignore[arg-type]
    assert record == expected
    assert not heard.lines
    assert not list(tmp_path.iterdir())
