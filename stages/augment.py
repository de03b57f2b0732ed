"""The `augment` stage: random changes of the training pictures."""

import dataclasses
import math
from dataclasses import dataclass

import tensorflow as tf

from stages.results import Dataset, Record
from stages.settings.images import AugmentSettings


def augment(dataset: Dataset, settings: AugmentSettings) -> Dataset:
    """Returns the data set with its augmentation, or with none where `settings` change nothing."""
    change = FlipRotate(settings.horizontal_flip, settings.vertical_flip, settings.rotation)
    active = settings.horizontal_flip or settings.vertical_flip or settings.rotation > 0
    return dataclasses.replace(dataset, augmentation=change if active else None, record=Record())


@dataclass(frozen=True)
class FlipRotate:
    """Flips and rotates about the centre, in one bilinear resampling; what comes from outside is mirrored in.

    rotation: the largest angle to either side, in turns, in [0, 0.5].
    """

    horizontal: bool
    vertical: bool
    rotation: float

    randoms = 3

    def __call__(self, images: tf.Tensor, uniforms: tf.Tensor) -> tf.Tensor:
        size = tf.shape(images)[1:3]
        height, width = tf.unstack(tf.cast(size - 1, tf.float32))
        angle = (2.0 * uniforms[:, 0] - 1.0) * (2.0 * math.pi * self.rotation)
        flip_x = tf.where(uniforms[:, 1] < 0.5, -1.0, 1.0) if self.horizontal else tf.ones_like(angle)
        flip_y = tf.where(uniforms[:, 2] < 0.5, -1.0, 1.0) if self.vertical else tf.ones_like(angle)
        # Output (x, y) is read from input (a0 x + a1 y + a2, b0 x + b1 y + b2); the centre stays where it is.
        a0, a1 = flip_x * tf.cos(angle), -flip_x * tf.sin(angle)
        b0, b1 = flip_y * tf.sin(angle), flip_y * tf.cos(angle)
        a2 = (width - (a0 * width + a1 * height)) / 2.0
        b2 = (height - (b0 * width + b1 * height)) / 2.0
        none = tf.zeros_like(angle)
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=images,
            transforms=tf.stack([a0, a1, a2, b0, b1, b2, none, none], axis=1),
            output_shape=size,
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="REFLECT",
        )
