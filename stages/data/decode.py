"""From the bytes of a JPEG, PNG, BMP or GIF to an image of the wanted shape."""

import io
import re
from dataclasses import dataclass

import numpy as np
import PIL
from PIL import Image, ImageOps, UnidentifiedImageError

from stages.data.source import InvalidImageError

VERSION = 2
"""Of the decoding, and part of a cache's name: raise it with every change of the pixels that `Decoder` returns."""

FORMATS = ("JPEG", "PNG", "BMP", "GIF")
MOST_PIXELS = 80_000_000
"""Limit for an image; a larger one counts as damaged. 240 MB decoded."""

_ADDRESS = re.compile(r"<[^<>]* object at 0x[0-9a-fA-F]+>")

ORIENTATION = 0x0112
"""EXIF tag of the camera's orientation."""

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""From its values to the transposition that puts the image upright, as in `ImageOps.exif_transpose`."""


@dataclass(frozen=True)
class Decoder:
    """Decodes to `image_shape`, (H, W, C) with C 1 or 3, uint8.

    In this order, so that anybody can repeat it from the bytes: Pillow decodes every pixel (libjpeg's `draft`, which is
    faster, gives other pixels), `ImageOps.exif_transpose`, `convert` to `L` or `RGB`, and Pillow's bilinear filter over
    all pixels that fall into one. Of an animation the first frame is taken; transparency is left out; of 16 bits the
    upper 8 are taken.

    resize: `stretch` both sides, `crop` the middle to the aspect (`ImageOps.fit`), or `pad` with black around the
    whole image (`ImageOps.pad`).
    """

    image_shape: tuple[int, int, int]
    resize: str
    min_side: int = 1

    @property
    def key(self) -> str:
        """Part of a cache's name: differs where the same bytes decode to other pixels."""
        return repr((VERSION, PIL.__version__, self.image_shape, self.resize, self.min_side))

    def __call__(self, content: bytes) -> np.ndarray:
        """Returns uint8 [H, W, C].

        Raises:
            InvalidImageError: where the bytes are no image, or end too soon, or it is smaller than `min_side` or larger
                than MOST_PIXELS.
        """
        height, width, channels = self.image_shape
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise InvalidImageError(f"{image.width}×{image.height} pixels, over {MOST_PIXELS // 10**6} million")
                if min(image.size) < self.min_side:
                    raise InvalidImageError(f"{image.width}×{image.height} pixels, a side under {self.min_side}")
                mode = "L" if channels == 1 else "RGB"
                upright = _eight_bits(_upright(image))
                upright.info.pop("transparency", None)  # left out, of which Pillow would warn for some palettes
                pixels = upright.convert(mode)
        except InvalidImageError:
            raise
        except UnidentifiedImageError as error:  # its text has the address of an object
            kinds = ", ".join(FORMATS)
            why = f"cannot identify it as one of {kinds}" if content else "an empty file"
            raise InvalidImageError(why) from error
        except Exception as error:  # what Pillow raises for damage has no common class
            raise InvalidImageError(_ADDRESS.sub("the image", str(error)) or type(error).__name__) from error
        return np.asarray(self._resized(pixels)).reshape(height, width, channels)

    def _resized(self, image: Image.Image) -> Image.Image:
        size = (self.image_shape[1], self.image_shape[0])
        if image.size == size:
            return image
        if self.resize == "crop":
            return ImageOps.fit(image, size, Image.Resampling.BILINEAR)
        if self.resize == "pad":
            return ImageOps.pad(image, size, Image.Resampling.BILINEAR)
        return image.resize(size, Image.Resampling.BILINEAR)


def _upright(image: Image.Image) -> Image.Image:
    """Returns an image put upright by its EXIF tag. Pillow's `exif_transpose` fails where other tags are invalid."""
    image.load()
    try:
        turn = TURNS.get(int(image.getexif().get(ORIENTATION, 1)))
    except Exception:  # a tag may hold anything
        turn = None
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Returns the upper 8 bits of an image of 16: Pillow's own conversion would clip values at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
