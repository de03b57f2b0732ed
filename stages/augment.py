"""The `augment` stage: random changes of the training images.

Keras' preprocessing layers draw from a seed generator that each replica keeps, so the change of an image is not a
function of its row in the global batch: two replicas would not equal one device, nor a resumed run an uninterrupted
one. Here all random numbers come from outside.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import tensorflow as tf

from stages.augmentations import color, geometry
from stages.augmentations.mixing import Mixing
from stages.augmentations.transforms import Example, Transform
from stages.errors import UserError
from stages.features.images import images_of
from stages.features.kinds import IMAGES
from stages.reporter import Reporter
from stages.results import Dataset, Record
from stages.settings.data import AugmentSettings

COLUMNS = (
    "area",
    "aspect",
    "crop_x",
    "crop_y",
    "flip_x",
    "flip_y",
    "rotation",
    "zoom",
    "shift_x",
    "shift_y",
    "brightness",
    "contrast",
    "saturation",
    "hue",
)
"""Uses of the random numbers, in order; switching one off leaves the others as they are. RandAugment's follow."""


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
"""RandAugment's operations with their amounts at full strength, as in torchvision's `RandAugment`."""

RANDOMS = 2
"""Random numbers for each of these: its kind, and its sign."""


def augment(dataset: Dataset, settings: AugmentSettings, reporter: Reporter | None = None) -> Dataset:
    """Return the data set with the transforms that `settings` describe; with none if they change nothing.

    Only images are changed, and targets that are masks of images. Saturation and hue require three channels. For other
    images both are skipped, which is logged and recorded.
    """
    images = images_of(dataset.features)
    if not images:
        if settings.changes or settings.mixes:
            raise UserError(f"augment requires images, and {dataset.name} has none", "", "augment=none")
        return dataset
    gray = next((one for one in images.values() if one.channels != 3), None)
    color_settings = [name for name in ("saturation", "hue") if getattr(settings, name)]
    params = {}
    if gray is not None and color_settings:
        found = f"{gray.channels} channel{'' if gray.channels == 1 else 's'}"
        params = {"skipped": f"{', '.join(color_settings)} (the images have {found}, not 3)"}
        (reporter or Reporter()).log(f"augment: skipped {params['skipped']}")
        settings = dataclasses.replace(settings, saturation=0.0, hue=0.0)
    ignored = dataset.task.targets.ignored_pixel
    if settings.mixes and ignored is not None:
        problem = "augment.mixup and augment.cutmix do not support targets that are masks"
        raise UserError(problem, "", "augment.mixup=0 augment.cutmix=0")
    transforms: list[Transform] = []
    if settings.changes:
        transforms += [Augmentation(settings, name, image.ends, ignored) for name, image in images.items()]
    if settings.mixes and len(dataset.features) > 1:
        problem = "augment.mixup and augment.cutmix mix images alone, but there are other columns"
        raise UserError(problem, "", "augment.mixup=0 augment.cutmix=0")
    if settings.mixes:
        task = dataset.task
        transforms.append(Mixing(settings.mixup, settings.cutmix, tuple(images), task.targets.soften, len(task.names)))
    return dataclasses.replace(dataset, transforms=tuple(transforms), record=Record(params))


class RandAugment:
    """A few operations for each image of a batch, drawn from a list, in order, all of one strength.

    They fold into the matrices of `geometry` and `color`, but two that follow these. AutoContrast, Equalize and
    Sharpness, each of which would take passes of its own over the pixels, are left out; so is saturation where images
    do not have three channels. Source: Cubuk et al. 2020 (arXiv:1909.13719).

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

    def geometry(self, width: tf.Tensor, height: tf.Tensor) -> list[tf.Tensor]:
        """Return a matrix of `geometry` for each operation, in order; `width` and `height` in pixels, float64 []."""
        names = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
        slots = zip(*(tf.unstack(self.amounts[name], axis=1) for name in names), strict=True)
        return [
            geometry.move(turns, shear_x, shear_y, x * width, y * height) for turns, shear_x, shear_y, x, y in slots
        ]

    def colors(self, before: tf.Tensor, means: tf.Tensor, black: float) -> tf.Tensor:
        """Return the matrices `before`, followed by those of the operations.

        means: float64 [b, C + 1], each image's mean of every channel, and 1.
        """
        matrices = before
        names = [name for name in ("brightness", "contrast", "saturation") if name in self.amounts]
        for slot in zip(*(tf.unstack(1.0 + self.amounts[name], axis=1) for name in names), strict=True):
            matrices = color.adjust(matrices, dict(zip(names, slot, strict=True)), means, black)
        return matrices

    def steps(self, low: float, high: float) -> tf.Tensor:
        """Return the step for `posterize`, float32 [b]: between two levels in `low` to `high`; 0: unchanged."""
        bits = tf.round(self._most("posterize"))
        return tf.cast(tf.where(bits > 0, 2.0**bits, 0.0) * ((high - low) / 255), tf.float32)

    def thresholds(self, low: float, high: float) -> tf.Tensor:
        """Return the threshold for `solarize`, float32 [b]; infinity where an image is not solarized."""
        fraction = self._most("solarize")
        return tf.cast(tf.where(fraction > 0, high - (high - low) * fraction, float("inf")), tf.float32)

    def _most(self, name: str) -> tf.Tensor:
        """Return the largest amount drawn, float64 [b], of an operation applied once: solarize would undo itself."""
        return tf.reduce_max(tf.abs(self.amounts[name]), axis=1)


@dataclass(frozen=True)
class Augmentation(Transform):
    """Changes one image of an example, and a target that is its mask, by the same random numbers.

    The numbers of each image of an example are its own.
    """

    settings: AugmentSettings
    name: str = IMAGES
    """The input that is changed."""
    ends: tuple[float, float] = (0.0, 255.0)
    """The range of its pixels."""
    ignored_pixel: int | None = None
    """The value of the target's pixels that come from outside of the mask. None: the target is not a mask."""

    @property
    def purpose(self) -> str:  # type: ignore[override]  # of a class that changes several features
        """See `Transform`."""
        return "augment" if self.name == IMAGES else f"augment {self.name}"

    @property
    def randoms(self) -> int:
        return len(COLUMNS) + RANDOMS * self.settings.rand_augment

    @property
    def in_step(self) -> bool:
        return self.settings.where == "model"

    @tf.autograph.experimental.do_not_convert  # it has no loops, and rewriting it takes seconds
    def __call__(self, example: Example, numbers: tf.Tensor) -> Example:
        changed = Changes(self.settings, self.ends)(example.inputs[self.name], numbers)
        targets = example.targets
        if self.ignored_pixel is not None:
            targets = Changes(self.settings).of_masks(targets, numbers, self.ignored_pixel)
        return example._replace(inputs={**example.inputs, self.name: changed}, targets=targets)


@dataclass(frozen=True)
class Changes:
    """The changes of `settings`, as one resampling of each image and one change of its colors.

    In geometry the crop comes first, then flips, rotation, zoom and translation; in color brightness, contrast,
    saturation and hue; RandAugment's operations come after them. Values are clipped to `pixel_range` once, at the end.
    """

    settings: AugmentSettings
    pixel_range: tuple[float, float] = (0.0, 255.0)

    @tf.autograph.experimental.do_not_convert  # it has no loops, and rewriting it takes seconds
    def __call__(self, images: tf.Tensor, uniforms: tf.Tensor) -> tf.Tensor:
        """Return changed images.

        Args:
            images: float32 [b, H, W, C].
            uniforms: float32 [b, randoms], in [0, 1).
        """
        numbers, drawn = self._numbers(uniforms, images.shape[3])
        changed = self._moved(images, numbers, drawn)
        changed = self._recolored(changed, numbers, drawn)
        low, high = self.pixel_range
        if drawn:
            changed = tf.clip_by_value(changed, low, high)  # the negative of one above the range would fall below it
            changed = color.posterize(changed, drawn.steps(low, high), low)
            changed = color.solarize(changed, drawn.thresholds(low, high), low, high)
        return tf.ensure_shape(tf.clip_by_value(changed, low, high), images.shape)

    def of_masks(self, masks: tf.Tensor, uniforms: tf.Tensor, outside: int) -> tf.Tensor:
        """Return masks, int32 [b, H, W], moved as their images are by the same numbers.

        Each pixel has the value of the nearest one, and `outside` if it comes from outside of the mask.
        """
        numbers, drawn = self._numbers(uniforms, 3)
        flips, matrices = self._geometry(masks, numbers, drawn)
        if matrices is not None:
            return geometry.move_masks(masks, matrices, outside)
        return masks if flips is None else geometry.mirror(masks[..., None], *flips)[..., 0]

    def _numbers(self, uniforms: tf.Tensor, channels: int) -> tuple[dict[str, tf.Tensor], RandAugment | None]:
        """Return the random numbers by their use, float64 [b], and the operations of RandAugment that they draw."""
        columns = tf.unstack(tf.cast(uniforms[:, : len(COLUMNS)], tf.float64), axis=1)
        drawn = None
        if self.settings.rand_augment and self.settings.magnitude:
            of_operations = tf.cast(uniforms[:, len(COLUMNS) :], tf.float64)
            drawn = RandAugment(of_operations, self.settings.magnitude / 10, channels)
        return dict(zip(COLUMNS, columns, strict=True)), drawn

    def _moved(self, images: tf.Tensor, numbers: dict[str, tf.Tensor], drawn: RandAugment | None) -> tf.Tensor:
        flips, matrices = self._geometry(images, numbers, drawn)
        if matrices is not None:
            return geometry.resample(images, matrices)
        return images if flips is None else geometry.mirror(images, *flips)

    def _geometry(
        self, pixels: tf.Tensor, numbers: dict[str, tf.Tensor], drawn: RandAugment | None
    ) -> tuple[tuple[tf.Tensor, tf.Tensor] | None, tf.Tensor | None]:
        """Return which of `pixels`, [b, H, W, ...], are flipped, or the matrices of all moves; None for what is off."""
        settings = self.settings
        height, width = tf.unstack(tf.cast(tf.shape(pixels)[1:3], tf.float64))
        flips = (numbers["flip_x"] < settings.horizontal_flip * 0.5, numbers["flip_y"] < settings.vertical_flip * 0.5)
        before, after = self.geometry_matrices(numbers, width, height)
        after += drawn.geometry(width, height) if drawn else []
        if before or after:
            return None, reduce(tf.matmul, [*before, geometry.flip(*flips), *after])
        return (flips if settings.horizontal_flip or settings.vertical_flip else None), None

    def geometry_matrices(
        self, numbers: dict[str, tf.Tensor], width: tf.Tensor, height: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the matrices before the flips and those after them; `width` and `height` in pixels, float64 []."""
        settings = self.settings
        after = []
        before = [self._crop(numbers, width, height)] if settings.crop or settings.aspect > 1 else []
        if settings.rotation:
            after.append(geometry.move(_spread(numbers["rotation"], settings.rotation), 0.0, 0.0, 0.0, 0.0))
        if settings.zoom:
            side = 1.0 / (1.0 + _spread(numbers["zoom"], settings.zoom))
            after.append(geometry.crop(side, side, 0.0, 0.0))
        if settings.translation:
            x, y = (_spread(numbers[name], settings.translation) for name in ("shift_x", "shift_y"))
            after.append(geometry.crop(tf.ones_like(x), tf.ones_like(x), -x * width, -y * height))
        return before, after

    def _crop(self, numbers: dict[str, tf.Tensor], width: tf.Tensor, height: tf.Tensor) -> tf.Tensor:
        """Return crops of random area and aspect ratio within the image (Szegedy et al. 2015, arXiv:1409.4842)."""
        smallest = (1.0 - self.settings.crop) ** 2
        side = tf.sqrt(smallest + (1.0 - smallest) * numbers["area"])
        stretch = tf.exp(_spread(numbers["aspect"], math.log(self.settings.aspect) / 2.0))
        side_x = tf.minimum(side * stretch, 1.0)
        side_y = tf.minimum(side / stretch, 1.0)
        x, y = (numbers["crop_x"] - 0.5) * (1.0 - side_x), (numbers["crop_y"] - 0.5) * (1.0 - side_y)
        return geometry.crop(side_x, side_y, x * width, y * height)

    def _recolored(self, images: tf.Tensor, numbers: dict[str, tf.Tensor], drawn: RandAugment | None) -> tf.Tensor:
        settings = self.settings
        channels = images.shape[3]
        black = self.pixel_range[0]
        widths = {name: getattr(settings, name) for name in ("brightness", "contrast", "saturation")}
        factors = {name: 1.0 + _spread(numbers[name], width) for name, width in widths.items() if width}
        if not (drawn or factors or settings.hue):
            return images
        matrices = color.neutral(tf.shape(images)[0], channels)
        means = tf.ones([tf.shape(images)[0], channels + 1], tf.float64)
        if drawn or "contrast" in factors:
            means = tf.concat([tf.cast(tf.reduce_mean(images, axis=[1, 2]), tf.float64), means[:, :1]], axis=1)
        matrices = color.adjust(matrices, factors, means, black)
        if settings.hue:
            matrices = color.hue(_spread(numbers["hue"], settings.hue)) @ matrices
        matrices = drawn.colors(matrices, means, black) if drawn else matrices
        return color.recolor(images, matrices)


def _spread(uniform: tf.Tensor, width: float) -> tf.Tensor:
    """Return numbers in [-width, width) of numbers in [0, 1)."""
    return (2.0 * uniform - 1.0) * width
