"""Predicted masks: at the size of their images, as PNGs with a palette, and as counts of pixels per class."""

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from stages.storage.atomic import atomic_write, write_csv

MASK = "mask"
"""The output of a model that predicts a class for each pixel, uint8 [N, H, W]."""

NO_CLASS = 255
"""The value of pixels of the original image that the model has not seen, because the image was cropped."""

TABLE = "pixels.csv"


class Masks:
    """Masks of images, written to a folder with a table of their pixels."""

    def __init__(self, folder: Path | None, names: Sequence[str], resize: str) -> None:
        """Create the folder.

        Args:
            folder: The folder for the masks; None: none are written.
            names: The classes.
            resize: The way in which images were resized in training, `stretch`, `crop` or `pad`.
        """
        self._folder, self._names, self._resize = folder, names, resize
        self._files: dict[str, str] = {}
        self._rows: list[Sequence[object]] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, file: Path, mask: Any) -> dict[str, int]:
        """Write a mask, and return how many pixels of the original image have each class, the most frequent first.

        Args:
            file: The image.
            mask: The mask that the model predicts, uint8 [H, W].
        """
        whole = original_size(np.asarray(mask, np.uint8), size_of(file.read_bytes()), self._resize)
        counts = np.bincount(whole.ravel(), minlength=NO_CLASS + 1)[: len(self._names)]
        if self._folder is not None:
            name = self._name(file)
            atomic_write(self._folder / name, lambda partial: partial.write_bytes(as_png(whole)), durable=False)
            self._rows.append((str(file), name, *map(int, counts)))
        order = np.argsort(-counts, kind="stable")
        return {self._names[place]: int(counts[place]) for place in order if counts[place]}

    def _name(self, file: Path) -> str:
        """Return the name of the file of a mask: that of the image, with its suffix only if two would be the same."""
        numbered = (f"{file.name}-{number}.png" for number in range(2, len(self._files) + 3))
        choices = (f"{file.stem}.png", f"{file.name}.png", *numbered)
        return next(one for one in choices if self._files.setdefault(one, str(file)) == str(file))

    def write_table(self) -> None:
        """Write the counts of all masks, one row per image."""
        if self._folder is not None:
            write_csv(self._folder / TABLE, [("file", MASK, *self._names), *self._rows])


def as_png(mask: np.ndarray) -> bytes:
    """Return a mask, uint8 [H, W], as a PNG whose pixels are the classes, with a palette of their colors."""
    from PIL import Image

    from stages.plots.galleries import class_colors

    image = Image.fromarray(mask)
    image.putpalette(class_colors().tobytes())
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def size_of(encoded: bytes) -> tuple[int, int]:
    """Return the height and the width of an image, upright as the model receives it."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(encoded)) as image:
        height, width = image.height, image.width
        if image.format != "PNG":  # which is decoded without its EXIF data
            with suppress(Exception):  # damaged EXIF data, which are then not used
                upright = ImageOps.exif_transpose(image)
                height, width = upright.height, upright.width
        return height, width


def original_size(mask: np.ndarray, size: tuple[int, int], resize: str) -> np.ndarray:
    """Return a mask at the size of its image: the class at the place of each pixel, or `NO_CLASS`.

    This inverts `stages.data.decode`.

    Args:
        mask: uint8 [h, w].
        size: Height and width of the image.
        resize: `stretch`, `crop` or `pad`.
    """
    sides, wanted = np.array(size, float), np.array(mask.shape, float)
    scale, translation = wanted / sides, np.zeros(2)
    if resize == "crop":
        scale = np.full(2, scale.max())
        translation = (wanted - sides * scale) / 2
    elif resize == "pad":
        inside = np.maximum(np.round(sides * scale.min()), 1)
        scale, translation = inside / sides, np.round((wanted - inside) / 2)
    places = [
        np.floor((np.arange(side) + 0.5) * by + offset).astype(int)
        for side, by, offset in zip(size, scale, translation, strict=True)
    ]
    whole = np.full(size, NO_CLASS, np.uint8)
    rows, columns = (np.flatnonzero((at >= 0) & (at < side)) for at, side in zip(places, mask.shape, strict=True))
    whole[np.ix_(rows, columns)] = mask[np.ix_(places[0][rows], places[1][columns])]
    return whole


def resize_of(trained_on: Mapping[str, Any]) -> str:
    """Return the way in which images were resized in training. trained_on: What a SavedModel knows of its features."""
    return next((str(one["resize"]) for one in trained_on.values() if one.get("resize")), "stretch")
