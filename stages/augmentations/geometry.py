"""Changes of a picture's geometry, as matrices that multiply into one, for one resampling.

A matrix is float64 [b, 3, 3] and takes (x, y, 1) of a pixel of the new picture to where it is read from in the old one,
in pixels from the centre, x to the right and y down. Of a product, the first factor is the change that is made first.

They are float64 and rounded once, at the end: the sine of a number may differ in float32's last digit by its place in
the tensor (vector and scalar code), and a picture must not depend on which replica makes it.
"""

import math
from typing import TypeAlias

import tensorflow as tf

Number: TypeAlias = tf.Tensor | float
"""float64 [b], or one number for all pictures."""


def matrix(a: Number, b: Number, c: Number, d: Number, e: Number, f: Number, like: tf.Tensor) -> tf.Tensor:
    """Returns (x, y) -> (a x + b y + c, d x + e y + f) for as many pictures as `like` [b] has numbers."""
    rows = [tf.broadcast_to(tf.cast(value, tf.float64), tf.shape(like)) for value in (a, b, c, d, e, f, 0.0, 0.0, 1.0)]
    return tf.reshape(tf.stack(rows, axis=1), [-1, 3, 3])


def flip(mirrors_x: tf.Tensor, mirrors_y: tf.Tensor) -> tf.Tensor:
    """Mirrors left to right and top to bottom where the two, bool [b], say so."""
    one = tf.ones(tf.shape(mirrors_x), tf.float64)
    return matrix(tf.where(mirrors_x, -one, one), 0.0, 0.0, 0.0, tf.where(mirrors_y, -one, one), 0.0, one)


def rotate(turns: tf.Tensor) -> tf.Tensor:
    """Turns about the centre."""
    angle = 2.0 * math.pi * turns
    return matrix(tf.cos(angle), -tf.sin(angle), 0.0, tf.sin(angle), tf.cos(angle), 0.0, turns)


def shear(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Moves rows by `x` times their height above the centre, and columns by `y` times their distance from it."""
    return matrix(1.0, x, 0.0, y, 1.0, 0.0, x)


def translate(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Moves by pixels."""
    return matrix(1.0, 0.0, -x, 0.0, 1.0, -y, x)


def zoom(factor: tf.Tensor) -> tf.Tensor:
    """Makes the picture `factor` times as large, about its centre."""
    return matrix(1.0 / factor, 0.0, 0.0, 0.0, 1.0 / factor, 0.0, factor)


def crop(width: tf.Tensor, height: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Shows a part alone, `width` and `height` of the sides (shares), its centre `x` and `y` pixels from the centre."""
    return matrix(width, 0.0, x, 0.0, height, y, width)


def resample(images: tf.Tensor, matrices: tf.Tensor) -> tf.Tensor:
    """Returns float32 [b, H, W, C], read bilinearly by `matrices`; what lies outside is mirrored in.

    Whole pixels that move to whole pixels, as by flips, keep their values exactly.
    """
    size = tf.shape(images)[1:3]
    centre_y, centre_x = tf.unstack(tf.cast(size - 1, tf.float64) / 2.0)
    rows = matrices[:, :2, :]
    centre = tf.stack([centre_x, centre_y])
    offsets = rows[:, :, 2] + centre - tf.linalg.matvec(rows[:, :, :2], centre)
    eight = tf.concat([rows[:, :, :2], offsets[:, :, None]], axis=2)
    transforms = tf.pad(tf.cast(tf.reshape(eight, [-1, 6]), tf.float32), [[0, 0], [0, 2]])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=size,
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="REFLECT",
    )
