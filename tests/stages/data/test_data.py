"""Loading, splitting and scaling images."""

from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from stages.data.split import Split
from stages.data.splits import cut_all
from stages.errors import UserError
from stages.load.digits import digits
from stages.load.synthetic import synthetic
from stages.normalize import normalize
from stages.seeds import derive
from stages.settings.data import DigitsSettings, NormalizeSettings, SyntheticSettings
from tests.stages.experiments import assemble


def test_digits_are_all_there_and_in_one_split_each() -> None:
    dataset = digits(DigitsSettings(split_seed=1))
    assert [len(split) for split in dataset.splits.values()] == [1293, 144, 360]
    assert len({image.tobytes() for split in dataset.splits.values() for image in split.images[:]}) == 1797
    assert dataset.features["images"].shape == (8, 8, 1)
    assert dataset.train.images.dtype == np.uint8
    for split in dataset.splits.values():
        shares = np.bincount(split.target_values) / len(split)
        assert np.abs(shares - 0.1).max() < 0.02


def test_splits_are_stratified_to_the_example_as_scikit_learn_does() -> None:
    """Also where its largest remainders are equal, and where it refuses: a class too small for both parts."""
    random = np.random.default_rng(0)
    refused = 0
    for seed in range(300):
        labels = random.integers(0, random.integers(1, 12), random.integers(2, 400)).astype(np.int32)
        fraction = random.choice([0.1, 0.25, 0.5, random.uniform(0.01, 0.99)])
        given = {"test_size": fraction, "stratify": labels, "random_state": derive(seed, "split", "part")}
        try:
            expected = train_test_split(np.arange(len(labels)), **given)
        except ValueError:
            refused += 1
            with pytest.raises(UserError, match="the part split cannot get an example of each class"):
                cut_all(labels, {"part": fraction}, seed)
        else:
            rows = cut_all(labels, {"part": fraction}, seed)
            assert [list(rows["train"]), list(rows["part"])] == [sorted(rows) for rows in expected]
    assert 10 < refused < 100


def test_examples_are_taken_by_numbers_or_by_a_mask_and_lie_where_tensorflow_shares_them() -> None:
    split = Split.of_images(np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1), np.array([0, 1, 0, 1], np.int32))
    for rows in ([1, 3], [False, True, False, True], [-3, -1]):
        taken = split.take(np.array(rows))
        assert isinstance(taken.images, np.ndarray)
        np.testing.assert_array_equal(taken.images[:, 0, 0, 0], [3, 9])
        np.testing.assert_array_equal(taken.targets, [1, 1])
        assert taken.images.ctypes.data % 64 == 0


def test_a_fingerprint_changes_with_one_pixel() -> None:
    split = Split.of_images(np.zeros((4, 2, 2, 1), np.uint8), np.array([0, 1, 0, 1], np.int32))
    changed = Split.of_images(split.images[:].copy(), split.target_values)
    changed.images[3][1, 1, 0] = 1
    fingerprints = {assemble("x", train, split, split, ("a", "b")).fingerprint for train in (split, changed)}
    assert len(fingerprints) == 2
    assert all(len(fingerprint) == 32 for fingerprint in fingerprints)


PIXELS, LABELS, NAMES = np.zeros((2, 2, 2, 1), np.uint8), np.array([0, 1]), ("a", "b")
ONE = np.float32(np.arange(8).reshape(PIXELS.shape) == 6)


@pytest.mark.parametrize(("given", "said"), [
    ({"images": np.zeros((2, 2, 2), np.uint8)}, "images with shape"),
    ({"images": np.zeros((0, 2, 2, 1), np.uint8), "labels": np.array([], np.int32)}, "at least 1"),
    ({"images": PIXELS.astype(np.float64)}, "uint8 or float32"),
    ({"labels": np.array([0, 2])}, r"labels range from 0 to 2\."),
    ({"labels": np.array([0, 2**40])}, "labels range from 0 to 1099511627776"),
    ({"labels": np.array([0.0, 1.0])}, r"train labels are float64 of shape \(2,\). Expected integers from 0 to 1"),
    ({"labels": np.array([False, True])}, "labels are bool"),
    ({"labels": np.array([None, "b"], object)}, "Expected integers"),
    ({"labels": np.array([0, 1, 1])}, "one label an image|one per example|[[]N[]]"),
    ({"labels": np.eye(2, dtype=np.int32)}, r"labels are int32 of shape \(2, 2\)"),
    ({"names": ("a", "a")}, "2 class name.*'a', 'a'\\). Expected at least two names"),
    ({"names": (1, 2)}, "class name.*1, 2\\). Expected at least two names, all of them different texts"),
    ({"ends": (255.0, 0.0)}, r"pixel_range is \(255, 0\)"), ({"ends": (1.0, 1.0)}, "the smaller one first"),
    ({"images": PIXELS + 9, "ends": (0.0, 8.0)}, r"are in 9\.\.9, outside the pixel_range \(0, 8\)"),
    ({"images": ONE * 258}, r"are in 0\.\.258"),
    ({"images": np.where(ONE, np.float32(np.nan), ONE)}, "are in nan..nan.*finite pixels"),
])  # fmt: skip
def test_data_that_cannot_be_trained_on_is_refused(given: dict[str, Any], said: str) -> None:
    images, labels, names = given.get("images", PIXELS), given.get("labels", LABELS), given.get("names", NAMES)
    split = Split.of_images(images, labels)
    with pytest.raises(UserError, match=said):
        assemble("x", split, split, split, names, given.get("ends", (0.0, 255.0)))


def test_whole_numbers_of_any_type_are_labels() -> None:
    for labels in (LABELS.astype(np.int64), LABELS.astype(np.uint64), LABELS.tolist()):
        split = Split.of_images(PIXELS, labels)
        dataset = assemble("x", split, split, split, ["a", "b"])  # type: ignore[arg-type]
        assert (dataset.train.targets.dtype, dataset.task.names) == (np.int32, ("a", "b"))


def test_synthetic_classes_can_be_seen() -> None:
    dataset = synthetic(SyntheticSettings(split_seed=1, examples=200, num_classes=4, height=8, width=8))
    assert dataset.features["images"].shape == (8, 8, 3)
    means = np.stack([dataset.train.images[dataset.train.targets == place].mean(axis=(0, 3)) for place in range(4)])
    assert [int(mean.argmax()) for mean in means[:, 0, ::2]] == [0, 1, 2, 3]


def test_rescale_and_standardize() -> None:
    dataset = digits(DigitsSettings(split_seed=1))
    scaled = normalize(dataset, NormalizeSettings(method="rescale")).scalings["images"]
    assert (scaled.scale, scaled.offset) == ((1 / 16,), (-0.0,))
    standard = normalize(dataset, NormalizeSettings(method="standardize")).scalings["images"]
    pixels = dataset.train.images[:] * standard.scale[0] + standard.offset[0]
    assert (pixels.mean(), pixels.std()) == (pytest.approx(0, abs=1e-9), pytest.approx(1, abs=1e-9))
    assert normalize(dataset, NormalizeSettings(method="none")).scalings["images"].scale == (1.0,)


def test_standardize_knows_channels_and_survives_a_constant_one() -> None:
    images = np.zeros((10, 2, 2, 2), np.uint8)
    images[:5, ..., 0] = 200
    split = Split.of_images(images, np.arange(10, dtype=np.int32) % 2)
    dataset = assemble("x", split, split, split, ("a", "b"))
    scaled = normalize(dataset, NormalizeSettings(method="standardize")).scalings["images"]
    assert (scaled.scale, scaled.offset) == (pytest.approx((0.01, 1.0)), pytest.approx((-1.0, 0.0)))
