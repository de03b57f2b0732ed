"""Small image files that tests make."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stages.reporter import Reporter
from stages.settings.data import ImageFolderSettings


class Telling(Reporter):
    """A reporter that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.rows: dict[int, Mapping[str, float]] = {}
        self.shown: list[str] = []
        """What a terminal would show, in order."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        assert step not in self.rows
        self.rows[step] = values

    def progress(self, done: int, total: int, note: str) -> None:
        self.shown.append(f"{done}/{total}")

    def doing(self, activity: str) -> None:
        self.shown.append(activity)

    def log(self, line: str) -> None:
        self.lines.append(line)

    def warn(self, line: str) -> None:
        self.lines.append(line)
        self.warnings.append(line)


def image(seed: int, height: int = 20, width: int = 30) -> np.ndarray:
    """Return smooth colors, uint8 [height, width, 3]: JPEG keeps them to a few units."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR))


def write(path: Path, seed: int = 0, **options: Any) -> Path:
    """Write an image of its own for each seed, in the format of the path's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image(seed, **options)).save(path)
    return path


def folder_of(root: Path, classes: int = 2, examples: int = 12, suffix: str = ".png") -> Path:
    """Make `root` with class folders `class 0`, …, each of `examples` images that differ."""
    for label in range(classes):
        for index in range(examples):
            write(root / f"class {label}" / f"{index:03}{suffix}", 1000 * label + index)
    return root


def settings(root: Path, **changes: Any) -> ImageFolderSettings:
    given = {"dir": str(root), "split_seed": 1, "size": 16, "val_fraction": 0.2, "test_fraction": 0.2}
    return ImageFolderSettings(**{**given, **changes})


def encoded(made: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the content of a file of `kind`, such as JPEG."""
    file = io.BytesIO()
    made.save(file, kind, **options)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    """Return notes of a camera that was held so."""
    notes = Image.Exif()
    notes[0x010F], notes[0x0112] = "a camera", orientation
    return notes
