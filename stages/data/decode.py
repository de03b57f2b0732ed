"""From the bytes of JPEGs and PNGs to pixels, by one function of TensorFlow for training and for exported models.

Other formats are converted to PNG first (`stages.data.convert`), also by the commands that use exported models. So the
pixels of a file are the same to the bit wherever it is decoded.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import PIL
import tensorflow as tf

from stages.data.convert import InvalidImageError, decode_each

VERSION = 4
"""Of the decoding, and part of a cache's name: raise it with every change of the pixels that
`Decoder` returns, and of the arrays that `stages.data.loading` keeps."""

AT_ONCE = 2
"""Images of a batch that are decoded at the same time, each whole."""

_EXIF_BYTES = 2**16
_ORIENTATION = (b"\x12\x01\x03\0\x01\0\0\0", b"\x01\x12\0\x03\0\0\0\x01\0")
"""EXIF's tag 0x0112, one number of 16 bits, up to its low byte: in the order of Intel, and of Motorola."""

_TRANSPOSED = (5, 6, 7, 8)
_REVERSED = ((3, 4, 7, 8), (2, 3, 6, 7))
"""Orientations of images whose rows, or columns, come in reverse order once they are transposed."""


@dataclass(frozen=True)
class Decoder:
    """Decodes to `image_shape`, (H, W, C) with C 1 or 3, uint8.

    resize: `stretch` both sides, `crop` the middle to the aspect, or `pad` with black around the whole image.
    """

    image_shape: tuple[int, int, int]
    resize: str

    @property
    def key(self) -> str:
        """Part of a cache's name: differs where the same bytes decode to other pixels."""
        return repr((VERSION, tf.__version__, PIL.__version__, self.image_shape, self.resize))

    def __call__(self, contents: Sequence[bytes]) -> list[np.ndarray | InvalidImageError]:
        """Return each image, uint8 [H, W, C], or why it cannot be used."""
        decoder = _batch_decoder(self.image_shape, self.resize)
        return decode_each(contents, lambda part: decoder(tf.constant(part, tf.string)).numpy(), tf.errors.OpError)


@functools.cache
def _batch_decoder(image_shape: tuple[int, int, int], resize: str) -> Callable[[tf.Tensor], tf.Tensor]:
    function: Callable[[tf.Tensor], tf.Tensor] = tf.function(
        lambda contents: decode(contents, image_shape, resize), [tf.TensorSpec([None], tf.string)], autograph=False
    )
    return function


def decode(contents: tf.Tensor, image_shape: tuple[int, int, int], resize: str) -> tf.Tensor:
    """Return images, uint8 [n, H, W, C], of JPEGs and PNGs, string [n].

    A JPEG is put upright by its EXIF tag, transparency is left out, of 16 bits the upper 8 are taken. Resizing is
    bilinear over all pixels that fall into one, within 1 of 255 of Pillow's. To be traced; the graph raises
    InvalidArgumentError for other bytes and for damage.

    Args:
        image_shape: (H, W, C) with C 1 or 3.
        resize: see `Decoder`.
    """

    def one(content: tf.Tensor) -> tf.Tensor:
        pixels = _upright(tf.io.decode_jpeg(content, 3, dct_method="INTEGER_ACCURATE"), content)  # also reads PNG
        return _resized(_gray(pixels) if image_shape[-1] == 1 else pixels, image_shape, resize)

    with tf.device("/cpu:0"):
        signature = tf.TensorSpec(image_shape, tf.uint8)
        return tf.map_fn(one, contents, fn_output_signature=signature, parallel_iterations=AT_ONCE)


def _upright(pixels: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
    """Return the pixels of a JPEG, uint8 [h, w, 3], put upright by its EXIF tag; those of a PNG as they are."""
    is_jpeg = tf.strings.substr(content, 0, 2) == b"\xff\xd8"
    orientation = tf.where(is_jpeg, _orientation(content), 1)
    return tf.cond(orientation == 1, lambda: pixels, lambda: _turned(pixels, orientation))


def _orientation(jpeg: tf.Tensor) -> tf.Tensor:
    """Return the first orientation in the EXIF data, int32, 1 to 8; 1 where it is absent or invalid."""
    exif = tf.strings.split([tf.strings.substr(jpeg, 0, _EXIF_BYTES)], b"Exif\0\0", maxsplit=1).values[1:]
    found = [tf.strings.split(exif, tag, maxsplit=1).values[1:] for tag in _ORIENTATION]
    behind = tf.strings.reduce_join(tf.concat([*found, [b"\x01"]], axis=0))  # of which the first byte counts
    value = tf.cast(tf.io.decode_raw(tf.strings.substr(behind, 0, 1), tf.uint8)[0], tf.int32)
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _turned(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Return an image [h, w, C] put upright: transposed first, then turned."""
    orders = [(1, 0, 2) if value in _TRANSPOSED else (0, 1, 2) for value in range(9)]
    is_reversed = [[value in values for values in _REVERSED] for value in range(9)]
    axes = tf.reshape(tf.where(tf.gather(is_reversed, orientation)), [-1])
    return tf.reverse(tf.transpose(pixels, tf.gather(orders, orientation)), axes)


def _gray(rgb: tf.Tensor) -> tf.Tensor:
    """Return uint8 [h, w, 1]: luma of ITU-R 601-2 in fixed point, as Pillow's; gray stays as it is."""
    gray = tf.matmul(tf.cast(rgb, tf.int32), [[19595], [38470], [7471]])  # of 2**16
    return tf.cast(tf.bitwise.right_shift(gray + 2**15, 16), tf.uint8)


def _resized(pixels: tf.Tensor, image_shape: tuple[int, int, int], resize: str) -> tf.Tensor:
    """Return uint8 `image_shape` from [h, w, C], which is not copied where it has that size."""
    size, own = tf.constant(image_shape[:2]), tf.shape(pixels)[:2]

    def resized() -> tf.Tensor:
        sides, wanted = tf.cast(own, tf.float32), tf.cast(size, tf.float32)
        scale, translation = wanted / sides, tf.zeros([2])
        if resize == "crop":
            scale = tf.fill([2], tf.reduce_max(scale))
            translation = (wanted - sides * scale) / 2
        elif resize == "pad":
            inside = tf.maximum(tf.round(sides * tf.reduce_min(scale)), 1)
            scale, translation = inside / sides, tf.round((wanted - inside) / 2)
        [image] = tf.unstack(
            tf.raw_ops.ScaleAndTranslate(
                images=pixels[None],
                size=size,
                scale=scale,
                translation=translation,
                kernel_type="triangle",
                antialias=True,
            ),
            1,
        )
        return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)

    return tf.ensure_shape(tf.cond(tf.reduce_all(own == size), lambda: pixels, resized), image_shape)
