"""RandAugment: a few operations for each image, drawn from a list, all of one strength.

Operations that fold into the matrices of `geometry` and `color`, and two that follow these. AutoContrast, Equalize and
Sharpness, each of which would take passes of its own over the pixels, are left out; so is saturation where images do
not have three channels.
Source: Cubuk et al. 2020 (arXiv:1909.13719).
"""

from collections.abc import Mapping

import tensorflow as tf

from stages.augmentations import color, geometry

STRONGEST: Mapping[str, float] = {
    "identity": 0,
    "rotate": 30 / 360,  # turns
    "shear_x": 0.3,
    "shear_y": 0.3,
    "translate_x": 150 / 331,  # of the side
    "translate_y": 150 / 331,
    "brightness": 0.9,  # added to a factor of 1, or subtracted
    "contrast": 0.9,
    "posterize": 4,  # bits of 8 that are lost
    "solarize": 1,  # of the range, inverted
    "saturation": 0.9,
}
"""The operations with their amounts at full strength, as in torchvision's `RandAugment`."""

RANDOMS = 2
"""Random numbers for each operation: its kind, and its sign."""


class Drawn:
    """Operations drawn for a batch of images, in order.

    Args:
        numbers: float64 [b, RANDOMS * operations], in [0, 1).
        strength: in [0, 1].
        channels: of the images.

    amounts: of each operation by its name, float64 [b, operations], 0 where it is not drawn.
    """

    def __init__(self, numbers: tf.Tensor, strength: float, channels: int) -> None:
        names = list(STRONGEST) if channels == 3 else [name for name in STRONGEST if name != "saturation"]
        kinds = tf.cast(numbers[:, ::RANDOMS] * len(names), tf.int32)
        signed = tf.where(numbers[:, 1::RANDOMS] < 0.5, -strength, strength)
        chosen = tf.one_hot(kinds, len(names), dtype=tf.float64) * tf.cast(signed, tf.float64)[:, :, None]
        amounts = tf.unstack(chosen * [STRONGEST[name] for name in names], axis=2)
        self.amounts = dict(zip(names, amounts, strict=True))
        self._channels = channels

    def geometry(self, width: tf.Tensor, height: tf.Tensor) -> list[tf.Tensor]:
        """Returns a matrix of `geometry` for each operation, in order; `width` and `height` in pixels, float64 []."""
        names = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
        slots = zip(*(tf.unstack(self.amounts[name], axis=1) for name in names), strict=True)
        return [
            geometry.move(turns, shear_x, shear_y, x * width, y * height) for turns, shear_x, shear_y, x, y in slots
        ]

    def colors(self, before: tf.Tensor, means: tf.Tensor, black: float) -> tf.Tensor:
        """Returns the matrices `before`, followed by those of the operations.

        means: float64 [b, C + 1], each image's mean of every channel, and 1.
        """
        matrices = before
        names = [name for name in ("brightness", "contrast", "saturation") if name in self.amounts]
        for amounts in zip(*(tf.unstack(self.amounts[name], axis=1) for name in names), strict=True):
            brightness, contrast, *saturation = amounts
            matrices = color.brightness(1.0 + brightness, black, self._channels) @ matrices
            matrices = color.contrast(1.0 + contrast, matrices, means) @ matrices
            if saturation:
                matrices = color.saturation(1.0 + saturation[0]) @ matrices
        return matrices

    def steps(self, low: float, high: float) -> tf.Tensor:
        """Returns the step for `posterize`, float32 [b]: between two levels in `low` to `high`; 0: unchanged."""
        bits = tf.round(self._most("posterize"))
        return tf.cast(tf.where(bits > 0, 2.0**bits, 0.0) * ((high - low) / 255), tf.float32)

    def thresholds(self, low: float, high: float) -> tf.Tensor:
        """Returns the threshold for `solarize`, float32 [b]; infinity where an image is not solarized."""
        fraction = self._most("solarize")
        return tf.cast(tf.where(fraction > 0, high - (high - low) * fraction, float("inf")), tf.float32)

    def _most(self, name: str) -> tf.Tensor:
        """Returns the largest amount drawn, float64 [b], of an operation applied once: solarize would undo itself."""
        return tf.reduce_max(tf.abs(self.amounts[name]), axis=1)
