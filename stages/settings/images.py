"""Settings of the stages `normalize`, `augment` and `inspect`."""

from dataclasses import dataclass

from omegaconf import II

from stages.errors import UserError
from stages.settings.ranges import choice, number, option


@option("normalize", "normalize")
@dataclass(kw_only=True)
class NormalizeSettings:
    """Scaling of pixels, and encoding of columns and texts, in front of the network and so of its export."""

    _target_: str = "stages.normalize.normalize"
    method: str = choice("auto", "auto", "rescale", "standardize", "imagenet", "none")
    """`auto`: as the network declares (those of keras.applications do), else as `rescale`, to 0..1; `standardize`: to
    mean 0 and std 1 of the training split, by channel; `imagenet`: by mean and std of ImageNet's pixels."""
    max_tokens: int = number(20_000, at_least=1, at_most=10_000_000, unit="words in the vocabulary of a text, at most")
    length: int | None = number(None, at_least=1, at_most=100_000, unit="words of a text that the network takes")
    """null: as many as 95 % of the training split's texts have at most, up to 256."""
    tokenizer: str | None = None
    """A KerasHub preset's folder, whose tokenizer makes numbers of a text; null: a vocabulary that is learnt."""


@option("augment", "augment")
@dataclass(kw_only=True)
class AugmentSettings:
    """Random changes of the training images. By default, none changes anything."""

    _target_: str = "stages.augment.augment"
    where: str = choice("input", "input", "model")
    """`input`: the input changes images, on the host's CPU; `model`: the training step does, on its device."""
    horizontal_flip: bool = False
    """Whether half of the images are mirrored left to right."""
    vertical_flip: bool = False
    """Whether half of the images are mirrored top to bottom."""
    crop: float = number(0.0, at_least=0, below=1, unit="of the side, cut off at most; the rest fills the image")
    aspect: float = number(1.0, at_least=1, at_most=4, unit="times as wide, or as high, as it was, at most")
    """Largest factor by which a crop changes the ratio of width to height."""
    rotation: float = number(0.0, at_least=0, at_most=0.5, unit="of a turn, to either side")
    zoom: float = number(0.0, at_least=0, below=1, unit="larger or smaller, as a fraction of the size, at most")
    translation: float = number(0.0, at_least=0, at_most=1, unit="of the side, in each direction, at most")
    brightness: float = number(0.0, at_least=0, at_most=1, unit="more or less light, as a fraction of it, at most")
    contrast: float = number(0.0, at_least=0, at_most=1, unit="more or less difference from the mean, at most")
    saturation: float = number(0.0, at_least=0, at_most=1, unit="more or less color, as a fraction of it, at most")
    hue: float = number(0.0, at_least=0, at_most=0.5, unit="of a turn of the color circle, to either side")
    """Images that do not have three channels have neither saturation nor hue: the two are skipped."""
    rand_augment: int = number(0, at_least=0, at_most=10, unit="operations, drawn for each image")
    magnitude: float = number(9.0, at_least=0, at_most=10, unit="of 10, the strength of those operations")
    mixup: float = number(0.0, at_least=0, at_most=100, unit="alpha of Beta(alpha, alpha), an image's weight; 0: off")
    cutmix: float = number(0.0, at_least=0, at_most=100, unit="alpha of Beta(alpha, alpha), an image's area; 0: off")
    """With both, half of the examples are mixed in either way."""

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others, and so labels too."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def changes(self) -> bool:
        """Whether images are changed individually."""
        geometry = self.crop or self.aspect > 1 or self.rotation or self.zoom or self.translation
        color = self.brightness or self.contrast or self.saturation or self.hue
        drawn = self.rand_augment and self.magnitude
        return bool(self.horizontal_flip or self.vertical_flip or geometry or color or drawn)

    def check(self, path: str) -> None:
        if self.where == "model" and self.mixes:
            raise UserError(
                f"{path}.where=model with {path}.mixup or {path}.cutmix: a replica does not have the others' images",
                f"{path}.where=input, or neither of them",
                f"{path}.where=input",
            )


@option("inspect", "inspect")
@dataclass(kw_only=True)
class InspectSettings:
    """Statistics of the splits, and galleries of the images that training will see."""

    _target_: str = "stages.inspect.inspect"
    batch_size: int = number("${oc.select:train.batch_size,64}", at_least=1, unit="examples of the global batch")
    """By default that of training, so that the batch shown is training's first."""
    seed: int = II("seed")
