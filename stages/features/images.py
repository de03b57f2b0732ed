"""Images: pixels [H, W, C], which the first layer of a network scales."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column
from stages.errors import UserError
from stages.features.kinds import IMAGES, Feature, Schema, means_of

if TYPE_CHECKING:
    from stages.data.split import Split

DARK = 16
"""Root mean square of the pixels of the brightest image, of 255, that 12 bits in a file of 16 leave at most."""

BLANK = [""] * 4
"""Cells of `statistics.csv` from `min` on."""


@dataclass(frozen=True)
class ImageFeature(Feature):
    """Images, all of one size."""

    kind: ClassVar[str] = "image"
    unit: ClassVar[str] = "images"
    is_encodable: ClassVar[bool] = False

    height: int
    width: int
    channels: int
    dtype: str = "uint8"
    low: float = 0.0
    """The least value of a pixel."""
    high: float = 255.0
    """The greatest value of a pixel."""
    resize: str = "stretch"
    """The way in which an encoded image of a different size becomes one of this size."""
    is_measured: bool = False
    """Whether the range was measured on the training pixels, because it is not one of the usual ranges."""

    @classmethod
    def of(
        cls, shape: Sequence[int], dtype: Any = "uint8", ends: Sequence[float] = (0.0, 255.0), resize: str = "stretch"
    ) -> ImageFeature:
        """Return the feature of images of a shape, with pixels from `ends[0]` to `ends[1]`."""
        height, width, channels = shape
        low, high = ends
        return cls(height, width, channels, str(np.dtype(dtype)), float(low), float(high), resize)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest value of a pixel."""
        return self.low, self.high

    @property
    def argument(self) -> str:
        return "float32"

    def check(self, where: str, name: str, split: Split, is_train: bool) -> None:
        column = split.features[name]
        if len(column.shape) != 4:
            self._refuse_shape(where, name, split, "[N, H, W, C]")
        self._check_rows(where, name, split, column.shape, "[N, H, W, C]")
        if column.shape[1:] != self.shape or column.dtype not in (np.uint8, np.float32):
            expected = f"uint8 or float32, of the training split's shape {self.shape}"
            raise UserError(f"{where} images are {column.dtype} {column.shape[1:]}", expected)
        is_known = is_train and not self.is_measured  # which may be by an earlier training
        self._check_pixels(where, name, split, 0.01 if is_known else 1.0)

    def _check_pixels(self, where: str, name: str, split: Split, beyond: float) -> None:
        """Check the range, and pixels in memory. To check other pixels, all of them would have to be read.

        Args:
            where: The data set and the split.
            name: The name of the feature.
            split: The split.
            beyond: The part of the range by which a pixel may lie outside of it. Unknown examples may have a few such
                pixels; if all are in a different unit, they lie far outside.
        """
        low, high = self.ends
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(f"{where} pixel_range is ({low:g}, {high:g})", "two finite numbers, the smaller one first")
        if split.features[name].dtype == np.uint8 and low <= 0 and high >= 255:
            return
        least, greatest = split.ends.get(name, (low, high))
        more = beyond * (high - low)
        if not (low - more <= least and greatest <= high + more):
            raise UserError(
                f"{where} pixels are in {least:g}..{greatest:g}, outside the pixel_range ({low:g}, {high:g})",
                "finite pixels, and a pixel_range that contains them, because augmentation clips to it",
            )

    def measured(self, column: Column) -> np.ndarray:
        return (means_of(column) - self.low) / (self.high - self.low)

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        of_channels = zip(*split.described.mean_and_std(name), strict=True)
        return [(f"{name}[{place}]", self.kind, 0.0, *of, *BLANK) for place, of in enumerate(of_channels)]

    @property
    def description(self) -> str:
        """A description for people, such as `28×28×1 uint8 images, pixel values 0 to 255`."""
        size = "×".join(map(str, self.shape))
        return f"{size} {self.dtype} images, pixel values {self.low:g} to {self.high:g}"

    def warnings(self, name: str, train: Split, val: Split) -> list[str]:
        moments = train.described.moments[name]
        if self.ends != (0, 255):
            return []
        brightness = float(np.sqrt(moments[:, 1].max()))
        if brightness >= DARK:
            return []
        which = "the images" if name == IMAGES else f"the images of {self.column_name(name)}"
        what = f"{which} are very dark: the brightest one has pixels of about {brightness:.0f} of 255"
        return [f"{what}. Image files with 16 bits are reduced to their upper 8; data=arrays keeps all 16"]

    @property
    def known(self) -> dict[str, Any]:
        return {**self.measured_by, "is_measured": self.is_measured}

    @property
    def measured_by(self) -> dict[str, Any]:
        return {"range": list(self.ends), "shape": list(self.shape), "resize": self.resize}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        low, high = values["range"]
        dtype, is_measured = values.get("dtype", "uint8"), values.get("is_measured", False)
        height, width, channels = values.get("shape", (0, 0, 0))  # unknown to models exported by earlier code
        return cls(height, width, channels, dtype, low, high, values.get("resize", ""), is_measured, **common)


def images_of(schema: Schema) -> dict[str, ImageFeature]:
    """Return the features that are images."""
    return {name: feature for name, feature in schema.items() if isinstance(feature, ImageFeature)}
