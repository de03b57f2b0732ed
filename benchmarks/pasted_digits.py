"""Photos with handwritten digits pasted on them, and their masks: data for segmentation.

    python -m benchmarks.pasted_digits PHOTOS FOLDER [--count 600] [--size 64]

PHOTOS is a folder of images, such as ../shared/data/image_folder/cats_dogs. Writes FOLDER/photos/*.jpg, and
FOLDER/masks/*.png, whose pixels are 0 for the background and 1 to 4 for the digits zero to three (scikit-learn's).
"""

import argparse
import functools
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

PALETTE = [0, 0, 0, 220, 50, 50, 50, 170, 50, 60, 90, 220, 240, 200, 40]
"""Colors of the background and of the digits, for programs that show the masks."""

INK = 90
"""Brightness, of 240, above which a pixel belongs to a digit."""


def main() -> None:
    """Write the photos and masks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--size", type=int, default=64)
    given = parser.parse_args()
    photos = sorted(path for path in given.photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    for name in ("photos", "masks"):
        (given.folder / name).mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(given.count):
        photo = Image.open(photos[number % len(photos)]).convert("RGB").resize((given.size, given.size))
        pixels, mask = pasted(np.array(photo), random)
        Image.fromarray(pixels).save(given.folder / "photos" / f"{number:04}.jpg", quality=92)
        with_palette = Image.fromarray(mask, "P")
        with_palette.putpalette(PALETTE)
        with_palette.save(given.folder / "masks" / f"{number:04}.png")


@functools.cache
def digits_of() -> Any:
    """Return the digits of scikit-learn."""
    return load_digits()


def pasted(pixels: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a photo with one to three digits in a random color each, uint8 [H, W, 3], and its mask, uint8 [H, W]."""
    digits = digits_of()
    chosen = np.flatnonzero(digits.target < 4)
    mask = np.zeros(pixels.shape[:2], np.uint8)
    side = 3 * pixels.shape[0] // 8
    for _ in range(random.integers(1, 4)):
        digit = random.choice(chosen)
        drawn = Image.fromarray((digits.images[digit] * 15).astype(np.uint8)).resize((side, side))
        is_ink = np.asarray(drawn) > INK
        top, left = random.integers(0, pixels.shape[0] - side), random.integers(0, pixels.shape[1] - side)
        place = slice(top, top + side), slice(left, left + side)
        pixels[place][is_ink] = random.integers(0, 256, 3)
        mask[place][is_ink] = digits.target[digit] + 1
    return pixels, mask


if __name__ == "__main__":
    main()
