"""What a source of data says when it cannot be used: what and where it is, and a fix that works when it is typed."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.checks.registry import check_rules
from stages.data.split_statistics import log, statistics
from stages.data.splits import cut_all
from stages.errors import UserError
from stages.load.digits import digits
from stages.load.image_folder import image_folder
from stages.load.tfds import tfds
from stages.results import Dataset
from stages.settings.data import DigitsSettings, TfdsSettings
from tests.conftest import ROOT
from tests.pipeline.experiments import experiment
from tests.stages import tfds_sets
from tests.stages.images import Telling, folder_of, settings, write


def refused(load: Callable[[Any], Dataset], given: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        load(given)
    assert "0x" not in str(caught.value)
    return caught.value


def typed(given: Any, error: UserError) -> Any:
    """Returns the settings after the user has typed what the error says."""
    assert error.fix, str(error)
    for override in error.fix.split():
        name, _, text = override.partition("=")
        value: Any = None if text == "null" else float(text) if re.fullmatch(r"[\d.e-]+", text) else text
        given = replace(given, **{name.removeprefix("data."): int(value) if name == "data.size" else value})
    return given


def unequal(root: Path, counts: tuple[int, ...]) -> Path:
    for label, count in enumerate(counts):
        for index in range(count):
            write(root / f"class {label}" / f"{index}.png", 100 * label + index)
    return root


@pytest.mark.parametrize("fractions", [(0.1, 0.1), (0.01, 0.3), (0.9, 0.1), (0.5, 0.99), (0.02, 0.02)])
@pytest.mark.parametrize("counts", [(3, 3), (3, 4, 5), (3, 40), (6, 6, 6), (5, 3, 3, 3, 3, 3), (9, 3, 7)])
def test_fractions_that_are_suggested_work(counts: tuple[int, ...], fractions: tuple[float, float]) -> None:
    from stages.data.loading import splits_of
    from stages.data.source import Listing

    labels = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    listing = Listing(labels, {"train": np.arange(len(labels))}, tuple("abcdef"[: len(counts)]))
    given = settings(ROOT, test_fraction=fractions[0], val_fraction=fractions[1])
    try:
        rows = splits_of(listing, given)
    except UserError as error:
        rows = splits_of(listing, typed(given, error))
    assert sorted(np.concatenate(list(rows.values()))) == list(range(len(labels)))
    assert min(len(part) for part in rows.values()) >= 1


def test_where_no_fraction_works_none_is_suggested_and_the_class_is_named(tmp_path: Path) -> None:
    error = refused(image_folder, settings(unequal(tmp_path, (3, 2))))
    assert not error.fix
    assert "class 1 has 2 of 5 examples" in str(error)
    assert "3 or more examples of each class" in str(error)


def cut_error(labels: np.ndarray, fractions: dict[str, float]) -> UserError | None:
    try:
        cut_all(labels, fractions, 1)
    except UserError as error:
        return error
    return None


@pytest.mark.parametrize(("classes", "each"), [(2, 3), (7, 5), (1000, 4), (1000, 1), (1000, 2), (30, 40)])
@pytest.mark.parametrize("fraction", [1e-6, 0.1, 0.5, 0.999999])
def test_what_is_said_of_a_split_is_true_for_any_number_of_classes(classes: int, each: int, fraction: float) -> None:
    """What has enough of each class is told a size, and a fraction that works; what has not, how many it needs."""
    labels = np.repeat(np.arange(classes), each)
    fractions = {"test": fraction, "val": fraction}
    error = cut_error(labels, fractions)
    if error is None:
        assert each >= 3
    else:
        assert ("or more examples of each class" in str(error)) == (each < 3)
        assert (f"{classes:,} examples or more in every split" in str(error)) == bool(error.fix) == (each >= 3)
        for override in error.fix.split():
            name, _, value = override.removeprefix("data.").partition("_fraction=")
            fractions[name] = float(value)
        assert not error.fix or cut_error(labels, fractions) is None


def test_fractions_of_digits_that_are_suggested_work() -> None:
    for test, val in ((0.001, 0.1), (0.999, 0.1), (0.2, 0.0001), (0.2, 0.9999)):
        given = DigitsSettings(test_fraction=test, val_fraction=val)
        digits(typed(given, refused(digits, given)))


def _spoilt(root: Path, bad: tuple[int, ...], counts: tuple[int, ...]) -> Path:
    """Makes a folder of which each class has so many files that are no images."""
    unequal(root, counts)
    for label, count in enumerate(bad):
        for index in range(count):
            (root / f"class {label}" / f"{index}.png").write_bytes(b"" if index % 2 else b"text")
    return root


@pytest.mark.parametrize(
    ("bad", "works"),
    [((1, 0), True), ((3, 2), True), ((6, 0), True), ((7, 6), False), ((8, 0), False), ((8, 8), False)],
)
@pytest.mark.parametrize("kept", ["disk", "memory", "streamed"])
def test_leaving_out_is_suggested_where_enough_is_left(
    bad: tuple[int, ...], works: bool, kept: str, tmp_path: Path
) -> None:
    root, cache = _spoilt(tmp_path / "images", bad, (8, 8)), tmp_path / "cache"
    given = settings(root, cache="disk" if kept == "disk" else "off", memory_gib=0.0 if kept == "streamed" else None)

    def load(now: Any) -> Dataset:
        dataset = image_folder(now, cache=cache)
        for split in dataset.splits.values():
            split.images[:]
        return dataset

    error = refused(load, given)
    assert str(root / "class 0" / "0.png") in str(error) or kept == "streamed"
    if works:
        assert "data.on_error=skip" in error.fix
        dataset = load(typed(given, error))
        assert sum(len(split) for split in dataset.splits.values()) == 16 - sum(bad)
        again = refused(load, given)  # what was prepared without them is refused in the same words
        assert "data.on_error=skip" in again.fix
    else:
        assert not error.fix
        with pytest.raises(UserError):
            load(replace(given, on_error="skip", cache="disk"))


def test_a_class_is_told_where_it_lies(tmp_path: Path) -> None:
    for split, names in {"train": ("a", "b", "empty"), "val": ("a", "b", "only here"), "test": ("a", "b")}.items():
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(0 if name == "empty" else 3):
                write(tmp_path / split / name / f"{index}.png", hash((split, name, index)) % 9999)
    reporter = Telling()
    given = settings(tmp_path)
    assert "data.on_error=skip" in refused(image_folder, given).fix
    dataset = image_folder(replace(given, on_error="skip"), reporter, tmp_path / "run")
    listed = (tmp_path / "run" / "data" / "skipped.csv").read_text()
    assert str(tmp_path / "train" / "empty") in listed
    assert str(tmp_path / "val" / "only here") in listed
    assert dataset.class_names == ("a", "b")


def test_files_that_are_passed_over_are_counted_by_kind(tmp_path: Path) -> None:
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
    counted = {
        "2 .txt",
        "2 .tif",
        "1 without a suffix",
        "2 hidden",
        "1 links to folders",
        "1 outside the class folders",
    }
    assert set(dataset.record.params["passed_over"].split(", ")) == counted
    assert dataset.record.params["data/passed_over"] == 9
    assert any("passed over 9 files" in line and "2 .tif" in line for line in reporter.lines)
    assert sum(len(split) for split in dataset.splits.values()) == 26
    (inside / "broken.png").symlink_to(tmp_path / "nowhere.png")
    assert "broken.png: No such file" in str(refused(image_folder, settings(root)))


def test_names_that_differ_by_case_alone_are_warned_of_and_splits_are_found_by_any_case(tmp_path: Path) -> None:
    for name in ("Cat", "cat", "dog"):
        for index in range(5):
            write(tmp_path / "classes" / name / f"{index}.png", hash((name, index)) % 9999)
    reporter = Telling()
    assert image_folder(settings(tmp_path / "classes"), reporter).num_classes == 3
    assert any("'Cat' and 'cat' differ by case" in line for line in reporter.lines)
    for split in ("Train", "Test"):
        folder_of(tmp_path / "splits" / split, examples=6)
    dataset = image_folder(settings(tmp_path / "splits"))
    assert dataset.class_names == ("class 0", "class 1")
    assert len(dataset.test) == 12
    (tmp_path / "splits" / "Train").rename(tmp_path / "splits" / "val")
    assert "has Test/, val/ and no train/" in str(refused(image_folder, settings(tmp_path / "splits")))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"a": 4, "b": 0}, "images to train on for 1 of 2 classes; b has none"),
        ({"a": 4}, r"has 1 class folder\(s\): a"),
        ({}, r"has 0 class folder\(s\)"),
        ({"test": 2, "val": 2}, "has test/, val/ and no train/"),
    ],
)
def test_too_few_classes_are_refused_whatever_is_left_out(made: dict[str, int], said: str, tmp_path: Path) -> None:
    for name, count in made.items():
        (tmp_path / name).mkdir()
        for index in range(count):
            write(tmp_path / name / f"{index}.png", index)
    for on_error in ("fail", "skip"):
        with pytest.raises(UserError, match=said) as caught:
            image_folder(settings(tmp_path, on_error=on_error))
        assert "on_error" not in caught.value.fix


def test_a_class_that_only_a_later_split_has_is_named_with_what_is_missing(tmp_path: Path) -> None:
    for split, names in (("train", "ab"), ("test", "abc")):
        for name in names:
            for index in range(6):
                write(tmp_path / split / name / f"{index}.png", 10 * ord(name) + index + (split == "test"))
    error = refused(image_folder, settings(tmp_path))
    assert error.problem == f"{tmp_path}/test/c: a class without an image to train on"
    assert error.expected == "images of every class to train on"
    assert image_folder(typed(settings(tmp_path), error)).class_names == ("a", "b")


@pytest.mark.parametrize("split", ["val", "validation", "test"])
def test_a_split_whose_folder_is_empty_is_not_cut_from_another(split: str, tmp_path: Path) -> None:
    """As it would be where there is no such folder: a mount may be missing."""
    for name in "ab":
        for index in range(20):
            write(tmp_path / "train" / name / f"{index}.png", 10 * ord(name) + index)
    assert len(image_folder(settings(tmp_path)).test) > 0
    (tmp_path / split / "a").mkdir(parents=True)
    (tmp_path / split / "a" / ".gitkeep").touch()
    error = refused(image_folder, settings(tmp_path))
    assert error.problem == f"data.dir={tmp_path} has {split}/ without an image in a class folder"
    write(tmp_path / split / "a" / "1.png", 7)
    assert len(image_folder(settings(tmp_path)).splits["test" if split == "test" else "val"]) == 1


def test_folders_that_are_no_classes_are_refused_before_tensorflow_starts(tmp_path: Path) -> None:
    for name in ("train", "val", "other"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="has train/ beside other/"):
        check_rules(experiment("data=image_folder", f"data.dir={tmp_path}", f"outputs={tmp_path}/out"))


def test_what_is_no_image_is_said_without_an_address(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images")
    tiff = tmp_path / "one.tif"
    Image.new("RGB", (9, 9)).save(tiff)
    for content, said in ((b"", "an empty file"), (b"text", "cannot identify"), (tiff.read_bytes(), "JPEG, PNG, BMP")):
        (root / "class 1" / "003.png").write_bytes(content)
        error = refused(image_folder, settings(root))
        assert str(root / "class 1" / "003.png") in str(error)
        assert said in str(error)


def test_a_class_without_a_test_example_is_warned_of(tmp_path: Path) -> None:
    dataset = image_folder(settings(unequal(tmp_path, (40, 40, 3)), test_fraction=0.06, val_fraction=0.1))
    assert len(np.unique(dataset.test.labels)) < 3
    reporter = Telling()
    log(statistics(dataset, 1), dataset, reporter)
    assert any("no test example, such as class 2" in line for line in reporter.lines)


def _png(seed: int, tmp_path: Path) -> bytes:
    return write(tmp_path / "one.png", seed).read_bytes()


def _usable(tmp_path: Path, name: str, features: dict[str, Any], keys: tuple[str, str], **more: Any) -> TfdsSettings:
    examples = [{keys[0]: _png(index, tmp_path), keys[1]: index % 2} for index in range(20)]
    for example in examples:
        example.update({other: 0 for other in features if other not in keys and "/" not in other})
    tfds_sets.make_set(tmp_path, {"train": examples}, features, name, **more)
    return TfdsSettings(name=name, dir=str(tmp_path), size=16)


def test_a_set_of_tfds_is_read_whatever_its_features_are_called(tmp_path: Path) -> None:
    image, label, boxes = tfds_sets.image(), tfds_sets.label(), tfds_sets.sequence(tfds_sets.boxes())
    for name, features, keys in (
        ("others", {"photo": image, "kind": label, "id": tfds_sets.text()}, ("photo", "kind")),
        ("usual", {"image": image, "label": label, "coarse": label}, ("image", "label")),
        ("chosen", {"left": image, "right": image, "a": label, "b": label}, ("right", "b")),
        ("boxed", {"image": image, "label": label, "boxes": boxes}, ("image", "label")),
        ("nested", {"in": tfds_sets.features_dict({"photo": image}), "kind": label}, ("in/photo", "kind")),
    ):
        made = _usable(tmp_path, name, features, keys)
        if name == "chosen":
            error = refused(tfds, made)
            assert "2 features that are Image: left (Image), right (Image), a (ClassLabel), b (ClassLabel)" in str(
                error
            )
            once = typed(made, error)
            assert "data.label_key" in refused(tfds, once).fix
            made = replace(made, image_key="right", label_key="b")
        dataset = tfds(made)
        assert sum(len(split) for split in dataset.splits.values()) == 20
        assert set(dataset.train.labels) == {0, 1}
        assert len(np.unique(dataset.train.described.digests)) == len(dataset.train)


def test_the_pair_that_a_set_declares_comes_first(tmp_path: Path) -> None:
    image, label = tfds_sets.image(), tfds_sets.label()
    features = {"image": image, "label": label, "breed": label}
    made = _usable(tmp_path, "declared", features, ("image", "breed"), supervised=("image", "breed"))
    assert set(tfds(made).train.labels) == {0, 1}  # those of `label` are all 0


IMAGE, LABEL = tfds_sets.image(), tfds_sets.label()
OBJECTS = tfds_sets.sequence(tfds_sets.features_dict({"bbox": tfds_sets.boxes(), "label": LABEL}))
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "detection": (
        {"image": IMAGE, "objects": OBJECTS},
        r"\(bounding boxes\) is not supported; it has image \(Image\), objects \(Sequence of \{bbox: BBoxFeature",
    ),
    "several labels": ({"image": IMAGE, "labels": tfds_sets.sequence(LABEL)}, "several labels an image are not"),
    "text": ({"text": tfds_sets.text(), "label": LABEL}, "text is not supported"),
    "no label": ({"image": IMAGE}, "it has no ClassLabel"),
    "16 bits": ({"image": tfds_sets.image(dtype="uint16"), "label": LABEL}, "its image image is of uint16"),
    "one class": ({"image": IMAGE, "label": tfds_sets.label(1)}, r"its label label has 1 class"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_set_of_tfds_of_another_kind_is_refused_before_tensorflow_starts(kind: str, tmp_path: Path) -> None:
    features, said = UNUSABLE[kind]
    name = kind.replace(" ", "_")
    tfds_sets.make_set(tmp_path, {"train": [{"x": 1}]}, features, name)
    with pytest.raises(UserError, match=said):
        check_rules(experiment("data=tfds", f"data.name={name}", f"data.dir={tmp_path}", f"outputs={tmp_path}/out"))
    with pytest.raises(UserError, match=said):
        tfds(TfdsSettings(name=name, dir=str(tmp_path), size=16))


def test_what_the_json_of_a_set_says_is_checked_without_tensorflow(tmp_path: Path) -> None:
    features = {"image": tfds_sets.image(), "label": tfds_sets.label()}
    made = _usable(tmp_path, "good", features, ("image", "label"))
    tfds_sets.make_set(tmp_path, {"train": [{"x": 1}]}, features, "riegeli", file_format="riegeli")
    broken = tfds_sets.make_set(tmp_path, {"train": [{"x": 1}]}, features, "broken")
    (broken / "features.json").write_text("{")

    def check(*given: str) -> None:
        check_rules(
            experiment("data=tfds", f"data.dir={tmp_path}", "data.name=good", *given, f"outputs={tmp_path}/out")
        )

    def fixed(*given: str) -> tuple[str, str]:
        with pytest.raises(UserError) as caught:
            check(*given)
        return str(caught.value), caught.value.fix

    check("data.size=16")
    for given in (
        (),  # images of several sizes
        ("data.size=16", "data.test_split=nope"),
        ("data.size=16", "data.train_split='trian[:80%]'"),
        ("data.size=16", "data.val_split='train[:10'"),
        ("data.size=16", "data.label_key=lable"),
        ("data.size=16", "data.image_key=label"),
    ):
        said, fix = fixed(*given)
        assert fix, said
        changed = {one.partition("=")[0] for one in fix.split()}
        check(*[one for one in given if one.partition("=")[0] not in changed], *fix.split())
    assert "prepared as riegeli" in fixed("data.size=16", "data.name=riegeli")[0]
    assert "features.json: is no JSON" in fixed("data.size=16", "data.name=broken")[0]
    for split in ("train", "test"):
        for cache in ("disk", "off"):
            settings = replace(made, cache=cache)
            setattr(settings, f"{split}_split", "train[:0%]")
            assert f"{split} split" in str(refused(tfds, settings))
    overlapping = replace(made, train_split="train[:60%]", test_split="train[50%:]")
    tfds(typed(overlapping, refused(tfds, overlapping)))
    script = (
        "import sys; from pipeline.checks.registry import check_rules;"
        "from stages.data import class_folders, tfds_folder;"
        "assert not {'tensorflow', 'tensorflow_datasets', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)
