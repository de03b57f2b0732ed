"""Images whose paths are a column of a table, for any task; unreadable paths are refused or skipped."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stages.errors import UserError
from stages.inspect import inspect
from stages.load.table import table
from stages.results import Dataset
from stages.settings.data import InspectSettings
from stages.settings.table import TableSettings
from stages.tasks.classification import ClassTargets
from stages.tasks.multi_label import LabelTargets
from stages.tasks.regression import NumberTargets
from tests.stages.images import Telling, image, write

ROWS = 70
LABELS = ["red", "wide", "old"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A table of paths below `photos/` with two suffixes; each image has different colors."""
    random = np.random.default_rng(1)
    lines = ["file,kind,red,wide,old,price"]
    for row in range(ROWS):
        path = Path("deep" if row % 2 else ".", f"{row}.{'png' if row % 3 else 'bmp'}")
        write(tmp_path / "photos" / path, row)
        holds = ",".join(map(str, random.integers(0, 2, 3)))
        lines.append(f"{path},{'cat' if row % 2 else 'dog'},{holds},{row / 7:.3f}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    return tmp_path


def load(
    folder: Path, target: Any, reporter: Telling | None = None, cache: Path | None = None, **given: Any
) -> Dataset:
    settings = TableSettings(
        files=str(folder / "labels.csv"),
        target=target,
        **{"root": str(folder / "photos"), "features": {"file": "image"}, "size": 12, **given},
    )
    settings.check("data")
    return table(settings, reporter, folder, cache)


@pytest.mark.parametrize(("target", "task"), [("kind", ClassTargets), (LABELS, LabelTargets), ("price", NumberTargets)])
def test_each_row_has_its_image_for_any_task(photos: Path, target: Any, task: type) -> None:
    dataset = load(photos, target, cache=photos / "cache")
    assert isinstance(dataset.task.targets, task)
    lines = [line.split(",") for line in (photos / "labels.csv").read_text().splitlines()]
    names = [target] if isinstance(target, str) else target
    for split in dataset.splits.values():
        for place, number in enumerate(np.asarray(split.numbers)):
            expected = np.asarray(Image.fromarray(image(number)).resize((12, 12), Image.Resampling.BILINEAR))
            np.testing.assert_allclose(split.images[place], expected, atol=1)
            given = [lines[number + 1][lines[0].index(name)] for name in names]
            found = split.targets[place]
            assert task is not ClassTargets or dataset.task.names[found] == given[0]
            assert task is ClassTargets or found == pytest.approx([float(value) for value in given], abs=1e-4)
    assert dataset.test.files == [str(Path(lines[number + 1][0])) for number in np.asarray(dataset.test.numbers)]
    again = load(photos, target, cache=photos / "cache", memory_gib=0.0)
    assert again.fingerprint == dataset.fingerprint
    assert not again.train.is_in_memory
    record = inspect(dataset, InspectSettings(seed=0, batch_size=8), folder=photos)
    assert {path.name for path in record.files["plots"]} == {"classes.png", "batch.png"}
    assert (photos / "data" / "classes.csv").exists() == (task is not NumberTargets)


@pytest.mark.parametrize(("path", "why"), [
    ("gone.png", "No such file or directory"), ("/etc/hostname", "the file is not one of"),
    ("fifo.png", "not a regular file"), ("text.png", "the file is not one of"),
])  # fmt: skip
def test_an_unreadable_path_is_refused_or_skipped(photos: Path, path: str, why: str) -> None:
    (photos / "photos" / "text.png").write_text("no image")
    os.mkfifo(photos / "photos" / "fifo.png")
    lines = (photos / "labels.csv").read_text().splitlines()
    lines[5] = f"{path},{lines[5].partition(',')[2]}"
    (photos / "labels.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match=f"labels.csv row 5, column file: {path!r}: {why}"):
        load(photos, "kind")
    reporter = Telling()
    dataset = load(photos, "kind", reporter, on_error="skip")
    rows = [number for split in dataset.splits.values() for number in np.asarray(split.numbers)]
    assert sorted(rows) == [row for row in range(ROWS) if row != 4]
    assert any("left out 1 examples of labels.csv; the first: labels.csv row 5" in line for line in reporter.lines)
    assert why in (photos / "data" / "skipped.csv").read_text()


@pytest.mark.parametrize(("given", "message"), [
    ({"features": {"file": "image", "price": "number"}}, "declares price, but data.only_images=true uses nothing but"),
    ({"features": {"file": "image", "kind": "image"}}, "kind is declared as an image, but it is not a feature"),
    ({"features": {"file": "text"}}, "requires a column of images"), ({"size": 0}, "data.size=0 is not an image size"),
    ({"root": "nowhere"}, "data.root=nowhere is not a directory"),
])  # fmt: skip
def test_unusable_settings_are_refused(photos: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(photos, "kind", **given)
