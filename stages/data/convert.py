"""Image files that TensorFlow does not read, or reads otherwise than other programs: converted to PNG by Pillow.

Imports no TensorFlow: commands that use exported models convert by it, too.
"""

import io
from collections.abc import Callable, Sequence
from typing import TypeVar

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")

_NATIVE = (b"\xff\xd8", b"\x89PNG")
"""First bytes of a JPEG and of a PNG."""

Result = TypeVar("Result")


class InvalidImageError(Exception):
    """An image that cannot be used; its text says why."""


def decode_each(
    contents: Sequence[bytes], decode: Callable[[list[bytes]], Sequence[Result]], refusal: type[Exception]
) -> list[Result | InvalidImageError]:
    """Return what `decode` makes of each image, or why the image cannot be decoded.

    Args:
        decode: takes JPEGs and PNGs, all at once, and raises `refusal` where it does not read one of them. Images of
            other formats, and those that it refuses but Pillow reads, are converted.
    """
    if not contents:
        return []
    try:
        return list(decode([content if content.startswith(_NATIVE) else as_png(content) for content in contents]))
    except (refusal, InvalidImageError) as error:
        if len(contents) > 1:  # the error does not say which of them it is
            return [result for content in contents for result in decode_each([content], decode, refusal)]
        if isinstance(error, InvalidImageError):
            return [error]
    try:
        return list(decode([as_png(contents[0])]))
    except InvalidImageError as error:
        return [error]
    except refusal as error:
        return [InvalidImageError(str(error).partition("\n")[0])]


def as_png(content: bytes) -> bytes:
    """Return an image as a PNG of RGB: of an animation the first frame, upright, without transparency.

    Raises:
        InvalidImageError: for bytes that are no whole image.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            upright = ImageOps.exif_transpose(image)
            upright.info.clear()  # a color that is transparent, of which Pillow would warn
            file = io.BytesIO()
            upright.convert("RGB").save(file, "PNG", compress_level=1)
            return file.getvalue()
    except UnidentifiedImageError as error:  # its text has the address of an object
        why = f"the file is not one of {', '.join(FORMATS)}" if content else "the file is empty"
        raise InvalidImageError(why) from error
    except Exception as error:  # what Pillow raises for damage has no common class
        raise InvalidImageError(str(error) or type(error).__name__) from error
