"""RandAugment: for each picture some operations of a list, all of one strength.

Those that fold into the matrices of `geometry` and `colour`, and those that come after them. AutoContrast, Equalize and
Sharpness, which would each take passes of their own over the pixels, are left out; so is Color where pictures have not
three channels. Greatest strengths are those of torchvision's `RandAugment`.
Source: Cubuk et al. 2020 (arXiv:1909.13719).
"""

import tensorflow as tf

from stages.augmentations import colour, geometry

OPERATIONS = (
    "identity",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "brightness",
    "contrast",
    "posterize",
    "solarize",
    "saturation",
)
ROTATION_TURNS, SHEAR, TRANSLATION, FACTOR, BITS_LOST = 30 / 360, 0.3, 150 / 331, 0.9, 4
RANDOMS = 2
"""Random numbers for each operation: which, and to which side."""


class Drawn:
    """The operations that pictures are given, one after another.

    Args:
        numbers: float64 [b, RANDOMS * operations], in [0, 1).
        strength: in [0, 1].
        channels: of the pictures.
    """

    def __init__(self, numbers: tf.Tensor, strength: float, channels: int) -> None:
        self._names = OPERATIONS if channels == 3 else OPERATIONS[:-1]
        self._strength, self._channels = strength, channels
        columns = tf.unstack(numbers, axis=1)
        self._which = [tf.cast(column * len(self._names), tf.int32) for column in columns[::RANDOMS]]
        self._signs = [tf.where(column < 0.5, -1.0, 1.0) for column in columns[1::RANDOMS]]

    def geometry(self, width: tf.Tensor, height: tf.Tensor) -> list[tf.Tensor]:
        """Returns matrices of `geometry`, in order, for pictures of so many pixels, float64 []."""
        matrices = []
        for slot in range(len(self._which)):
            matrices += [
                geometry.rotate(ROTATION_TURNS * self._amount(slot, "rotate")),
                geometry.shear(SHEAR * self._amount(slot, "shear_x"), SHEAR * self._amount(slot, "shear_y")),
                geometry.translate(
                    TRANSLATION * width * self._amount(slot, "translate_x"),
                    TRANSLATION * height * self._amount(slot, "translate_y"),
                ),
            ]
        return matrices

    def colours(self, before: tf.Tensor, means: tf.Tensor, black: float) -> tf.Tensor:
        """Returns the matrices `before`, and after them those of the operations.

        means: float64 [b, C + 1], each picture's mean of every channel, and 1.
        """
        matrices = before
        for slot in range(len(self._which)):
            light, difference = (1.0 + FACTOR * self._amount(slot, name) for name in ("brightness", "contrast"))
            matrices = colour.brightness(light, black, self._channels) @ matrices
            now = tf.linalg.matvec(matrices, means)[:, : self._channels]
            matrices = colour.contrast(difference, now) @ matrices
            if "saturation" in self._names:
                matrices = colour.saturation(1.0 + FACTOR * self._amount(slot, "saturation")) @ matrices
        return matrices

    def steps(self, low: float, high: float) -> tf.Tensor:
        """Returns the step for `posterize`, float32 [b]: so many times that of 256 values from `low` to `high`."""
        step = 2 ** round(BITS_LOST * self._strength) * (high - low) / 255
        return tf.where(self._is_drawn("posterize"), step if step > (high - low) / 255 else 0.0, 0.0)

    def thresholds(self, low: float, high: float) -> tf.Tensor:
        """Returns the threshold for `solarize`, float32 [b]; infinity where a picture is not solarized."""
        threshold = high - (high - low) * self._strength if self._strength else float("inf")
        return tf.where(self._is_drawn("solarize"), threshold, float("inf"))

    def _amount(self, slot: int, name: str) -> tf.Tensor:
        """Returns how much of an operation, float64 [b] in [-1, 1]."""
        signed = self._strength * tf.cast(self._signs[slot], tf.float64)
        return tf.where(self._which[slot] == self._names.index(name), signed, tf.zeros_like(signed))

    def _is_drawn(self, name: str) -> tf.Tensor:
        """Returns bool [b]. Twice is as once: it would undo solarize, and not change what posterize has done."""
        return tf.reduce_any([which == self._names.index(name) for which in self._which], axis=0)
