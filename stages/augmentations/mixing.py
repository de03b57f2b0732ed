"""MixUp and CutMix: the images and labels of two examples of a batch in one.

Sources: Zhang et al. 2018 (arXiv:1710.09412), Yun et al. 2019 (arXiv:1905.04899).
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

Key = Callable[[str], tf.Tensor]
"""From a purpose to the seed, int32 [2], of its random numbers in a step."""


@dataclass(frozen=True)
class Mixing:
    """Mixes each image with its partner's, by MixUp or by CutMix.

    mixup, cutmix: alpha of the Beta(alpha, alpha) that an example's share of the image is drawn from; 0: never. With
        both, one example in two is mixed in either way.
    classes: how many there are.
    """

    mixup: float
    cutmix: float
    classes: int

    def partners(self, rows: tf.Tensor, count: tf.Tensor, key: Key) -> tf.Tensor:
        """Returns which rows of a global batch of `count` examples `rows`, int64 [b], are mixed with.

        All of a step are equally far away, 1 to count - 1 rows, round the end; an only example is its own partner.
        """
        number = tf.random.stateless_uniform([], key("partners"), dtype=tf.float64)
        return (rows + 1 + tf.cast(number * tf.cast(count - 1, tf.float64), tf.int64)) % count

    def draw(self, batch_size: int, key: Key) -> tf.Tensor:
        """Returns for each row of a global batch, float64 [batch_size, 4]: 1 for CutMix or 0 for MixUp; the share that
        the example keeps; where the centre of CutMix's box is, x and y in [0, 1) of the sides.
        """
        uniforms = tf.random.stateless_uniform([batch_size, 3], key("mixing"), dtype=tf.float64)
        odds = 0.5 if self.mixup and self.cutmix else float(self.cutmix > 0)
        is_cut = tf.cast(uniforms[:, 0] < odds, tf.float64)
        shares = [beta(alpha, batch_size, key) if alpha else is_cut for alpha in (self.mixup, self.cutmix)]
        share = tf.where(is_cut > 0, shares[1], shares[0])
        return tf.concat([is_cut[:, None], share[:, None], uniforms[:, 1:]], axis=1)

    def __call__(
        self,
        images: tuple[tf.Tensor, tf.Tensor],
        labels: tuple[tf.Tensor, tf.Tensor],
        numbers: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns mixed images, float32 [b, H, W, C], and labels, float32 [b, classes], whose rows add up to 1.

        Args:
            images: the examples' own and their partners', each float32 [b, H, W, C].
            labels: theirs, each int32 [b].
            numbers: the rows of `draw` for the examples.
        """
        own, other = images
        is_cut, share = numbers[:, 0] > 0, numbers[:, 1]
        height, width = own.shape[1:3]
        side = tf.sqrt(1.0 - share)
        inside_x, inside_y = _inside(width, numbers[:, 2], side), _inside(height, numbers[:, 3], side)
        shape, mixed = tf.shape(own), own
        if self.mixup:
            kept = tf.cast(tf.where(is_cut, tf.ones_like(share), share), tf.float32)[:, None]
            flat = [tf.reshape(image, [shape[0], -1]) for image in images]  # of two axes it is far faster
            mixed = tf.reshape(kept * flat[0] + (1.0 - kept) * flat[1], shape)
        if self.cutmix:
            columns = tf.repeat(inside_x, own.shape[3], axis=1)[:, None, :]
            box = (inside_y & is_cut[:, None])[:, :, None] & columns
            flat = [tf.reshape(image, [shape[0], height, -1]) for image in (other, mixed)]
            mixed = tf.reshape(tf.where(box, *flat), shape)
        pixels = tf.math.count_nonzero(inside_x, axis=1) * tf.math.count_nonzero(inside_y, axis=1)
        uncovered = 1.0 - tf.cast(pixels, tf.float64) / (height * width)  # what is left of it, where the edge cuts it
        weight = tf.cast(tf.where(is_cut, uncovered, share), tf.float32)[:, None]
        first, second = (tf.one_hot(label, self.classes) for label in labels)
        return mixed, weight * first + (1.0 - weight) * second


def beta(alpha: float, count: int, key: Key) -> tf.Tensor:
    """Returns draws from Beta(alpha, alpha), float64 [count].

    Of two Gamma(alpha) numbers, the first one's share of both; from their logarithms, as for a small alpha most would
    round to 0. Gamma(alpha) is Gamma(alpha + 1) times U^(1 / alpha): Marsaglia and Tsang 2000, section 6.
    """
    gamma = tf.random.stateless_gamma([2, count], key(f"gamma {alpha}"), alpha + 1.0, dtype=tf.float64)
    uniform = 1.0 - tf.random.stateless_uniform([2, count], key(f"uniform {alpha}"), dtype=tf.float64)  # above 0
    logs = tf.math.log(gamma) + tf.math.log(uniform) / alpha
    return tf.sigmoid(logs[0] - logs[1])


def _inside(size: int, centre: tf.Tensor, side: tf.Tensor) -> tf.Tensor:
    """Returns which of `size` pixels lie in a box, bool [b, size], by its centre and side [b] as shares of `size`."""
    pixels = tf.range(size, dtype=tf.float64)[None, :] + 0.5
    return tf.abs(pixels - size * centre[:, None]) < size * side[:, None] / 2.0
