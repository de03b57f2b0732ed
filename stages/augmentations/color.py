"""Color changes: those that are matrices, which multiply into one, then those that are not.

A matrix is float64 [b, C + 1, C + 1] and takes (c1 … cC, 1), the channels of a pixel, to their new values. In a
product, the last factor is applied first. Values are clipped once, after all changes.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

YIQ = (
    (0.299, 0.587, 0.114),
    (0.59590059, -0.27455667, -0.32134392),
    (0.21153661, -0.52273617, 0.31119955),
)
"""From red, green and blue to luma and two of chroma, as in `tf.image.rgb_to_yiq`."""

LUMA = YIQ[0]
"""Weights of red, green and blue in luma, ITU-R BT.601, as in Pillow."""


def neutral(count: tf.Tensor, channels: int) -> tf.Tensor:
    """Return matrices that change nothing, for `count` images."""
    return tf.eye(channels + 1, batch_shape=[count], dtype=tf.float64)


def gray_weights(channels: int) -> np.ndarray:
    """Return the weights of the channels in a pixel's gray value, float64 [channels], which add up to 1."""
    return np.array(LUMA) if channels == 3 else np.full(channels, 1.0 / channels)


def adjust(matrices: tf.Tensor, factors: Mapping[str, tf.Tensor], means: tf.Tensor, black: float) -> tf.Tensor:
    """Return `matrices`, followed by those of `brightness`, `contrast` and `saturation` that have `factors`, [b]."""
    if "brightness" in factors:
        matrices = _towards(factors["brightness"], black, means.shape[1] - 1) @ matrices
    if "contrast" in factors:
        matrices = contrast(factors["contrast"], matrices, means) @ matrices
    if "saturation" in factors:
        matrices = saturation(factors["saturation"]) @ matrices
    return matrices


def contrast(factor: tf.Tensor, before: tf.Tensor, means: tf.Tensor) -> tf.Tensor:
    """Multiply the difference from the image's mean gray after the changes `before`.

    means: of each channel before these, and 1, float64 [b, C + 1].
    """
    channels = means.shape[1] - 1
    now = tf.linalg.matvec(before, means)[:, :channels]
    return _towards(factor, tf.linalg.matvec(now, gray_weights(channels)), channels)


def saturation(factor: tf.Tensor) -> tf.Tensor:
    """Multiply the difference from the pixel's own gray; for three channels."""
    identity, gray = np.eye(4), np.eye(4)
    gray[:3, :3] = gray_weights(3)
    return factor[:, None, None] * identity + (1.0 - factor)[:, None, None] * gray


def hue(turns: tf.Tensor) -> tf.Tensor:
    """Turn the color circle, and leave gray unchanged; for three channels.

    A rotation of the plane IQ of YIQ: linear, unlike one in HSV, as in TensorFlow Addons' `adjust_hsv_in_yiq`.
    """
    to_yiq = np.eye(4)
    to_yiq[:3, :3] = YIQ
    back = np.linalg.inv(to_yiq)
    y_and_one, i_and_q, across = (np.zeros((4, 4)) for _ in range(3))
    y_and_one[[0, 3], [0, 3]], i_and_q[[1, 2], [1, 2]] = 1.0, 1.0
    across[1, 2] = -1.0
    across[2, 1] = 1.0
    angle = 2.0 * np.pi * turns[:, None, None]
    constant, cosine, sine = (back @ part @ to_yiq for part in (y_and_one, i_and_q, across))
    return constant + tf.cos(angle) * cosine + tf.sin(angle) * sine


def recolor(images: tf.Tensor, matrices: tf.Tensor) -> tf.Tensor:
    """Return float32 [b, H, W, C] with each pixel multiplied by its image's matrix.

    Channel by channel: a matrix product of one image is rounded otherwise than that of several.
    """
    shape = tf.shape(images)
    channels = images.shape[-1]
    exact = tf.cast(matrices, tf.float32)
    offsets = exact[:, None, :channels, channels]
    old = tf.unstack(tf.reshape(images, [shape[0], -1, channels]), axis=-1)
    new = [
        sum((value * exact[:, row, column, None] for column, value in enumerate(old)), offsets[:, :, row])
        for row in range(channels)
    ]
    return tf.reshape(tf.stack(new, axis=-1), shape)


def posterize(images: tf.Tensor, step: tf.Tensor, low: float) -> tf.Tensor:
    """Round values down to multiples of `step`, float32 [b], counted from `low`; where it is 0, keeps them."""
    flat = tf.reshape(images, [tf.shape(images)[0], -1])
    steps = step[:, None]
    rounded = tf.floor((flat - low) / tf.maximum(steps, 1e-6)) * steps + low
    return tf.reshape(tf.where(steps > 0, rounded, flat), tf.shape(images))


def solarize(images: tf.Tensor, threshold: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Invert values of `threshold`, float32 [b], and above within [low, high]."""
    flat = tf.reshape(images, [tf.shape(images)[0], -1])
    return tf.reshape(tf.where(flat < threshold[:, None], flat, low + high - flat), tf.shape(images))


def _towards(factor: tf.Tensor, value: tf.Tensor | float, channels: int) -> tf.Tensor:
    """Multiply the difference of every channel from `value`, float64 [b] or [], by `factor`, float64 [b]."""
    scale, offset, corner = (np.zeros((channels + 1, channels + 1)) for _ in range(3))
    scale[:channels, :channels] = np.eye(channels)
    offset[:channels, channels] = 1.0
    corner[channels, channels] = 1.0
    return factor[:, None, None] * scale + ((1.0 - factor) * value)[:, None, None] * offset + corner
