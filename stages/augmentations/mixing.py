"""MixUp and CutMix: combine the images and targets of two examples of a batch.

Sources: Zhang et al. 2018 (arXiv:1710.09412), Yun et al. 2019 (arXiv:1905.04899).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from stages.augmentations.transforms import Example, Key, Transform


@dataclass(frozen=True)
class Mixing(Transform):
    """Mixes the images of each example with those of its partner, by MixUp or by CutMix, and their targets."""

    combines: ClassVar[bool] = True

    mixup: float
    """Alpha of the Beta(alpha, alpha) from which the weight of the example is drawn; 0: never."""
    cutmix: float
    """The same for CutMix. With both, half of the examples are mixed in either way."""
    images: tuple[str, ...]
    """The inputs that are images."""
    soften: Callable[[tf.Tensor], tf.Tensor]
    """Converts targets to float32 [b, outputs], which can be mixed."""
    outputs: int
    """The width of these targets."""

    def spec(self, example: Example) -> Example:
        return example._replace(targets=tf.TensorSpec([None, self.outputs], tf.float32))

    def partners(self, rows: tf.Tensor, count: tf.Tensor, key: Key) -> tf.Tensor:
        """Return the partners of `rows`.

        All partners of a step are equally far away, 1 to count - 1 rows, cyclically; a single example is its own.
        """
        number = tf.random.stateless_uniform([], key("partners"), dtype=tf.float64)
        return (rows + 1 + tf.cast(number * tf.cast(count - 1, tf.float64), tf.int64)) % count

    def draw(self, batch_size: int, key: Key) -> tf.Tensor:
        """Return four numbers for each row of a global batch, float64 [batch_size, 4].

        They are 1 for CutMix or 0 for MixUp; the weight of the example; and the center of CutMix's box, x and y, as
        fractions of the sides.
        """
        uniforms = tf.random.stateless_uniform([batch_size, 3], key("mixing"), dtype=tf.float64)
        odds = 0.5 if self.mixup and self.cutmix else float(self.cutmix > 0)
        is_cut = tf.cast(uniforms[:, 0] < odds, tf.float64)
        weights = [beta(alpha, batch_size, key) if alpha else is_cut for alpha in (self.mixup, self.cutmix)]
        weight = tf.where(is_cut > 0, weights[1], weights[0])
        return tf.concat([is_cut[:, None], weight[:, None], uniforms[:, 1:]], axis=1)

    def __call__(self, example: Example, numbers: tf.Tensor) -> Example:
        raise NotImplementedError("mixing needs two examples")

    def combine(self, example: Example, partner: Example, numbers: tf.Tensor) -> Example:
        """Return the mixed images, float32 [b, H, W, C], and their targets, float32 [b, outputs].

        Of several images, all are mixed by the weight and the box of the same numbers.
        """
        targets = self.soften(example.targets), self.soften(partner.targets)
        inputs = dict(example.inputs)
        for name in self.images:
            inputs[name], weight = self._mixed(example.inputs[name], partner.inputs[name], numbers)
        return example._replace(inputs=inputs, targets=weight * targets[0] + (1.0 - weight) * targets[1])

    def _mixed(self, own: tf.Tensor, partner: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mixed images, and the weight of the examples' own targets, float32 [b, 1]."""
        images = own, partner
        is_cut = numbers[:, 0] > 0
        drawn = numbers[:, 1]
        height, width = own.shape[1:3]
        side = tf.sqrt(1.0 - drawn)
        inside_x, inside_y = _inside(width, numbers[:, 2], side), _inside(height, numbers[:, 3], side)
        shape = tf.shape(own)
        mixed = own
        if self.mixup:
            own_weight = tf.cast(tf.where(is_cut, tf.ones_like(drawn), drawn), tf.float32)[:, None]
            flat = [tf.reshape(image, [shape[0], -1]) for image in images]  # far faster with two axes
            mixed = tf.reshape(own_weight * flat[0] + (1.0 - own_weight) * flat[1], shape)
        if self.cutmix:
            columns = tf.repeat(inside_x, own.shape[3], axis=1)[:, None, :]
            box = (inside_y & is_cut[:, None])[:, :, None] & columns
            flat = [tf.reshape(image, [shape[0], height, -1]) for image in (partner, mixed)]
            mixed = tf.reshape(tf.where(box, *flat), shape)
        pixels = tf.math.count_nonzero(inside_x, axis=1) * tf.math.count_nonzero(inside_y, axis=1)
        uncovered = 1.0 - tf.cast(pixels, tf.float64) / (height * width)  # the edge may cut the box
        weight = tf.cast(tf.where(is_cut, uncovered, drawn), tf.float32)[:, None]
        return mixed, weight


def beta(alpha: float, count: int, key: Key) -> tf.Tensor:
    """Return draws from Beta(alpha, alpha), float64 [count].

    The ratio of a Gamma(alpha) number to the sum of two; from logarithms, as for a small alpha most would round to 0.
    Gamma(alpha) is Gamma(alpha + 1) times U^(1 / alpha): Marsaglia and Tsang 2000, section 6.
    """
    gamma = tf.random.stateless_gamma([2, count], key(f"gamma {alpha}"), alpha + 1.0, dtype=tf.float64)
    uniform = 1.0 - tf.random.stateless_uniform([2, count], key(f"uniform {alpha}"), dtype=tf.float64)  # above 0
    logs = tf.math.log(gamma) + tf.math.log(uniform) / alpha
    return tf.sigmoid(logs[0] - logs[1])


def _inside(size: int, center: tf.Tensor, side: tf.Tensor) -> tf.Tensor:
    """Return which of `size` pixels lie in a box, bool [b, size]; its center and side [b] are fractions of `size`."""
    pixels = tf.range(size, dtype=tf.float64)[None, :] + 0.5
    return tf.abs(pixels - size * center[:, None]) < size * side[:, None] / 2.0
