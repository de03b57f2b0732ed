"""Changes of a picture's colours, as matrices that multiply into one; then those that are no matrix.

A matrix is float64 [b, C + 1, C + 1] and takes (c1 … cC, 1), the channels of a pixel, to their new values. Of a
product, the last factor is the change that is made first. Values are clipped once, after all of them.
"""

import numpy as np
import tensorflow as tf

LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue are, ITU-R BT.601, as in Pillow."""


def neutral(count: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns matrices that change nothing, for `count` pictures."""
    return tf.eye(channels + 1, batch_shape=[count], dtype=tf.float64)


def grey_of(channels: int) -> np.ndarray:
    """Returns the shares of the channels in a pixel's grey value, float64 [channels], which add up to 1."""
    return np.array(LUMA) if channels == 3 else np.full(channels, 1.0 / channels)


def brightness(factor: tf.Tensor, black: float, channels: int) -> tf.Tensor:
    """Multiplies the light, [b], counted from the value of `black`."""
    return _towards(factor, tf.fill(tf.shape(factor), tf.constant(black, tf.float64)), channels)


def contrast(factor: tf.Tensor, means: tf.Tensor) -> tf.Tensor:
    """Multiplies the difference from the picture's mean grey. means: float64 [b, C], as they are before this change."""
    channels = means.shape[1]
    return _towards(factor, tf.linalg.matvec(means, grey_of(channels)), channels)


def saturation(factor: tf.Tensor) -> tf.Tensor:
    """Multiplies the difference from the pixel's own grey; for three channels."""
    grey = tf.ones([3, 1], tf.float64) * tf.constant(grey_of(3))[None, :]
    mixed = factor[:, None, None] * tf.eye(3, dtype=tf.float64) + (1.0 - factor)[:, None, None] * grey
    return _homogeneous(mixed, tf.zeros([tf.size(factor), 3], tf.float64))


def hue(turns: tf.Tensor) -> tf.Tensor:
    """Turns the colour circle, and leaves grey as it is; for three channels.

    A rotation of the plane IQ of YIQ: linear, unlike one in HSV. So does `tfa.image.adjust_hsv_in_yiq`.
    """
    angle, zero, one = 2.0 * np.pi * turns, tf.zeros_like(turns), tf.ones_like(turns)
    turned = [[one, zero, zero], [zero, tf.cos(angle), -tf.sin(angle)], [zero, tf.sin(angle), tf.cos(angle)]]
    rotation = tf.transpose(tf.stack([tf.stack(row) for row in turned]), [2, 0, 1])
    to_yiq = tf.transpose(tf.image.rgb_to_yiq(tf.eye(3, dtype=tf.float64)))
    return _homogeneous(tf.linalg.inv(to_yiq) @ rotation @ to_yiq, tf.zeros([tf.size(turns), 3], tf.float64))


def recolour(images: tf.Tensor, matrices: tf.Tensor, mixes_channels: bool) -> tf.Tensor:
    """Returns float32 [b, H, W, C] with each pixel multiplied by its picture's matrix.

    mixes_channels: whether a new value depends on the other channels; if not, all channels have the same factor.
    """
    shape, channels = tf.shape(images), images.shape[-1]
    exact = tf.cast(matrices, tf.float32)
    offsets = exact[:, None, :channels, channels]
    pixels = tf.reshape(images, [shape[0], -1, channels])
    if mixes_channels:
        return tf.reshape(tf.matmul(pixels, exact[:, :channels, :channels], transpose_b=True) + offsets, shape)
    flat = tf.reshape(images, [shape[0], -1]) * exact[:, 0, :1] + offsets[:, :, 0]  # of two axes it is far faster
    return tf.reshape(flat, shape)


def posterize(images: tf.Tensor, step: tf.Tensor, low: float) -> tf.Tensor:
    """Rounds values down to multiples of `step`, float32 [b], counted from `low`; where it is 0, keeps them."""
    flat, steps = tf.reshape(images, [tf.shape(images)[0], -1]), step[:, None]
    rounded = tf.floor((flat - low) / tf.maximum(steps, 1e-6)) * steps + low
    return tf.reshape(tf.where(steps > 0, rounded, flat), tf.shape(images))


def solarize(images: tf.Tensor, threshold: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Turns values of `threshold`, float32 [b], and above into their negative within [low, high]."""
    flat = tf.reshape(images, [tf.shape(images)[0], -1])
    return tf.reshape(tf.where(flat < threshold[:, None], flat, low + high - flat), tf.shape(images))


def _towards(factor: tf.Tensor, value: tf.Tensor, channels: int) -> tf.Tensor:
    """Multiplies the difference of every channel from `value` [b] by `factor` [b]."""
    scale = factor[:, None, None] * tf.eye(channels, dtype=tf.float64)
    return _homogeneous(scale, tf.tile(((1.0 - factor) * value)[:, None], [1, channels]))


def _homogeneous(linear: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Returns [b, C + 1, C + 1] of [b, C, C] and [b, C]."""
    channels = linear.shape[-1]
    last = tf.broadcast_to(tf.eye(channels + 1, dtype=tf.float64)[channels:], [tf.shape(linear)[0], 1, channels + 1])
    return tf.concat([tf.concat([linear, offset[:, :, None]], axis=2), last], axis=1)
