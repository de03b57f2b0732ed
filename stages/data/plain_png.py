"""Plain PNGs decoded by TensorFlow, many at a time: the pixels that Pillow gives, without its time for each image."""

import functools
import struct
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">I4sIIBBBBB")
_CHUNK = struct.Struct(">I4s")
_CHECKSUM = 4
_COLORS = {1: 0, 3: 2}
"""From channels to the color type of gray and of RGB (w3.org/TR/png-3, 11.2.1)."""

AT_ONCE = 32


def is_plain(content: bytes, image_shape: tuple[int, int, int]) -> bool:
    """Returns whether `content` is a PNG of that shape with nothing in it that decoders might take differently.

    It has 8 bits, neither palette nor interlacing, and beside its pixels not even a comment.
    """
    height, width, channels = image_shape
    header = _SIGNATURE + _HEADER.pack(13, b"IHDR", width, height, 8, _COLORS[channels], 0, 0, 0)
    if not content.startswith(header):
        return False
    place = len(header) + _CHECKSUM
    while place + _CHUNK.size <= len(content):
        length, kind = _CHUNK.unpack_from(content, place)
        place += _CHUNK.size + length + _CHECKSUM
        if kind == b"IEND":
            return place == len(content)
        if kind != b"IDAT":
            return False
    return False


def decode(contents: Sequence[bytes], image_shape: tuple[int, int, int]) -> np.ndarray | None:
    """Returns the images, uint8 [n, H, W, C]; None unless all are plain and whole."""
    if not contents or not all(is_plain(content, image_shape) for content in contents):
        return None
    try:
        return np.asarray(_decoder(image_shape)(tf.constant(contents)))
    except tf.errors.InvalidArgumentError:  # one is damaged: which, and how, Pillow says
        return None


@functools.cache
def _decoder(image_shape: tuple[int, int, int]) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def decode_all(contents: tf.Tensor) -> tf.Tensor:
        with tf.device("/cpu:0"):
            return tf.map_fn(
                lambda content: tf.io.decode_png(content, image_shape[2]),
                contents,
                fn_output_signature=tf.TensorSpec(image_shape, tf.uint8),
                parallel_iterations=AT_ONCE,
            )

    decoder: Callable[[tf.Tensor], tf.Tensor] = decode_all
    return decoder
