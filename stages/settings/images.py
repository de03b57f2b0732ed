"""Settings of the stages `normalize` and `augment`."""

from dataclasses import dataclass

from stages.settings.ranges import choice, number


@dataclass(kw_only=True)
class NormalizeSettings:
    """How pixel values are scaled. The scaling becomes the first layer of the model, and so of its export."""

    _target_: str = "stages.normalize.normalize"
    method: str = choice("auto", "auto", "rescale", "standardize", "imagenet", "none")
    """`auto`: as the network wants it (those of keras.applications do), else as `rescale`, to 0..1; `standardize`: to
    mean 0 and deviation 1 of the training split, by channel; `imagenet`: by mean and deviation of ImageNet's pixels."""


@dataclass(kw_only=True)
class AugmentSettings:
    """Random changes of the pictures, in training only."""

    _target_: str = "stages.augment.augment"
    horizontal_flip: bool = False
    vertical_flip: bool = False
    rotation: float = number(0.0, at_least=0, at_most=0.5, unit="of a turn, to either side")
