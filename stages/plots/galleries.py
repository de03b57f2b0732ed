"""Galleries: images of a data set in rows, with a name for each row or each image.

Pillow draws them, pixel for pixel: Matplotlib takes ten times as long, and an `Axes` for each image seconds.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

from stages.plots.charts import FASTEST, drawable, font
from stages.storage.atomic import atomic_write

SMALLEST, LARGEST = 64, 96
"""Range of an image's longer side as drawn, in pixels; smaller images are enlarged by whole factors."""

LETTER = 7
"""Upper bound for the average width of a letter, in pixels."""

SMALL, LARGE = 10, 12
"""Sizes of letters, in pixels."""


def plot_rows(
    rows: Sequence[np.ndarray], names: Sequence[str], pixel_range: tuple[float, float], title: str, path: Path
) -> Path:
    """Draws a row of images beside each name; returns `path`.

    Args:
        rows: uint8 or float32 [n, H, W, C] each, n may differ.
        pixel_range: the values drawn black and white.
    """
    cells = [list(shown(row, pixel_range)) for row in rows]
    mosaic, corners = _mosaic(cells, down=4, right=4, width=0)
    height = cells[0][0].shape[0]
    labels = drawable(names)
    sheet = _Sheet(mosaic, round(max(map(font(SMALL).getlength, labels))) + 10, title)
    for label, row in zip(labels, corners, strict=True):
        sheet.write(-6, row[0][0] + height // 2, label, "rm")
    return sheet.save(path)


def plot_batch(
    images: np.ndarray, titles: Sequence[str], pixel_range: tuple[float, float], title: str, path: Path
) -> Path:
    """Draws `images`, uint8 or float32 [n, H, W, C], eight in a row, each below its title; returns `path`.

    Args:
        titles: made of names that are `drawable`; two lines of each are shown.
    """
    drawn = list(shown(images, pixel_range))
    cells = [drawn[start : start + 8] for start in range(0, len(drawn), 8)]
    mosaic, corners = _mosaic(cells, down=30, right=8, width=LARGEST)
    sheet = _Sheet(mosaic, 4, title)
    places = [corner for row in corners for corner in row]
    for text, (top, left) in zip(titles, places, strict=True):
        lines = textwrap.fill(text, 18, max_lines=2, placeholder="…")
        sheet.write(left, top - 3, lines, "ld")
    return sheet.save(path)


def shown(images: np.ndarray, pixel_range: tuple[float, float]) -> np.ndarray:
    """Returns images as they are drawn, uint8 [n, h, w, 3], with `pixel_range` from black to white.

    Values outside are clipped.

    Args:
        images: uint8 or float32 [n, H, W, C]. Of three or four channels the first three are red, green and blue;
            one or two are shown as their mean, in gray.
    """
    longer = max(images.shape[1:3])
    wide = images.astype(np.float32)
    if longer > LARGEST:
        size = [max(1, round(side * LARGEST / longer)) for side in images.shape[1:3]]
        wide = tf.image.resize(wide, size, method="area").numpy()
    low, high = pixel_range
    scaled = np.nan_to_num((wide - low) / ((high - low) or 1.0))
    if scaled.shape[-1] < 3:
        scaled = np.repeat(scaled.mean(axis=-1, keepdims=True), 3, axis=-1)
    whole = np.rint(255 * np.clip(scaled[..., :3], 0.0, 1.0)).astype(np.uint8)
    factor = max(1, SMALLEST // longer)
    return whole.repeat(factor, axis=1).repeat(factor, axis=2)


def _mosaic(
    cells: Sequence[Sequence[np.ndarray]], down: int, right: int, width: int
) -> tuple[np.ndarray, list[list[tuple[int, int]]]]:
    """Returns all images on white, uint8 [h, w, 3], and the upper left corner of each, (pixels down, pixels right).

    Args:
        down, right: pixels above and after each image.
        width: minimal pixels for an image.
    """
    high = cells[0][0].shape[0] + down
    wide = max(cells[0][0].shape[1], width) + right
    mosaic = np.full((high * len(cells), wide * max(map(len, cells)), 3), 255, np.uint8)
    corners = [[(row * high + down, column * wide) for column in range(len(cells[row]))] for row in range(len(cells))]
    for row, places in zip(cells, corners, strict=True):
        for image, (top, left) in zip(row, places, strict=True):
            mosaic[top : top + image.shape[0], left : left + image.shape[1]] = image
    return mosaic, corners


class _Sheet:
    """A mosaic, `margin` pixels from the left and below its title, with words beside its images."""

    def __init__(self, mosaic: np.ndarray, margin: int, title: str) -> None:
        height, width = mosaic.shape[:2]
        self._corner = margin, 26
        self._image = Image.new("RGB", (margin + max(width, LETTER * len(title)) + 8, height + 32), "white")
        self._image.paste(Image.fromarray(mosaic), self._corner)
        self._draw = ImageDraw.Draw(self._image)
        self._draw.text((6, 6), title, "black", font(LARGE))
        self._small = font(SMALL)

    def write(self, right: int, down: int, text: str, anchor: str) -> None:
        """Writes `text` at a pixel of the mosaic, which is the part of it that Pillow's `anchor` names."""
        place = self._corner[0] + right, self._corner[1] + down
        self._draw.multiline_text(place, text, "black", self._small, anchor, spacing=1)

    def save(self, path: Path) -> Path:
        """Writes the file `path`, making its folder; returns `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, lambda partial: self._image.save(partial, **FASTEST), durable=False)
        return path
