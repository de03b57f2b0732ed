"""Images prepared once: shared, checked, whole or not at all; held in memory or streamed, with the same batches."""

import errno
import json
import shutil
import signal
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from stages.data.batches import training_input
from stages.data.decode import Decoder
from stages.errors import UserError
from stages.load.folders import image_folder
from stages.load.tfds import tfds
from stages.normalize import normalize
from stages.results import Dataset
from stages.settings.data import NormalizeSettings, TfdsSettings
from tests import commands
from tests.conftest import ROOT, shared
from tests.stages.data import preparing
from tests.stages.experiments import elements
from tests.stages.images import Telling, folder_of, settings, write

pytestmark = pytest.mark.slow


def equal(one: Dataset, other: Dataset) -> None:
    for name, split in one.splits.items():
        np.testing.assert_array_equal(split.images[:], other.splits[name].images[:])
        np.testing.assert_array_equal(split.targets, other.splits[name].targets)


def test_nothing_is_decoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder_of(tmp_path / "images")
    direct = image_folder(settings(root))
    first = image_folder(settings(root), cache=tmp_path / "cache")
    monkeypatch.setattr(Decoder, "__call__", lambda self, contents: pytest.fail("decoded again"))
    again = image_folder(settings(root), cache=tmp_path / "cache")
    equal(direct, first)
    equal(first, again)
    assert direct.fingerprint == first.fingerprint == again.fingerprint
    for split, other in zip(direct.splits.values(), again.splits.values(), strict=True):
        np.testing.assert_array_equal(split.described.digests, other.described.digests)
        np.testing.assert_allclose(split.described.moments["images"], other.described.moments["images"])


@pytest.mark.parametrize(
    ("file", "changes"), [("003.png", {}), ("new.png", {}), (None, {"size": 20}), (None, {"resize": "pad"})]
)
def test_what_changes_an_image_is_prepared_anew(tmp_path: Path, file: str | None, changes: dict[str, Any]) -> None:
    root, cache = folder_of(tmp_path / "images"), tmp_path / "cache"
    given = settings(root)
    before = image_folder(given, cache=cache)
    if file:
        write(root / "class 0" / file, 77)
    given = replace(given, **changes)
    after = image_folder(given, cache=cache)
    assert len(list(cache.glob("images-*"))) == 2
    assert before.fingerprint != after.fingerprint
    equal(after, image_folder(given))


def test_an_image_that_could_not_be_read_is_left_out_unless_the_disk_fails(tmp_path: Path) -> None:
    """Reading that memory fails, as reading a disk may; a link to nothing is another image once there is something."""
    root, cache = folder_of(tmp_path / "images"), tmp_path / "cache"
    new = root / "class 0" / "new.png"
    new.symlink_to("nowhere.png")
    left_out = image_folder(settings(root, on_error="skip"), cache=cache)
    assert (left_out.record.params["data/skipped"], len(list(cache.glob("images-*")))) == (1, 1)
    np.testing.assert_array_equal(left_out.train.images[:], image_folder(settings(root, on_error="skip")).train.images)
    new.unlink()
    new.symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=r"new\.png cannot be read \(Input/output error\)"):
        image_folder(settings(root, on_error="skip"), cache=cache)
    assert len(list(cache.glob("images-*"))) == 1


@pytest.mark.parametrize(
    ("number", "is_left_out"), [(errno.EACCES, True), (errno.EMFILE, False), (errno.ENOTCONN, False)]
)
def test_what_another_run_may_read_is_not_left_out_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_left_out: bool
) -> None:
    """Nothing that is known of the file tells a later run that it can be read again."""
    root, cache, read = folder_of(tmp_path / "images"), tmp_path / "cache", Path.read_bytes
    wrong = next(root.glob("*/*.png"))

    def failing(path: Path) -> bytes:
        if path == wrong:
            raise OSError(number, "no")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    with nullcontext() if is_left_out else pytest.raises(UserError, match=f"{wrong.name} cannot be read"):
        left_out = image_folder(settings(root, on_error="skip"), cache=cache)
        assert left_out.record.params["data/skipped"] == 1
    assert len(list(cache.glob("images-*"))) == is_left_out


def test_a_streamed_set_gives_the_batches_of_one_in_memory(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images", examples=25)
    held = image_folder(settings(root), cache=tmp_path / "cache")
    streamed = image_folder(settings(root, memory_gib=0.0), cache=tmp_path / "cache")
    assert not isinstance(streamed.train.images, np.ndarray)
    assert streamed.record.params["held_in"] == "disk"
    for replicas in (1, 2):
        batches = [elements(training_input(data, 8, 3, 2), replicas) for data in (held, streamed)]
        for one, other in zip(*batches, strict=True):
            for expected, got in zip(one, other, strict=True):
                np.testing.assert_array_equal(expected, got)
    scalings = [
        normalize(data, NormalizeSettings(method="standardize")).scalings["images"] for data in (held, streamed)
    ]
    assert scalings[0].scale == scalings[1].scale


def _process(root: Path, cache: Path) -> commands.Command:
    return commands.start(str(root), str(cache), module=preparing.__name__, stdout=subprocess.PIPE)


def test_of_several_processes_one_prepares_and_a_killed_one_leaves_nothing_half_done(tmp_path: Path) -> None:
    root, cache = folder_of(tmp_path / "images"), tmp_path / "cache"
    killed = _process(root, cache)
    assert killed.stdout.readline() == "decodes\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not list(cache.glob("images-*"))
    assert list(cache.glob(".partial-*"))
    processes = [_process(root, cache) for _ in range(2)]
    answers = [process.stdout.read().splitlines() for process in processes]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert sorted(lines.count("decodes") for lines in answers) == [0, 24]
    assert {lines[-1] for lines in answers} == {image_folder(settings(root)).fingerprint}
    assert not list(cache.glob(".partial-*"))


def test_a_disk_without_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cache = folder_of(tmp_path / "images"), tmp_path / "cache"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match="No space left on device"):
        image_folder(settings(root), cache=cache)
    assert not list(cache.glob("*images-*/*"))


def test_a_set_of_tfds_with_images_of_several_sizes(tmp_path: Path) -> None:
    folder = str(shared("tfds"))
    splits: dict[str, Any] = {"split_seed": 1, "train_split": "train[:200]", "test_fraction": 0.2}
    given = TfdsSettings(name="tf_flowers", dir=folder, size=24, **splits)
    with pytest.raises(UserError, match=r"different sizes.*data\.size=160"):
        tfds(replace(given, size=None))
    reporter = Telling()
    dataset = tfds(given, reporter, cache=tmp_path)
    assert [len(split) for split in dataset.splits.values()] == [144, 16, 40]
    assert dataset.task.names == ("dandelion", "daisy", "tulips", "sunflowers", "roses")
    assert "prepared 200 images of 24×24×3" in reporter.lines[-1]
    equal(dataset, tfds(replace(given, cache="off"), cache=tmp_path))
    for train, test in (("train[:60]+train[20:100]", None), ("train[:100]", "train[60:120]")):
        with pytest.raises(UserError, match="40 examples are in two splits, or twice in the same"):
            tfds(replace(given, train_split=train, test_split=test))


def test_tfds_gives_the_pixels_that_tfds_gives() -> None:
    import tensorflow_datasets

    folder = str(shared("tfds"))
    given = TfdsSettings(name="mnist", dir=folder, split_seed=1, train_split="train[100:300]", test_split="test[50:90]")
    dataset = tfds(given)
    assert (dataset.name, dataset.task.names) == ("mnist/3.0.1", tuple("0123456789"))
    assert [len(split) for split in dataset.splits.values()] == [180, 20, 40]
    mine = dataset.test
    theirs = tensorflow_datasets.load("mnist", split="test[50:90]", data_dir=folder, as_supervised=True)
    for index, (image, label) in enumerate(tensorflow_datasets.as_numpy(theirs)):
        np.testing.assert_array_equal(mine.images[index], image)
        assert mine.targets[index] == label


def test_a_label_out_of_range_is_named_or_left_out(tmp_path: Path) -> None:
    """In a set of TFDS whose seventh example is given it."""
    source, place = shared("tfds", "tf_flowers", "3.0.1"), tmp_path / "tf_flowers" / "3.0.1"
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.tfrecord*"))
    facts = json.loads((place / "dataset_info.json").read_text())
    facts["splits"][0]["shardLengths"] = ["60"]
    (place / "dataset_info.json").write_text(json.dumps(facts))
    [records] = source.glob("*.tfrecord*")
    with tf.io.TFRecordWriter(str(place / records.name)) as writer:
        for index, record in enumerate(tf.data.TFRecordDataset(str(records)).take(60)):
            example = tf.train.Example.FromString(record.numpy())
            if index == 6:
                example.features.feature["label"].int64_list.value[:] = [9]
            writer.write(example.SerializeToString())
    given = TfdsSettings(name="tf_flowers", dir=str(tmp_path), split_seed=1, size=16)
    with pytest.raises(
        UserError, match=r"tf_flowers/3.0.1, example 6 of its splits: label 9, but there are only 5 classes"
    ):
        tfds(given, cache=tmp_path / "cache")
    dataset = tfds(replace(given, on_error="skip"), cache=tmp_path / "cache")
    assert sum(len(split) for split in dataset.splits.values()) == 59
    assert dataset.record.params["data/skipped"] == 1


def test_a_folder_without_a_usable_image_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_text("none")
    for cache in (None, tmp_path / "cache"):
        with pytest.raises(UserError, match="no examples that can be used"):
            image_folder(settings(tmp_path, on_error="skip"), cache=cache)


def test_a_set_of_tfds_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    source, place = shared("tfds", "tf_flowers", "3.0.1"), tmp_path / "tf_flowers" / "3.0.1"
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.tfrecord*"))
    given = TfdsSettings(name="tf_flowers", dir=str(tmp_path), split_seed=1, size=16)
    with pytest.raises(tf.errors.NotFoundError, match=r"No such file"):
        tfds(given, cache=tmp_path / "cache")
    [records] = source.glob("*.tfrecord*")
    (place / records.name).write_bytes(records.read_bytes()[:100_003])
    with pytest.raises(tf.errors.DataLossError, match=r"truncated record"):
        tfds(given, cache=tmp_path / "cache")


def test_images_that_neither_memory_nor_the_cache_can_take_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit into memory.*Try: data\.cache=disk"):
        image_folder(settings(folder_of(tmp_path), memory_gib=0.0, cache="off"), cache=tmp_path)


def test_settings_that_are_no_size_are_refused() -> None:
    for size in (0, 9000, [3], [3, 4, 5], "big"):
        with pytest.raises(UserError, match=r"data\.size="):
            settings(ROOT, size=size).check("data")
