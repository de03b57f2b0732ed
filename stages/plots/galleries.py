"""Galleries: images of a data set in rows, with captions.

Pillow draws them, pixel for pixel: Matplotlib takes ten times as long, and an `Axes` for each image seconds.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

from stages.plots.charts import FASTEST, font
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
    rows: Sequence[np.ndarray],
    captions: Sequence[Sequence[str]],
    pixel_range: tuple[float, float],
    title: str,
    path: Path,
) -> Path:
    """Draw rows of images, each below its caption; returns `path`.

    Args:
        rows: uint8 or float32 [n, H, W, C] each, n may differ.
        captions: n or fewer for each row, made of names that are `drawable`; two lines of each are shown.
        pixel_range: the values drawn black and white.
    """
    cells = [shown(row, pixel_range) for row in rows]
    height, width = cells[0].shape[1:3]
    down, right = height + 30, max(width, LARGEST) + 8
    size = max(right * max(map(len, cells)), LETTER * len(title)) + 12, TOP + down * len(cells) + 6
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((6, 6), title, "black", font(LARGE))
    for row, (images, texts) in enumerate(zip(cells, captions, strict=True), 1):
        top = TOP + row * down - height
        for column, image in enumerate(images):
            sheet.paste(Image.fromarray(image), (4 + column * right, top))
        for column, text in enumerate(texts):
            lines = textwrap.fill(text, 18, max_lines=2, placeholder="…")
            draw.multiline_text((4 + column * right, top - 3), lines, "black", font(SMALL), "ld", spacing=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda partial: sheet.save(partial, **FASTEST), durable=False)
    return path


def plot_batch(  # what `plot_rows` needs, and the length of a row
    images: np.ndarray,
    captions: Sequence[str],
    pixel_range: tuple[float, float],
    title: str,
    path: Path,
    per_row: int = 8,
) -> Path:
    """Draw `images`, uint8 or float32 [n, H, W, C], in rows of `per_row`; see `plot_rows`."""
    rows = [slice(start, start + per_row) for start in range(0, len(images), per_row)]
    return plot_rows([images[row] for row in rows], [captions[row] for row in rows], pixel_range, title, path)


def shown(images: np.ndarray, pixel_range: tuple[float, float]) -> np.ndarray:
    """Return images as they are drawn, uint8 [n, h, w, 3], with `pixel_range` from black to white.

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
    whole = _rgb(wide, pixel_range)
    factor = max(1, SMALLEST // longer)
    return whole.repeat(factor, axis=1).repeat(factor, axis=2)


def _rgb(images: np.ndarray, pixel_range: tuple[float, float]) -> np.ndarray:
    low, high = pixel_range
    scaled = np.nan_to_num((images - low) / ((high - low) or 1.0))
    if scaled.shape[-1] < 3:
        scaled = np.repeat(scaled.mean(axis=-1, keepdims=True), 3, axis=-1)
    return np.rint(255 * np.clip(scaled[..., :3], 0.0, 1.0)).astype(np.uint8)


def overlaid(images: np.ndarray, masks: np.ndarray, pixel_range: tuple[float, float], ignored: int) -> np.ndarray:
    """Return images, uint8 [n, H, W, 3], half covered by the colors of the classes in their masks.

    Args:
        images: uint8 or float32 [n, H, W, C].
        masks: Whole numbers [n, H, W].
        pixel_range: The values drawn black and white.
        ignored: The value of pixels without a class, which are not covered.
    """
    whole = _rgb(images.astype(np.float32), pixel_range)
    mixed = (whole.astype(np.uint16) + class_colors()[masks]) // 2
    return np.where((masks == ignored)[..., np.newaxis], whole, mixed).astype(np.uint8)


def class_colors() -> np.ndarray:
    """Return a color for each class, uint8 [256, 3]: the colors of PASCAL VOC, in which class 0 is black."""
    classes = np.arange(256)
    bits = (classes[:, np.newaxis] >> np.arange(8)) & 1
    shifts = 7 - np.array([place // 3 for place in range(8)])
    colors = [(bits[:, first::3] << shifts[first::3]).sum(axis=1) for first in range(3)]
    return np.stack(colors, axis=1).astype(np.uint8)
