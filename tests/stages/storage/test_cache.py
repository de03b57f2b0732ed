"""An entry of the cache is bit for bit what was written, or it is created again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.reporter import Reporter
from stages.storage import cache
from stages.storage.cache import Contents, cached
from tests.stages.images import Telling

IMAGES = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.arange(5, dtype=np.int32)


def make(folder: Path) -> Contents:
    np.save(folder / "images.npy", IMAGES)
    mapped = np.load(folder / "images.npy", mmap_mode="r")
    return Contents({"class_names": ["a", "b"], "invalid": []}, {"images": mapped, "labels": LABELS})


OTHERS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir, "file": lambda path: path.write_text("{}"), "nothing": lambda _: None,
    "link": lambda path: path.symlink_to("nowhere"),
}  # fmt: skip


def replaced(path: Path, by: str) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    OTHERS[by](path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda place: (place / "facts.json").write_text("{'a': 1"),
    "a file for the folder": lambda place: replaced(place, "file"),
    "a link for the folder": lambda place: replaced(place, "link"),
    "an empty folder": lambda place: replaced(place, "folder"),
}
for by in ("folder", "nothing", "file"):
    DAMAGES[f"{by} for a file"] = lambda place, by=by: replaced(place / "images.npy", by)  # type: ignore[misc]
for file in ("facts.json", "labels.npy", "images.npy"):
    DAMAGES[f"a part of {file}"] = lambda place, file=file: os.truncate(  # type: ignore[misc]
        place / file, (place / file).stat().st_size - 1
    )
    DAMAGES[f"nothing of {file}"] = lambda place, file=file: os.truncate(place / file, 0)  # type: ignore[misc]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_changed_entry_is_created_again_with_one_warning(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "entry-1"
    cached(place, make, Reporter())
    assert not cached(place, lambda _: pytest.fail("made again"), Reporter())[1]
    DAMAGES[damage](place)
    reporter = Telling()
    entry, is_new = cached(place, make, reporter)
    assert is_new
    [line] = reporter.lines
    assert f"the cache entry {place} is damaged and will be created again (" in line
    assert line.endswith(")")
    assert entry.facts["class_names"] == ["a", "b"]
    np.testing.assert_array_equal(entry.arrays["images"], IMAGES)
    np.testing.assert_array_equal(entry.arrays["labels"], LABELS)
    assert not cached(place, lambda _: pytest.fail("made again"), Reporter())[1]


def test_an_entry_is_not_mistaken_for_another_of_the_same_shape(tmp_path: Path) -> None:
    """The entries are intact but swapped, or copied to a second name."""
    first, second, third = (tmp_path / f"entry-{number}" for number in (1, 2, 3))
    made = {first: IMAGES, second: IMAGES + 1, third: IMAGES + 2}
    for place, images in made.items():
        cached(place, lambda _, images=images: Contents({}, {"images": images}), Reporter())  # type: ignore[misc]
    first.rename(tmp_path / "other")
    second.rename(first)
    (tmp_path / "other").rename(second)
    shutil.rmtree(third)
    shutil.copytree(first, third)
    for place, images in made.items():
        reporter = Telling()
        make = lambda _, images=images: Contents({}, {"images": images})  # noqa: E731
        entry, is_new = cached(place, make, reporter)
        assert is_new
        assert "it belongs to entry-" in reporter.lines[0]
        np.testing.assert_array_equal(entry.arrays["images"], images)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("file", ["facts.json", "labels.npy", "images.npy"])
def test_every_flipped_bit_is_detected_or_in_large_files_those_of_the_header(
    tmp_path: Path, file: str, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr(cache, "DIGESTED_BYTES", 0)
    place = tmp_path / "entry-1"
    cached(place, make, Reporter())
    content = (place / file).read_bytes()
    size = cache.HEADER_BYTES if is_large and file != "facts.json" else len(content)
    others = [content[:-1], content + b"1", b""]
    for bit in range(8 * size):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        others.append(bytes(changed))
    for other in others:
        (place / file).write_bytes(other)
        with pytest.raises((ValueError, KeyError)):  # including errors of JSON and encodings
            cache._read(place)
    (place / file).write_bytes(content)
    cache._read(place)
