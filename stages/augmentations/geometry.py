"""Geometric changes, as matrices that multiply into one, for a single resampling.

A matrix is float64 [b, 3, 3] and takes (x, y, 1) of a pixel of the new image to where it is read from in the old one,
in pixels from the center, x to the right and y down. In a product, the first factor is applied first.

They are float64 and rounded once, at the end: the sine of a number may differ in float32's last digit by its place in
the tensor (vector and scalar code), and an image must not depend on which replica makes it.
"""

import math

import tensorflow as tf


def flip(mirrors_x: tf.Tensor, mirrors_y: tf.Tensor) -> tf.Tensor:
    """Mirror left to right, and top to bottom, the examples for which the two, bool [b], are true."""
    x, y = (1.0 - 2.0 * tf.cast(mirrors, tf.float64) for mirrors in (mirrors_x, mirrors_y))
    return crop(x, y, 0.0, 0.0)


def move(turns: tf.Tensor, shear_x: tf.Tensor, shear_y: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Turn about the center, shear by fractions, or shift by `x` and `y` pixels. Only one of these may differ from 0.

    Each argument is float64 [b], or one number.
    """
    angle = 2.0 * math.pi * turns
    cosine, sine = tf.cos(angle), tf.sin(angle)
    return _matrix(cosine, shear_x - sine, -x, shear_y + sine, cosine, -y)


def crop(width: tf.Tensor, height: tf.Tensor, x: tf.Tensor | float, y: tf.Tensor | float) -> tf.Tensor:
    """Crop to `width` and `height`, fractions of the sides, with the center moved by `x` and `y` pixels.

    Fractions above 1 zoom out. With 1 for both, the image is shifted by -x and -y.
    """
    return _matrix(width, 0.0, x, 0.0, height, y)


def move_masks(masks: tf.Tensor, matrices: tf.Tensor, outside: int) -> tf.Tensor:
    """Return int32 [b, H, W], read by `matrices` as `resample` reads images, but from the nearest pixel.

    Args:
        masks: Whole numbers, int32 [b, H, W].
        matrices: See `resample`.
        outside: The value of pixels that lie outside of the mask.
    """
    moved = _projected(masks[..., None], matrices, "NEAREST", "CONSTANT", float(outside))
    return tf.ensure_shape(moved[..., 0], masks.shape)


def _matrix(*entries: tf.Tensor | float) -> tf.Tensor:
    """Return the matrices of (x, y) -> (a x + b y + c, d x + e y + f) for `entries` a … f; the first is float64 [b]."""
    ones = tf.ones_like(entries[0])
    nine = [entry if tf.is_tensor(entry) else ones * entry for entry in (*entries, 0.0, 0.0, 1.0)]
    return tf.reshape(tf.stack(nine, axis=1), [-1, 3, 3])


def mirror(images: tf.Tensor, mirrors_x: tf.Tensor, mirrors_y: tf.Tensor) -> tf.Tensor:
    """Return the same as `resample` with `flip`, a dozen times as fast; [b, H, W, C] of any dtype."""
    shape = tf.shape(images)
    mirrored = images
    for axis, mirrors in ((2, mirrors_x), (1, mirrors_y)):
        flat = [tf.reshape(pixels, [shape[0], -1]) for pixels in (tf.reverse(mirrored, [axis]), mirrored)]
        mirrored = tf.reshape(tf.where(mirrors[:, None], *flat), shape)
    return mirrored


def resample(images: tf.Tensor, matrices: tf.Tensor) -> tf.Tensor:
    """Return float32 [b, H, W, C], read bilinearly by `matrices`; what lies outside is mirrored in.

    Whole pixels that move to whole pixels, as by flips, keep their values exactly.
    """
    return _projected(images, matrices, "BILINEAR", "REFLECT", 0.0)


def _projected(images: tf.Tensor, matrices: tf.Tensor, interpolation: str, fill_mode: str, fill: float) -> tf.Tensor:
    size = tf.shape(images)[1:3]
    center_y, center_x = tf.unstack(tf.cast(size - 1, tf.float64) / 2.0)
    rows = matrices[:, :2, :]
    center = tf.stack([center_x, center_y])
    offsets = rows[:, :, 2] + center - tf.linalg.matvec(rows[:, :, :2], center)
    eight = tf.concat([rows[:, :, :2], offsets[:, :, None]], axis=2)
    transforms = tf.pad(tf.cast(tf.reshape(eight, [-1, 6]), tf.float32), [[0, 0], [0, 2]])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=size,
        fill_value=fill,
        interpolation=interpolation,
        fill_mode=fill_mode,
    )
