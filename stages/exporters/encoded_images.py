"""From encoded images to pixels inside a TensorFlow graph, as `stages.data.decode` does it by Pillow for training."""

import PIL
import tensorflow as tf

from stages.data.decode import MOST_PIXELS, ORIENTATION

_MOST_BLOCKS = 10_000
"""Limit for the parts of a file that are passed over in search of its EXIF data."""

_BMP_HEADERS = (40, 52, 56, 64, 108, 124)
"""Bytes of the headers that Pillow reads, but for OS/2's of 12 (PIL/BmpImagePlugin.py)."""

_BGR = (0xFF0000, 0xFF00, 0xFF)
"""Masks of red, green and blue in four bytes: the order that TensorFlow takes for granted."""

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
    is_jpeg = tf.strings.substr(content, 0, 2) == b"\xff\xd8"
    is_png = tf.strings.substr(content, 0, 4) == b"\x89PNG"
    is_bmp = tf.strings.substr(content, 0, 2) == b"BM"
    is_gif = tf.strings.substr(content, 0, 4) == b"GIF8"
    is_known = tf.debugging.Assert(is_jpeg | is_png | is_bmp | is_gif, ["no JPEG, PNG, BMP or GIF"])
    with tf.control_dependencies([is_known, _refuse_large(content, is_jpeg, is_png, is_gif)]):
        pixels = tf.cond(
            is_jpeg,
            lambda: tf.io.decode_jpeg(content, dct_method="INTEGER_ACCURATE"),
            lambda: tf.cond(
                is_bmp,
                lambda: _bmp(content),
                lambda: tf.io.decode_image(content, expand_animations=False),
            ),
        )
    exif = tf.cond(is_jpeg, lambda: _exif_of_jpeg(content), lambda: tf.cond(is_png, lambda: _exif_of_png(content), _no))
    orientation = tf.cond(exif > 0, lambda: _orientation(content, exif), lambda: tf.constant(1, tf.int64))
    upright = _upright(_color(pixels, image_shape[-1]), orientation)
    return tf.ensure_shape(_resized(upright, image_shape[:2], resize), image_shape)


def _no() -> tf.Tensor:
    return tf.constant(-1, tf.int64)


def _refuse_large(content: tf.Tensor, is_jpeg: tf.Tensor, is_png: tf.Tensor, is_gif: tf.Tensor) -> tf.Operation:
    """Refuses an image of more than MOST_PIXELS by its header, before memory is taken for its pixels.

    TensorFlow itself refuses a large BMP, whose pixels are in the file.
    """
    sides = tf.cond(
        is_jpeg,
        lambda: tf.cast(tf.io.extract_jpeg_shape(content)[:2], tf.int64),
        lambda: tf.cond(
            is_gif,
            lambda: _sides_of_gif(content),
            lambda: _sides_of_png(content) * tf.cast(is_png, tf.int64),
        ),
    )
    return tf.debugging.assert_less_equal(
        sides[0] * sides[1],
        tf.constant(MOST_PIXELS, tf.int64),
        f"an image of over {MOST_PIXELS // 10**6} million pixels",
    )


def _sides_of_png(content: tf.Tensor) -> tf.Tensor:
    header = _bytes(content, 16, 8)
    return tf.stack([_number(header[:4]), _number(header[4:])])


def _sides_of_gif(content: tf.Tensor) -> tf.Tensor:
    """Returns width and height of a GIF, int64 [2].

    Source: GIF89a Specification (CompuServe, 1990): blocks of 0x21 (extension) and 0x2C (image) follow the header and
    its color table; the parts of an extension are preceded by their length, and end with 0.

    Raises:
        InvalidArgumentError: where its first frame does not fill it: Pillow has the background around it, TensorFlow
            the frame alone.
    """
    header, length = _bytes(content, 0, 13), tf.cast(tf.strings.length(content), tf.int64)
    has_table, size = header[10] >= 128, header[10] % 8 + 1
    begin = 13 + tf.where(has_table, 3 * tf.bitwise.left_shift(tf.constant(1, tf.int64), size), 0)

    def step(place: tf.Tensor, inside: tf.Tensor, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        value = _bytes(content, place, 1)[0]
        is_extension, is_image = ~inside & (value == 0x21), ~inside & (value == 0x2C)
        after_block = tf.where(is_extension, place + 2, length)  # else an image, or damage
        following = tf.where(inside, place + 1 + value, after_block)
        return following, is_extension | (inside & (value > 0)), tf.where(is_image, place, image)

    _, _, image = tf.while_loop(
        lambda place, inside, image: (image < 0) & (place < length),
        step,
        (begin, tf.constant(False), _no()),
        maximum_iterations=_MOST_BLOCKS,
    )
    little = tf.constant(True)
    frame = _bytes(content, image + 1, 8)
    sides = [_number(header[place : place + 2], little) for place in (6, 8)]
    corner = [_number(frame[place : place + 2], little) for place in (0, 2)]
    filled = [_number(frame[place : place + 2], little) for place in (4, 6)]
    fills = (image >= 0) & tf.reduce_all(tf.stack([*corner, *filled]) == tf.stack([0, 0, *sides]))
    why = "a GIF whose first frame does not fill it: convert it to PNG"
    with tf.control_dependencies([tf.debugging.Assert(fills, [why])]):
        return tf.stack(sides)


def _bmp(content: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of a BMP, uint8 [h, w, 3 or 4]: those of 8 bits by its color table, which TensorFlow ignores.

    Raises:
        InvalidArgumentError: for other kinds of BMP than 8, 24 and 32 bits in blue, green, red, without compression:
            Pillow reads them, TensorFlow reads other pixels or none.
    """
    header, little = _bytes(content, 0, 70), tf.constant(True)

    def number(begin: int, count: int = 4) -> tf.Tensor:
        return _number(header[begin : begin + count], little)

    begins, size, depth, compression = number(10), number(14), number(28, 2), number(30)
    masks = tf.stack([number(54), number(58), number(62)])
    is_plain = (compression == 0) & ((depth == 8) | (depth == 24) | (depth == 32))
    is_bgr = (compression == 3) & (depth == 32) & tf.reduce_all(masks == tf.constant(_BGR, tf.int64))
    is_known = tf.reduce_any(size == tf.constant(_BMP_HEADERS, tf.int64))
    kind = tf.strings.format(
        "a BMP of {} bits, compression {} and a header of {} bytes, where models read 8, 24 and 32 bits without "
        "compression: convert it to PNG",
        (depth, compression, size),
    )
    with tf.control_dependencies([tf.debugging.Assert(is_known & (is_plain | is_bgr), [kind])]):
        pixels = tf.io.decode_bmp(content)

    def by_table() -> tf.Tensor:
        count = number(46)
        count = tf.where(count == 0, tf.constant(256, tf.int64), count)
        table = tf.cast(tf.reshape(_bytes(content, 14 + size, 4 * 256), [256, 4])[:, 2::-1], tf.uint8)
        # Pillow takes a table of two for one bit, and pixels right behind the header for pixels behind a table.
        is_usual = (count > 2) & (count <= 256) & (begins >= 14 + size + 4 * count)
        is_inside = tf.reduce_all(tf.cast(pixels, tf.int64) < count)
        colors = tf.strings.format(
            "a BMP of 8 bits with a color table of {}, which does not fit: convert it to PNG", count
        )
        with tf.control_dependencies([tf.debugging.Assert(is_usual & is_inside, [colors])]):
            return tf.gather(table, tf.cast(pixels[..., 0], tf.int32))

    return tf.cond(depth == 8, by_table, lambda: pixels)


def _bytes(content: tf.Tensor, begin: tf.Tensor | int, count: int) -> tf.Tensor:
    """Returns int64 [count]: the bytes from `begin`; 0 past the end."""
    begin = tf.clip_by_value(tf.cast(begin, tf.int64), 0, tf.cast(tf.strings.length(content), tf.int64))
    part = tf.strings.substr(content, begin, tf.constant(count, tf.int64))
    return tf.cast(tf.ensure_shape(tf.io.decode_raw(part, tf.uint8, fixed_length=count), [count]), tf.int64)


def _number(digits: tf.Tensor, little: tf.Tensor | bool = False) -> tf.Tensor:
    """Returns the whole number, int64, of 2 to 4 bytes, the most significant one first unless `little`."""
    powers = tf.constant([256**power for power in reversed(range(digits.shape[0]))], tf.int64)
    return tf.reduce_sum(digits * (powers if little is False else tf.where(little, powers[::-1], powers)))


def _exif_of_jpeg(content: tf.Tensor) -> tf.Tensor:
    """Returns where the TIFF header of the EXIF data begins; -1 where there is none."""
    length = tf.cast(tf.strings.length(content), tf.int64)

    def step(place: tf.Tensor, exif: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        header = _bytes(content, place, 4)
        marker = _number(header[:2])
        is_exif = (marker == 0xFFE1) & (tf.strings.substr(content, place + 4, 6) == b"Exif\x00\x00")
        ends = (marker < 0xFF00) | (marker == 0xFFDA)  # damage, or the pixels begin
        following = tf.where(marker == 0xFFFF, place + 1, place + 2 + _number(header[2:]))
        return tf.where(ends, length, following), tf.where(is_exif, place + 10, exif)

    return _walk(step, 2, length)


def _exif_of_png(content: tf.Tensor) -> tf.Tensor:
    """Returns where the TIFF header of the chunk `eXIf` begins; -1 where there is none."""
    length = tf.cast(tf.strings.length(content), tf.int64)

    def step(place: tf.Tensor, exif: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_exif = tf.strings.substr(content, place + 4, 4) == b"eXIf"
        return place + 12 + _number(_bytes(content, place, 4)), tf.where(is_exif, place + 8, exif)

    return _walk(step, 8, length)


def _walk(step: object, begin: int, length: tf.Tensor) -> tf.Tensor:
    _, exif = tf.while_loop(
        lambda place, exif: (exif < 0) & (place + 12 <= length),
        step,
        (tf.constant(begin, tf.int64), _no()),
        maximum_iterations=_MOST_BLOCKS,
    )
    return exif


def _orientation(content: tf.Tensor, tiff: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF orientation, 1 to 8; 1 where the tag is absent or invalid."""
    header = _bytes(content, tiff, 8)
    little = header[0] == ord("I")
    directory = tiff + _number(header[4:], little)
    entries = _number(_bytes(content, directory, 2), little)

    def step(index: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        entry = _bytes(content, directory + 2 + 12 * index, 12)
        tag, kind, count = (_number(entry[part], little) for part in (slice(2), slice(2, 4), slice(4, 8)))
        short, long = _number(entry[8:10], little), _number(entry[8:], little)
        number = tf.where(kind == 3, short, tf.where(kind == 4, long, 1))
        return index + 1, tf.where((tag == ORIENTATION) & (count == 1), number, value)

    begin = (tf.constant(0, tf.int64), tf.constant(1, tf.int64))
    _, value = tf.while_loop(
        lambda index, value: (index < entries) & (value == 1), step, begin, maximum_iterations=1000
    )
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Returns an image [h, w, C] put upright, as `ImageOps.exif_transpose` does: transposed first, then turned."""
    turned = tf.cond(orientation >= 5, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
    for axis, values in ((0, (3, 4, 7, 8)), (1, (2, 3, 6, 7))):
        reverse = tf.reduce_any(orientation == tf.constant(values, tf.int64))
        turned = tf.cond(
            reverse, lambda turned=turned, axis=axis: tf.reverse(turned, [axis]), lambda turned=turned: turned
        )
    return turned


def _color(pixels: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns uint8 [h, w, channels] of gray or RGB pixels, with or without transparency, by Pillow's own formula."""
    is_color = tf.shape(pixels)[2] >= 3
    rgb = tf.gather(pixels, tf.where(is_color, [0, 1, 2], [0, 0, 0]), axis=2)
    if channels == 3:
        return rgb
    gray = tf.tensordot(tf.cast(rgb, tf.int32), tf.constant([19595, 38470, 7471]), 1)  # of 2**16: ITU-R 601-2
    return tf.cast(tf.bitwise.right_shift(gray + 2**15, 16), tf.uint8)[..., None]


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
    shrinks_by = tf.shape(pixels)[:2] - size
    rows_first = ROWS_MAY_BE_FIRST & (shrinks_by[0] > 0) & (shrinks_by[0] > 2 * shrinks_by[1])
    first = tf.cast(rows_first, tf.int32)
    order = tf.stack([first, 1 - first])
    pixels = tf.transpose(pixels, tf.concat([order, [2]], 0))  # now the second axis is the one to begin with
    for axis in (order[1], order[0]):
        pixels = tf.transpose(_with_columns(pixels, size[axis], begin[axis], lengths[axis]), [1, 0, 2])
    return tf.transpose(pixels, tf.concat([order, [2]], 0))


@tf.function(
    autograph=False,
    input_signature=[
        tf.TensorSpec((None, None, None), tf.uint8),
        tf.TensorSpec((), tf.int32),
        tf.TensorSpec((), tf.float64),
        tf.TensorSpec((), tf.float64),
    ],
)
def _with_columns(pixels: tf.Tensor, count: tf.Tensor, begin: tf.Tensor, covers: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [h, count, C] from [h, w, C]: each new pixel is a weighted sum over old ones under a triangle.

    Source: `precompute_coeffs`, `normalize_coeffs_8bpc` and `ImagingResampleHorizontal_8bpc` of Pillow's Resample.c.
    """
    width = tf.shape(pixels)[1]
    scale = covers / tf.cast(count, tf.float64)
    support = tf.maximum(scale, 1.0)
    centers = begin + (tf.cast(tf.range(count), tf.float64) + 0.5) * scale
    first = tf.maximum(tf.cast(centers - support + 0.5, tf.int32), 0)
    last = tf.minimum(tf.cast(centers + support + 0.5, tf.int32), width)
    taps = tf.cast(tf.math.ceil(support), tf.int32) * 2 + 1
    places = first + tf.range(taps)[:, None]
    distances = (tf.cast(places, tf.float64) - centers + 0.5) * (1.0 / support)
    weights = tf.where(places < last, tf.maximum(1.0 - tf.abs(distances), 0.0), 0.0)
    weights = tf.cast(0.5 + weights / tf.reduce_sum(weights, axis=0) * 2**_PRECISION, tf.int32)[..., None]
    places = tf.minimum(places, width - 1)

    def step(tap: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tap + 1, total + tf.cast(tf.gather(pixels, places[tap], axis=1), tf.int32) * weights[tap]

    total = tf.fill([tf.shape(pixels)[0], count, tf.shape(pixels)[2]], 2 ** (_PRECISION - 1))
    _, total = tf.while_loop(lambda tap, _: tap < taps, step, (tf.constant(0), total))
    return tf.cast(tf.clip_by_value(tf.bitwise.right_shift(total, _PRECISION), 0, 255), tf.uint8)
