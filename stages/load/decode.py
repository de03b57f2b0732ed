"""From the bytes of a JPEG, PNG, BMP or GIF to a picture of the wanted shape."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from stages.load.source import BadPictureError

FORMATS = ("JPEG", "PNG", "BMP", "GIF")
MOST_PIXELS = 80_000_000
"""A larger picture is taken for damage: 240 MB once it is decoded."""

ORIENTATION = 0x0112
"""The tag of EXIF that says how a camera was held."""

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""From its values to what puts the picture upright, as in `ImageOps.exif_transpose`."""


@dataclass(frozen=True)
class Decoder:
    """Decodes to `picture`, (H, W, C) with C 1 or 3, uint8.

    resize: `stretch` both sides, `crop` the middle of the right aspect, or `pad` with black around the whole picture.
    It is Pillow's bilinear filter over all pixels that fall into one. The orientation that a camera has noted is
    applied; of an animation the first frame is taken; transparency is left out.
    """

    picture: tuple[int, int, int]
    resize: str
    min_side: int = 1

    def __call__(self, content: bytes) -> np.ndarray:
        """Returns uint8 [H, W, C].

        Raises:
            BadPictureError: where the bytes are no picture, or end too soon, or it is smaller than `min_side` or larger
                than MOST_PIXELS.
        """
        height, width, channels = self.picture
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise BadPictureError(f"{image.width}×{image.height} pixels, over {MOST_PIXELS // 10**6} million")
                if min(image.size) < self.min_side:
                    raise BadPictureError(f"{image.width}×{image.height} pixels, a side under {self.min_side}")
                mode = "L" if channels == 1 else "RGB"
                if image.format == "JPEG" and self.resize != "pad":
                    # libjpeg leaves out detail that twice the wanted size cannot show: large photos in little memory.
                    side = 2 * max(height, width)
                    image.draft(mode, (side, side))
                pixels = _eight_bits(_upright(image)).convert(mode)
        except BadPictureError:
            raise
        except Exception as error:  # what Pillow raises for damage has no common class
            raise BadPictureError(str(error) or type(error).__name__) from error
        return np.asarray(self._resized(pixels)).reshape(height, width, channels)

    def _resized(self, image: Image.Image) -> Image.Image:
        size = (self.picture[1], self.picture[0])
        if image.size == size:
            return image
        if self.resize == "crop":
            return ImageOps.fit(image, size, Image.Resampling.BILINEAR)
        if self.resize == "pad":
            return ImageOps.pad(image, size, Image.Resampling.BILINEAR)
        return image.resize(size, Image.Resampling.BILINEAR)


def _upright(image: Image.Image) -> Image.Image:
    """Returns a picture turned as its camera was held. Pillow's `exif_transpose` fails where other notes are odd."""
    image.load()
    try:
        turn = TURNS.get(int(image.getexif().get(ORIENTATION, 1)))
    except Exception:  # a camera's notes may be anything
        turn = None
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Returns a picture of 16 bits by its upper 8: Pillow's own conversion would cut off what is over 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
