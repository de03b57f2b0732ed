"""Masks: images of class numbers, decoded with the geometry of the image that they belong to."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from stages.data.convert import InvalidImageError
from stages.tasks.segmentation import IGNORED

PALETTED = ("P", "L", "1", "I", "I;16")
"""Pillow's modes of images whose pixels are single whole numbers."""

_SWAPS_SIDES = (5, 6, 7, 8)
_ORIENTATION = 0x0112
"""EXIF's orientation, and those of its values with which width and height change places."""


@dataclass(frozen=True)
class MaskDecoder:
    """Decodes masks to uint8 [H, W], by the nearest pixel, so every pixel keeps a class that it has in the file.

    Pixels outside of a padded mask do not count.
    """

    size: tuple[int, int]
    """Height and width of the decoded masks."""
    resize: str
    """The way in which images of a different size are fitted; see `stages.data.decode.Decoder`."""
    classes: Mapping[int, int] = field(default_factory=dict)
    """From values in the files to classes; empty: the values are the classes."""

    @property
    def key(self) -> str:
        """Part of a cache's name: differs if the same bytes decode to other masks."""
        return repr((self.size, self.resize, sorted(self.classes.items())))

    def __call__(self, contents: Sequence[tuple[bytes, bytes]]) -> list[np.ndarray | InvalidImageError]:
        """Return each mask, uint8 [H, W], or why it cannot be used. contents: Of images, and of their masks."""
        return [self._decoded(image, mask) for image, mask in contents]

    def _decoded(self, image: bytes, mask: bytes) -> np.ndarray | InvalidImageError:
        try:
            values = _values(mask)
            height, width = _size_of(image)
        except InvalidImageError as error:
            return error
        except Exception as error:  # what Pillow raises for damage has no common class
            return InvalidImageError(f"its mask cannot be read: {str(error) or type(error).__name__}")
        if values.shape != (height, width):
            return InvalidImageError(f"its mask has {values.shape[1]}×{values.shape[0]} pixels, not {width}×{height}")
        if self.classes:
            unknown = np.setdiff1d(values, [*self.classes, IGNORED])
            if unknown.size:
                return InvalidImageError(f"its mask has the value {unknown[0]}, which is not in data.mask_values")
            table = np.full(IGNORED + 1, IGNORED, np.uint8)
            table[[*self.classes]] = [*self.classes.values()]
            values = table[values]
        return self._resized(values)

    def _resized(self, values: np.ndarray) -> np.ndarray:
        own, wanted = np.array(values.shape, np.float64), np.array(self.size, np.float64)
        if (own == wanted).all():
            return values
        before, after, moved = (
            own,
            wanted,
            np.zeros(2),
        )  # `before` pixels become `after`
        if self.resize == "crop":
            larger = int((wanted / own).argmax())
            before, after = np.full(2, own[larger]), np.full(2, wanted[larger])
            moved = (wanted - own * after / before) / 2
        elif self.resize == "pad":
            after = np.maximum(np.round(own * (wanted / own).min()), 1)
            moved = np.round((wanted - after) / 2)
        places = [
            np.floor((np.arange(side) + 0.5 - moved[axis]) * before[axis] / after[axis]).astype(np.int64)
            for axis, side in enumerate(self.size)
        ]
        are_inside = [(place >= 0) & (place < side) for place, side in zip(places, values.shape, strict=True)]
        rows, columns = (np.clip(place, 0, side - 1) for place, side in zip(places, values.shape, strict=True))
        resized = values[np.ix_(rows, columns)]
        return np.where(np.logical_and.outer(*are_inside), resized, np.uint8(IGNORED))


def _values(content: bytes) -> np.ndarray:
    """Return the whole numbers of a mask's file, uint8 [h, w].

    Raises:
        InvalidImageError: If its pixels are not single whole numbers up to 255.
    """
    with Image.open(io.BytesIO(content)) as image:
        if image.mode not in PALETTED:
            raise InvalidImageError(
                f"its mask has colors (mode {image.mode}), not class numbers. Save masks as gray images, or as images "
                "with a palette, whose pixels are 0 for the first class, 1 for the second, …"
            )
        if image.format == "JPEG":
            raise InvalidImageError("its mask is a JPEG, which changes the values of pixels. Save masks as PNG")
        values = np.asarray(image)
    if values.max(initial=0) > IGNORED or values.min(initial=0) < 0:
        raise InvalidImageError(f"its mask has the value {int(values.max())}, but a class is at most {IGNORED - 1}")
    return values.astype(np.uint8)


def _size_of(content: bytes) -> tuple[int, int]:
    """Return the height and width of an image, upright by its EXIF data, without decoding it."""
    with Image.open(io.BytesIO(content)) as image:
        width, height = image.size
        is_turned = image.format == "JPEG" and image.getexif().get(_ORIENTATION) in _SWAPS_SIDES
    return (width, height) if is_turned else (height, width)


def classes_of_values(values: Mapping[Any, Any]) -> tuple[dict[int, int], list[str]]:
    """Return the class of each value of `data.mask_values`, and the names of the classes.

    Values with the same name are one class; pixels of a value whose name is null do not count.
    """
    names = list(dict.fromkeys(str(name) for name in values.values() if name is not None))
    classes = {int(value): IGNORED if name is None else names.index(str(name)) for value, name in values.items()}
    return classes, names
