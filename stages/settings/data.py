"""Settings of the stages `load`, under the group `data`, `normalize`, `augment` and `inspect`."""

import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import II

from stages.errors import UserError
from stages.settings.folders import IMAGE_SUFFIXES, SPLITS, TEXT_SUFFIXES, classes_of, name_of_file
from stages.settings.places import is_folder, regular_file, resolved
from stages.settings.ranges import assignment, choice, nearest, number, option, text


def refuse_missing(setting: str, names: Iterable[str], known: Sequence[str], of: object, fix: str = "") -> None:
    """Raises UserError for the first of `names` that is none of `known`, the columns of a file."""
    names = list(names)
    for name in names:
        if name not in known:
            near = nearest(name, known)
            listed = sorted(known, key=lambda column: column != near) if near else list(known)
            shown = ", ".join(listed[:12]) + (" …" if len(known) > 12 else "")
            if near and not fix and len(names) == 1 and not setting.endswith("features"):
                fix = assignment(setting, near)
            fix = fix or f"{setting}=<column>"
            raise UserError(f"{setting}={name}: {of} has no such column", f"one of {shown}", fix)


@dataclass(kw_only=True)
class DataSettings:
    """Settings of every source: fractions of the held-out splits, and their seed."""

    _target_: str = "???"
    """The function that loads, such as `stages.load.digits.digits`."""
    val_fraction: float = number(0.1, above=0, below=1)
    """Fraction of the training examples for validation, the same in every class."""
    test_fraction: float = number(0.2, above=0, below=1)
    """Fraction of all examples for the test, the same in every class."""
    split_seed: int = number(42, at_least=0, at_most=2**31 - 1)
    """Fixes which examples go to a split that is cut. Separate from the run's `seed`, so that runs of several seeds
    are compared on the same test examples."""

    @property
    def held_out(self) -> dict[str, float]:
        """The fraction of each split that is cut from the training examples, in the order of the cuts."""
        return {"test": self.test_fraction, "val": self.val_fraction}

    @property
    def is_without_images(self) -> bool:
        """Whether the settings alone tell that the examples are not images."""
        return False

    @property
    def source(self) -> str:
        """The name of the file, folder or set, for the name of an experiment; empty if the option's name says it."""
        return ""


@option("data", "digits")
@dataclass(kw_only=True)
class DigitsSettings(DataSettings):
    """scikit-learn's 1,797 digits of 8×8 gray pixels from 0 to 16, 10 classes."""

    _target_: str = "stages.load.digits.digits"

    def train_examples(self) -> int:
        """Return how many are left for training, before they are read."""
        rest = 1797 - math.ceil(self.test_fraction * 1797)
        return rest - math.ceil(self.val_fraction * rest)


@dataclass(kw_only=True)
class SourceSettings(DataSettings):
    """Settings of sources of any size: where their decoded images are kept."""

    cache: str = choice("disk", "disk", "off")
    """`disk`: decoded once into `outputs/cache`, for all runs; `off`: by each run, into memory."""
    memory_gib: float | None = number(None, at_least=0, unit="GiB that images may take in memory")
    """Larger sets are read from the cache during training; null: a third of the free memory."""
    on_error: str = choice("fail", "fail", "skip")
    """For images that cannot be used: `fail` ends the run and names one; `skip` leaves them out and records them."""


@option("data", "synthetic")
@dataclass(kw_only=True)
class SyntheticSettings(SourceSettings):
    """Random images with a bright patch whose place depends on the class, drawn from `split_seed`. For benchmarks and
    tests."""

    _target_: str = "stages.load.synthetic.synthetic"
    examples: int = number(1024, at_least=10, at_most=10_000_000, unit="training and validation examples")
    test_examples: int = number(256, at_least=1, at_most=10_000_000, unit="examples")
    height: int = number(32, at_least=4, at_most=8192, unit="pixels")
    width: int = number(32, at_least=4, at_most=8192, unit="pixels")
    channels: int = number(3, at_least=1, at_most=4)
    num_classes: int = number(10, at_least=2, at_most=16)
    cache: str = choice("off", "disk", "off")


@dataclass(kw_only=True)
class ImagesSettings(SourceSettings):
    """Settings of sources of encoded images."""

    test_fraction: float = number(0.1, above=0, below=1)
    size: Any = None
    """Size of the images in training, in pixels: a side, or [height, width]; null: their own, if all have the same."""
    resize: str = choice("stretch", "stretch", "crop", "pad")
    """`crop` keeps the middle, `pad` the whole image on black; both keep the aspect."""
    channels: int | None = None
    """1: gray, 3: color; null: those of the source."""

    def shape(self, of_source: tuple[int | None, int | None, int | None]) -> tuple[int, int, int]:
        """Returns (H, W, C) of the images in training.

        Args:
            of_source: the sides and channels of its images; None: they differ.

        Raises:
            UserError: where they differ and no size is set.
        """
        height, width = self._sides or of_source[:2]
        if height is None or width is None:
            raise UserError(
                "the images have several sizes, and data.size is not set", "a side in pixels", "data.size=160"
            )
        channels = self.channels or of_source[2]
        return int(height), int(width), 1 if channels == 1 else 3

    @property
    def _sides(self) -> Any:
        return [self.size] * 2 if isinstance(self.size, int) else self.size

    def check(self, path: str) -> None:
        sides = self._sides if isinstance(self._sides, list) else []
        is_valid = len(sides) == 2 and all(type(side) is int and 1 <= side <= 8192 for side in sides)
        if self.size is not None and not is_valid:
            raise UserError(
                f"{path}.size={self.size} is no size of an image",
                "a side in pixels, from 1 to 8192, or [height, width]",
                f"{path}.size=160",
            )
        if self.channels not in (None, 1, 3):
            raise UserError(f"{path}.channels={self.channels}", "1 (gray), 3 (color), null", f"{path}.channels=3")


@option("data", "tfds")
@dataclass(kw_only=True)
class TfdsSettings(ImagesSettings):
    """A set of TensorFlow Datasets."""

    _target_: str = "stages.load.tfds.tfds"
    name: str = text("???", r"[\w.:/-]{1,200}", "a name that TFDS has", "mnist")
    """Its name in TFDS, such as `mnist`."""
    dir: str | None = None
    """The folder in which TFDS keeps prepared sets; null: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`."""
    download: bool = False
    """Whether TFDS may download and prepare the set if it is missing."""
    image_key: str | None = None
    """The feature that is the image; null: that of the declared pair, else `image`, else the only Image."""
    label_key: str | None = None
    """The feature that is predicted; null: that of the declared pair, else `label`, else the only ClassLabel."""
    features: Any = None
    """Of sets without images: from columns to kinds, as for tables, or a list of the only ones to use."""
    task: Any = II("task")
    train_split: str = "train"
    """In TFDS' syntax, such as `train[:80%]`."""
    val_split: str | None = None
    """null: `validation` where the set has it, else `val_fraction` of the training examples."""
    test_split: str | None = None
    """null: `test` where the set has it, else `test_fraction` of all."""

    @property
    def source(self) -> str:
        return self.name.partition(":")[0]

    @property
    def folder(self) -> Path:
        """The folder that holds prepared sets."""
        return resolved(self.dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")

    def check(self, path: str) -> None:
        """Refuses a missing set at once; TFDS itself would wait minutes for the network."""
        super().check(path)
        found = (self.folder / self.name.split(":")[0].split("/")[0]).glob("**/dataset_info.json")
        if not self.download and not any(found):
            raise UserError(
                f"{path}.name={self.name} is not prepared in {self.folder}",
                f"a set that TFDS has prepared there, or leave to download it: {path}.download=true",
                f"{path}.dir=<where it is>",
            )


@dataclass(kw_only=True)
class FolderSettings(DataSettings):
    """Settings of a directory with a folder for each class."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Of files that are examples."""
    dir: str | None = None
    """Holds a folder for each class, or `train`, `val` and `test` with those in them."""

    @property
    def source(self) -> str:
        return self.folder.name if self.dir is not None else ""

    @property
    def folder(self) -> Path:
        """The directory."""
        assert self.dir is not None
        return resolved(self.dir)

    def check(self, path: str) -> None:
        if self.dir is None or not is_folder(self.dir):
            problem = f"{path}.dir={self.dir} is not a directory" if self.dir else f"{path}.dir is not set"
            if self.dir and not Path(self.dir).expanduser().is_absolute():
                problem += f" below {Path.cwd()}"
            raise UserError(problem, "a directory with a folder for each class", f"{path}.dir=<directory>")
        if self.suffixes and self._target_ == type(self)._target_:
            classes_of(self.folder, self.suffixes)


@option("data", "image_folder")
@dataclass(kw_only=True)
class ImageFolderSettings(ImagesSettings, FolderSettings):
    """A directory with a folder of images for each class, with or without train/, val/, test/ above them."""

    suffixes: ClassVar[tuple[str, ...]] = IMAGE_SUFFIXES
    _target_: str = "stages.load.folders.image_folder"
    size: Any = 160

    def check(self, path: str) -> None:
        ImagesSettings.check(self, path)
        FolderSettings.check(self, path)


@option("data", "text_folder")
@dataclass(kw_only=True)
class TextFolderSettings(FolderSettings):
    """A directory with a folder of texts (`.txt`) for each class, with or without train/, val/, test/ above them."""

    suffixes: ClassVar[tuple[str, ...]] = TEXT_SUFFIXES
    _target_: str = "stages.load.folders.text_folder"
    encoding: str = "utf8"
    """Of all files, such as `cp1252`."""

    @property
    def is_without_images(self) -> bool:
        return True


@option("data", "arrays")
@dataclass(kw_only=True)
class ArraysSettings(DataSettings):
    """Arrays of an `.npz` file, or those that a function returns."""

    _target_: str = "stages.load.arrays.arrays"
    files: str | None = None
    """The file: `x_train`, `y_train`, with weights `w_train`, and those of `val` and `test`; or `x`, `y`, `w`; or any
    names, with `target`."""
    target: Any = None
    """The array to predict, or a list of arrays; all others are features."""
    weight: str | None = None
    """The array that holds the weight of each example in loss and metrics."""
    features: Any = None
    """From arrays of values to kinds, as for tables; or a list of the only ones to use."""
    task: Any = II("task")
    on_error: str = choice("fail", "fail", "skip")
    """For examples that cannot be used: `fail` ends the run and names one; `skip` leaves them out and records them."""

    @property
    def source(self) -> str:
        return name_of_file(self.path) if self.files is not None else ""

    @property
    def path(self) -> Path:
        """The file."""
        assert self.files is not None
        return Path(self.files).expanduser()

    def parts(self, names: Iterable[str]) -> dict[str, tuple[list[str], list[str], str | None]]:
        """Returns the names of features and targets, and that of the weights, of each split.

        Raises:
            UserError: where they are not among `names`.
        """
        known = list(names)
        if self.target is not None:
            targets = [self.target] if isinstance(self.target, str) else list(self.target)
            for setting, names in {"target": targets, "weight": [self.weight] if self.weight else []}.items():
                refuse_missing(f"data.{setting}", names, known, self.files)
            return {"train": ([name for name in known if name not in (*targets, self.weight)], targets, self.weight)}
        ends = {f"_{name}": split for name, split in SPLITS.items()} if "x_train" in known else {"": "train"}
        found: dict[str, tuple[list[str], list[str], str | None]] = {}
        for end, split in ends.items():
            if f"x{end}" in known and f"y{end}" in known and split not in found:
                weight = f"{(self.weight or 'w').removesuffix('_train')}{end}" if end else self.weight or "w"
                refuse_missing("data.weight", [weight] if self.weight else [], known, self.files)
                found[split] = [f"x{end}"], [f"y{end}"], weight if weight in known else None
        if "train" not in found:
            raise UserError(
                f"data.files={self.files} has {', '.join(known[:12]) or 'no arrays'}",
                "x_train and y_train, or x and y, or any names with data.target",
                "data.target=<one of them>",
            )
        return found

    def check(self, path: str) -> None:
        if self._target_ != ArraysSettings._target_:
            return
        if self.files is None:
            raise UserError(f"{path}.files is not set", "an .npz file", f"{path}.files=<it>")
        try:
            with zipfile.ZipFile(regular_file(self.path)) as file:
                names = [name.removesuffix(".npy") for name in file.namelist()]
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"{path}.files={self.files} cannot be read ({why})", "an .npz file") from error
        self.parts(names)


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
    """null: as many as 95% of the training split's texts have at most, up to 256."""
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
