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

TOP = 26
"""Pixels above the first row, for the title."""

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
    height, width = cells[0][0].shape[:2]
    labels = drawable(names)
    margin = round(max(map(font(SMALL).getlength, labels))) + 10
    sheet = _sheet(cells, (height + 4, width + 4), margin, title)
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(labels, 1):
        draw.text((margin - 6, TOP + row * (height + 4) - height // 2), label, "black", font(SMALL), "rm")
    return _save(sheet, path)


def plot_batch(
    images: np.ndarray, titles: Sequence[str], pixel_range: tuple[float, float], title: str, path: Path
) -> Path:
    """Draws `images`, uint8 or float32 [n, H, W, C], eight in a row, each below its title; returns `path`.

    Args:
        titles: made of names that are `drawable`; two lines of each are shown.
    """
    drawn = list(shown(images, pixel_range))
    height, width = drawn[0].shape[:2]
    down, right = height + 30, max(width, LARGEST) + 8
    sheet = _sheet([drawn[start : start + 8] for start in range(0, len(drawn), 8)], (down, right), 4, title)
    draw = ImageDraw.Draw(sheet)
    for number, text in enumerate(titles):
        row, column = divmod(number, 8)
        place = 4 + column * right, TOP + (row + 1) * down - height - 3
        lines = textwrap.fill(text, 18, max_lines=2, placeholder="…")
        draw.multiline_text(place, lines, "black", font(SMALL), "ld", spacing=1)
    return _save(sheet, path)


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


def _sheet(cells: Sequence[Sequence[np.ndarray]], distance: tuple[int, int], margin: int, title: str) -> Image.Image:
    """Returns rows of images on white below a title; each image lies at the bottom left of its cell.

    Args:
        distance: pixels from one row to the next, and from one image to the next.
        margin: pixels to the left of all images.
    """
    down, right = distance
    width = margin + max(right * max(map(len, cells)), LETTER * len(title)) + 8
    sheet = Image.new("RGB", (width, TOP + down * len(cells) + 6), "white")
    ImageDraw.Draw(sheet).text((6, 6), title, "black", font(LARGE))
    for row, images in enumerate(cells, 1):
        for column, image in enumerate(images):
            sheet.paste(Image.fromarray(image), (margin + column * right, TOP + row * down - image.shape[0]))
    return sheet


def _save(sheet: Image.Image, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda partial: sheet.save(partial, **FASTEST), durable=False)
    return path
