"""From encoded images to pixels inside a TensorFlow graph, as `stages.data.decode` does it by Pillow for training.

Every export traces this graph, and every server that loads it builds it again: it is written in few operations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import PIL
import tensorflow as tf

from stages.data.decode import MOST_PIXELS, ORIENTATION

_MOST_BLOCKS = 10_000
"""Limit for the parts of a file that are passed over in search of its EXIF data."""

_HEAD = 70
"""Bytes of the longest header that is read: a BMP's."""

_LEAST_BLOCK = 12
"""Bytes of the shortest part of a file that can be followed by EXIF data."""

_MOST_ENTRIES = 1000
"""Limit for the tags of EXIF data."""

_ANY = -1

_FORMATS = ((0xFF, 0xD8, _ANY, _ANY), tuple(b"\x89PNG"), (*b"BM", _ANY, _ANY), tuple(b"GIF8"))
"""The bytes that a JPEG, PNG, BMP and GIF begin with, in the order of the functions that `decode` chooses from."""

_BMP_HEADERS = (40, 52, 56, 64, 108, 124)
"""Bytes of the headers that Pillow reads, but for OS/2's of 12 (PIL/BmpImagePlugin.py)."""

_BGR = (0xFF0000, 0xFF00, 0xFF)
"""Masks of red, green and blue in four bytes: the order that TensorFlow takes for granted."""

_TRANSPOSED = (5, 6, 7, 8)
_REVERSED = ((3, 4, 7, 8), (2, 3, 6, 7))
"""EXIF orientations of images whose rows, or columns, come in reverse order once they are transposed."""

ROWS_MAY_BE_FIRST = int(PIL.__version__.partition(".")[0]) >= 13
"""Whether Pillow resamples the rows first where an image shrinks by far more of them than of its columns."""

_PRECISION = 22
"""Bits of the weights behind the point in Pillow's resampling of 8 bits (src/libImaging/Resample.c)."""


def decode(content: tf.Tensor, image_shape: tuple[int, int, int], resize: str) -> tf.Tensor:
    """Returns uint8 `image_shape`, (H, W, C) with C 1 or 3, from one encoded JPEG, PNG, BMP or GIF, a string.

    Decoded, put upright by its EXIF tag, converted to gray or RGB without transparency, and resized by Pillow's
    bilinear filter in Pillow's own whole numbers. EXIF data is found in JPEG and PNG; an orientation that only XMP
    states is not. A graph with this function raises InvalidArgumentError for bytes that are no whole image of these
    four formats (TensorFlow reads others, which training refuses), for a BMP of other than 8, 24 or 32 bits or with
    compression, and for a GIF whose first frame does not fill it.

    Args:
        resize: `stretch`, `crop` or `pad`; see `stages.data.decode.Decoder`.
    """
    file = _File.of(content)
    formats = np.array(_FORMATS)
    is_format = tf.reduce_all((file.head[:4] == formats) | (formats == _ANY), axis=1)
    is_known = tf.debugging.Assert(tf.reduce_any(is_format), ["no JPEG, PNG, BMP or GIF"])
    with tf.control_dependencies([is_known]):
        number = tf.argmax(is_format, output_type=tf.int32)
    pixels, exif = tf.switch_case(number, [partial(of, file) for of in (_jpeg, _png, _bmp, _gif)])
    orientation = tf.cond(exif > 0, lambda: _orientation(file, exif), lambda: tf.constant(1, tf.int64))
    upright = _upright(pixels, orientation)
    if image_shape[-1] == 1:
        upright = _gray(upright)
    return tf.ensure_shape(_resized(upright, image_shape[:2], resize), image_shape)


@dataclass(frozen=True)
class _File:
    """A file in a graph. content: string. length: int64. head: its first bytes, int64 [70], 0 past its end."""

    content: tf.Tensor
    length: tf.Tensor
    head: tf.Tensor

    @classmethod
    def of(cls, content: tf.Tensor) -> "_File":
        length = tf.cast(tf.strings.length(content), tf.int64)
        return cls(content, length, _digits(tf.strings.substr(content, 0, _HEAD), _HEAD))

    def part(self, begin: tf.Tensor, count: int) -> tf.Tensor:
        """Returns int64 [count]: the bytes from `begin`; 0 past the end."""
        return _digits(tf.strings.substr(self.content, tf.clip_by_value(begin, 0, self.length), count), count)


def _jpeg(file: _File) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the pixels of a JPEG, uint8 [h, w, 3], and where the TIFF header of its EXIF data begins, or -1."""

    def step(place: tf.Tensor, exif: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        segment = tf.strings.substr(file.content, place, _LEAST_BLOCK)
        marker, size = _numbers(_digits(segment, _LEAST_BLOCK), (0, 2), (2, 2))
        is_exif = (marker == 0xFFE1) & (tf.strings.substr(segment, 4, 6) == b"Exif\x00\x00")
        ends = (marker < 0xFF00) | (marker == 0xFFDA)  # damage, or the pixels begin
        following = tf.where(marker == 0xFFFF, place + 1, place + 2 + size)
        return tf.where(ends, file.length, following), tf.where(is_exif, place + 10, exif)

    height, width, _ = tf.unstack(tf.cast(tf.io.extract_jpeg_shape(file.content), tf.int64), 3)
    with tf.control_dependencies([_refuse_large(height, width)]):
        return tf.io.decode_jpeg(file.content, 3, dct_method="INTEGER_ACCURATE"), _walk(step, 2, file.length)


def _png(file: _File) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the pixels of a PNG, uint8 [h, w, 3], and where the TIFF header of its chunk `eXIf` begins, or -1."""

    def step(place: tf.Tensor, exif: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chunk = tf.strings.substr(file.content, place, _LEAST_BLOCK)
        (size,) = _numbers(_digits(chunk, _LEAST_BLOCK), (0, 4))
        return place + 12 + size, tf.where(tf.strings.substr(chunk, 4, 4) == b"eXIf", place + 8, exif)

    with tf.control_dependencies([_refuse_large(*_numbers(file.head, (16, 4), (20, 4)))]):
        return tf.io.decode_image(file.content, 3, expand_animations=False), _walk(step, 8, file.length)


def _bmp(file: _File) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the pixels of a BMP, uint8 [h, w, 3]: those of 8 bits by its color table, which TensorFlow ignores; -1.

    TensorFlow itself refuses a large one, whose pixels are in the file.

    Raises:
        InvalidArgumentError: for other kinds of BMP than 8, 24 and 32 bits in blue, green, red, without compression:
            Pillow reads them, TensorFlow reads other pixels or none.
    """
    fields = _numbers(file.head, (10, 4), (14, 4), (28, 2), (30, 4), (46, 4), (54, 4), (58, 4), (62, 4), little=True)
    begins, size, depth, compression, count, *masks = fields
    is_plain = (compression == 0) & tf.reduce_any(depth == tf.constant((8, 24, 32), tf.int64))
    is_bgr = (compression == 3) & (depth == 32) & tf.reduce_all(tf.stack(masks) == tf.constant(_BGR, tf.int64))
    is_known = tf.reduce_any(size == tf.constant(_BMP_HEADERS, tf.int64))
    kind = tf.strings.format(
        "a BMP of {} bits, compression {} and a header of {} bytes, where models read 8, 24 and 32 bits without "
        "compression: convert it to PNG",
        (depth, compression, size),
    )
    with tf.control_dependencies([tf.debugging.Assert(is_known & (is_plain | is_bgr), [kind])]):
        pixels = tf.io.decode_bmp(file.content)

    def by_table() -> tf.Tensor:
        colors = tf.where(count == 0, tf.constant(256, tf.int64), count)
        table = tf.cast(tf.reshape(file.part(14 + size, 4 * 256), [256, 4])[:, 2::-1], tf.uint8)
        # Pillow takes a table of two for one bit, and pixels right behind the header for pixels behind a table.
        is_usual = (colors > 2) & (colors <= 256) & (begins >= 14 + size + 4 * colors)
        is_inside = tf.reduce_all(tf.cast(pixels, tf.int64) < colors)
        why = tf.strings.format(
            "a BMP of 8 bits with a color table of {}, which does not fit: convert it to PNG", colors
        )
        with tf.control_dependencies([tf.debugging.Assert(is_usual & is_inside, [why])]):
            return tf.gather(table, tf.cast(pixels[..., 0], tf.int32))

    return tf.cond(depth == 8, by_table, lambda: pixels[..., :3]), _no()


def _gif(file: _File) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the pixels of the first frame of a GIF, uint8 [h, w, 3], and -1.

    Source: GIF89a Specification (CompuServe, 1990): blocks of 0x21 (extension) and 0x2C (image) follow the header and
    its color table; the parts of an extension are preceded by their length, and end with 0. A color is transparent
    where bit 0 of the graphic control extension, 0x21 0xF9, says so: Pillow leaves that out, and so does the file that
    TensorFlow gets, which has black in its place.

    Raises:
        InvalidArgumentError: where the frame does not fill the image: Pillow has the background around it, TensorFlow
            the frame alone.
    """
    kind, *sides = _numbers(file.head, (10, 1), (6, 2), (8, 2), little=True)
    begins = [13 + (3 * 2 ** (value % 8 + 1) if value >= 128 else 0) for value in range(256)]
    begin = tf.gather(tf.constant(begins, tf.int64), kind)

    def step(place: tf.Tensor, inside: tf.Tensor, image: tf.Tensor, control: tf.Tensor) -> tuple[tf.Tensor, ...]:
        value, label = _numbers(_digits(tf.strings.substr(file.content, place, 2), 2), (0, 1), (1, 1))
        is_extension, is_image = ~inside & (value == 0x21), ~inside & (value == 0x2C)
        after_block = tf.where(is_extension, place + 2, file.length)  # else an image, or damage
        following = tf.where(inside, place + 1 + value, after_block)
        control = tf.where(is_extension & (label == 0xF9), place, control)
        return following, is_extension | (inside & (value > 0)), tf.where(is_image, place, image), control

    _, _, image, control = tf.while_loop(
        lambda place, inside, image, control: (image < 0) & (place < file.length),
        step,
        (begin, tf.constant(False), _no(), _no()),
        maximum_iterations=_MOST_BLOCKS,
    )
    frame = _numbers(file.part(image + 1, 8), (0, 2), (2, 2), (4, 2), (6, 2), little=True)
    fills = (image >= 0) & tf.reduce_all(tf.stack(frame) == tf.stack([0, 0, *sides]))
    why = "a GIF whose first frame does not fill it: convert it to PNG"
    content = tf.cond(control < 0, lambda: file.content, lambda: _opaque(file, control + 3))
    with tf.control_dependencies([tf.debugging.Assert(fills, [why])]), tf.control_dependencies([_refuse_large(*sides)]):
        return tf.io.decode_image(content, 3, expand_animations=False), _no()


def _opaque(file: _File, flags: tf.Tensor) -> tf.Tensor:
    """Returns the content of a GIF with bit 0 of the byte at `flags` cleared."""
    value = tf.cast(file.part(flags, 1), tf.int32)[0]
    byte = tf.gather([bytes([number & ~1]) for number in range(256)], value)
    rest = tf.strings.substr(file.content, flags + 1, file.length)
    return tf.strings.join([tf.strings.substr(file.content, tf.zeros_like(flags), flags), byte, rest])


def _no() -> tf.Tensor:
    return tf.constant(-1, tf.int64)


def _refuse_large(height: tf.Tensor, width: tf.Tensor) -> tf.Operation:
    """Refuses an image of more than MOST_PIXELS by its header, before memory is taken for its pixels."""
    why = f"an image of over {MOST_PIXELS // 10**6} million pixels"
    return tf.debugging.Assert(height * width <= MOST_PIXELS, [why])


def _digits(part: tf.Tensor, count: int) -> tf.Tensor:
    """Returns int64 [count]: the bytes of a string of as many; 0 past its end."""
    return tf.cast(tf.ensure_shape(tf.io.decode_raw(part, tf.uint8, fixed_length=count), [count]), tf.int64)


def _numbers(digits: tf.Tensor, *fields: tuple[int, int], little: tf.Tensor | bool = False) -> list[tf.Tensor]:
    """Returns the whole numbers, int64, that bytes hold: of each of `fields`, a place and the count of its bytes.

    One product with their powers of 256 for all of them: a slice of a tensor alone is six operations.

    Args:
        digits: int64 [n], or [m, 1, n] for numbers of shape [m]. little: whether the least significant byte is first.
    """
    big_powers, little_powers = np.zeros((2, len(fields), digits.shape[-1]), np.int64)
    for row, (begin, count) in enumerate(fields):
        little_powers[row, begin : begin + count] = 256 ** np.arange(count)
        big_powers[row, begin : begin + count] = little_powers[row, begin : begin + count][::-1]
    if isinstance(little, bool):
        powers = tf.constant(little_powers if little else big_powers)
    else:
        powers = tf.where(little, little_powers, big_powers)
    return list(tf.unstack(tf.reduce_sum(digits * powers, axis=-1), axis=-1))


def _walk(step: Callable[..., tuple[tf.Tensor, tf.Tensor]], begin: int, length: tf.Tensor) -> tf.Tensor:
    """Returns where the EXIF data of a file begins, -1 where there is none: `step` goes from one block to the next."""
    _, exif = tf.while_loop(
        lambda place, exif: (exif < 0) & (place + _LEAST_BLOCK <= length),
        step,
        (tf.constant(begin, tf.int64), _no()),
        maximum_iterations=_MOST_BLOCKS,
    )
    return exif


def _orientation(file: _File, tiff: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF orientation, 1 to 8; 1 where the tag is absent or invalid."""
    header = file.part(tiff, 8)
    little = header[0] == ord("I")
    directory = tiff + _numbers(header, (4, 4), little=little)[0]
    (entries,) = _numbers(file.part(directory, 2), (0, 2), little=little)
    table = tf.reshape(file.part(directory + 2, 12 * _MOST_ENTRIES), [_MOST_ENTRIES, 1, 12])
    tag, kind, count, short, long = _numbers(table, (0, 2), (2, 2), (4, 4), (8, 2), (8, 4), little=little)
    is_it = (tag == ORIENTATION) & (count == 1) & (tf.range(_MOST_ENTRIES, dtype=tf.int64) < entries)
    values = tf.where(is_it, tf.where(kind == 3, short, tf.where(kind == 4, long, 1)), 1)
    value = tf.gather(values, tf.argmax(values != 1))  # the first that is another than 1
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Returns an image [h, w, C] put upright, as `ImageOps.exif_transpose` does: transposed first, then turned.

    One that is upright is not copied: TensorFlow does not by an order that changes nothing.
    """
    orders = [(1, 0, 2) if value in _TRANSPOSED else (0, 1, 2) for value in range(9)]
    is_reversed = [[value in values for values in _REVERSED] for value in range(9)]
    axes = tf.reshape(tf.where(tf.gather(is_reversed, orientation)), [-1])
    return tf.reverse(tf.transpose(pixels, tf.gather(orders, orientation)), axes)


def _gray(rgb: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [h, w, 1] from RGB pixels, by Pillow's own formula."""
    gray = tf.matmul(tf.cast(rgb, tf.int32), [[19595], [38470], [7471]])  # of 2**16: ITU-R 601-2
    return tf.cast(tf.bitwise.right_shift(gray + 2**15, 16), tf.uint8)


def _resized(pixels: tf.Tensor, size: tuple[int, int], resize: str) -> tf.Tensor:
    """Returns uint8 [*size, C] from [h, w, C], as `Image.resize`, `ImageOps.fit` or `ImageOps.pad` do."""
    sides = tf.cast(tf.shape(pixels)[:2], tf.float64)
    if resize == "crop":
        ratio = size[1] / size[0]
        is_wide = sides[1] / sides[0] >= ratio
        crop = tf.where(is_wide, tf.stack([sides[0], ratio * sides[0]]), tf.stack([sides[1] / ratio, sides[1]]))
        begin = (sides - crop) * 0.5
        return _resampled(pixels, tf.constant(size), begin, begin + crop)
    if resize != "pad":
        return _resampled(pixels, tf.constant(size), tf.zeros_like(sides), sides)
    ratio = size[1] / size[0]
    is_wide = sides[1] / sides[0] > ratio
    inside = tf.where(
        is_wide,
        tf.stack([tf.round(sides[0] / sides[1] * size[1]), size[1]]),
        tf.stack([size[0], tf.round(sides[1] / sides[0] * size[0])]),
    )
    inside = tf.maximum(tf.cast(inside, tf.int32), 1)
    image = _resampled(pixels, inside, tf.zeros_like(sides), sides)
    before = tf.cast(tf.round(tf.cast(tf.constant(size) - inside, tf.float64) * 0.5), tf.int32)
    after = tf.constant(size) - inside - before
    return tf.pad(image, [[before[0], after[0]], [before[1], after[1]], [0, 0]])


def _resampled(pixels: tf.Tensor, size: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Returns the part of an image from `begin` to `end`, float64 [2], in a new size, one axis after the other."""
    # Pillow keeps the corners of the part, and their difference, in float32.
    begin, end = tf.cast(begin, tf.float32), tf.cast(end, tf.float32)
    begin, lengths = tf.cast(begin, tf.float64), tf.cast(end - begin, tf.float64)
    axes = tf.stack([tf.cast(size, tf.float64), begin, lengths], axis=1)
    shrinks_by = tf.unstack(tf.shape(pixels)[:2] - size)
    rows_first = ROWS_MAY_BE_FIRST & (shrinks_by[0] > tf.maximum(2 * shrinks_by[1], 0))
    order = tf.where(rows_first, [1, 0, 2], [0, 1, 2])
    first, second = tf.unstack(tf.where(rows_first, axes, axes[::-1]))
    pixels = tf.transpose(pixels, order)  # now the second axis is the one to begin with
    return tf.transpose(_with_columns(_with_columns(pixels, first), second), order)


@tf.function(
    autograph=False,
    input_signature=[tf.TensorSpec((None, None, None), tf.uint8), tf.TensorSpec((3,), tf.float64)],
)
def _with_columns(pixels: tf.Tensor, axis: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [count, h, C] from [h, w, C], transposed: each new pixel is a weighted sum over old ones under a
    triangle.

    Source: `precompute_coeffs`, `normalize_coeffs_8bpc` and `ImagingResampleHorizontal_8bpc` of Pillow's Resample.c.

    Args:
        axis: how many new columns there are, where they begin, and how many old columns they cover.
    """
    whole, begin, covers = tf.unstack(axis)
    count = tf.cast(whole, tf.int32)
    width = tf.shape(pixels)[1]
    scale = covers / whole
    support = tf.maximum(scale, 1.0)
    centers = begin + (tf.range(whole) + 0.5) * scale
    first = tf.maximum(tf.cast(centers - support + 0.5, tf.int32), 0)
    last = tf.minimum(tf.cast(centers + support + 0.5, tf.int32), width)
    taps = tf.cast(tf.math.ceil(support), tf.int32) * 2 + 1
    places = first + tf.range(taps)[:, None]
    distances = (tf.cast(places, tf.float64) - centers + 0.5) * (1.0 / support)
    weights = tf.where(places < last, tf.maximum(1.0 - tf.abs(distances), 0.0), 0.0)
    weights = tf.cast(0.5 + weights / tf.reduce_sum(weights, axis=0) * 2**_PRECISION, tf.int32)[..., None]
    places = tf.minimum(places, width - 1)

    def step(tap: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        columns = tf.cast(tf.gather(pixels, tf.gather(places, tap), axis=1), tf.int32)
        return tap + 1, total + columns * tf.gather(weights, tap)

    total = tf.fill([tf.shape(pixels)[0], count, tf.shape(pixels)[2]], 2 ** (_PRECISION - 1))
    _, total = tf.while_loop(lambda tap, _: tap < taps, step, (tf.constant(0), total))
    new = tf.cast(tf.clip_by_value(tf.bitwise.right_shift(total, _PRECISION), 0, 255), tf.uint8)
    return tf.transpose(new, [1, 0, 2])
