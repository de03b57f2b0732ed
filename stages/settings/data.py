"""Settings of the stages `load`, under the group `data`, `normalize`, `augment` and `inspect`."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import II

from stages.errors import UserError
from stages.settings.folders import IMAGE_SUFFIXES, TEXT_SUFFIXES, MaskSettings, classes_of, masks_of
from stages.settings.image_sizes import check_sizes, sides_of
from stages.settings.places import is_folder, resolved
from stages.settings.ranges import assignment, choice, nearest, number, option, text


def refuse_missing(setting: str, names: Iterable[str], known: Sequence[str], of: object, fix: str = "") -> None:
    """Raise UserError for the first of `names` that is not among `known`, the columns of a file."""
    names = list(names)
    for name in names:
        if name not in known:
            near = nearest(name, known)
            listed = sorted(known, key=lambda column: column != near) if near else list(known)
            shown = ", ".join(listed[:12]) + (" …" if len(known) > 12 else "")
            if near and not fix and len(names) == 1 and not setting.endswith("features"):
                fix = assignment(setting, near)
            fix = fix or f"{setting}=<column>"
            raise UserError(f"{setting}={name}: {of} has no such column", f"one of: {shown}", fix)


FRACTIONS = {"test": 0.2, "val": 0.1}
"""The fraction of each split that is cut from the training examples by default, in the order of the cuts."""


@dataclass(kw_only=True)
class DataSettings:
    """Settings that every data source has: the fractions of the held-out splits, and the seed that draws them."""

    _target_: str = "???"
    """Import path of the function that loads the data, such as `stages.load.digits.digits`."""
    val_fraction: float = number(FRACTIONS["val"], above=0, below=1)
    """Fraction of the training examples to hold out for validation. Classes keep their proportions."""
    test_fraction: float = number(FRACTIONS["test"], above=0, below=1)
    """Fraction of all examples to hold out for the test split. Classes keep their proportions."""
    split_seed: int = number(42, at_least=0, at_most=2**31 - 1)
    """Seed that decides which examples are held out. It is separate from the run's `seed`, so runs with different seeds
    are compared on the same test examples."""

    @property
    def held_out(self) -> dict[str, float]:
        """The fraction of each split that is cut from the training examples, in the order of the cuts."""
        return {"test": self.test_fraction, "val": self.val_fraction}

    @property
    def is_without_images(self) -> bool:
        """Whether the settings show that the examples are not images."""
        return False

    @property
    def source(self) -> str:
        """The name of the file, folder or data set, for the experiment's name; empty to use the option's name."""
        return ""


@option("data", "digits")
@dataclass(kw_only=True)
class DigitsSettings(DataSettings):
    """scikit-learn's 1,797 handwritten digits: 8×8 gray pixels with values from 0 to 16, 10 classes."""

    _target_: str = "stages.load.digits.digits"

    def train_examples(self) -> int:
        """Return the number of training examples without reading the data."""
        rest = 1797 - math.ceil(self.test_fraction * 1797)
        return rest - math.ceil(self.val_fraction * rest)


@dataclass(kw_only=True)
class SourceSettings(DataSettings):
    """Settings of data sources that may be larger than memory: where their decoded images are kept."""

    cache: str = choice("disk", "disk", "off")
    """`disk`: decode the images once into `outputs/cache`, for all runs. `off`: each run decodes them into memory."""
    memory_gib: float | None = number(None, at_least=0, unit="GiB of memory for images")
    """Memory that images may use, in GiB. Larger data sets are read from the cache during training. null: a third of
    the free memory."""
    on_error: str = choice("fail", "fail", "skip")
    """Handling of images that cannot be used. `fail`: end the run with an error that names the first one. `skip`:
    leave them out, and list them in `data/skipped.csv`."""


@option("data", "synthetic")
@dataclass(kw_only=True)
class SyntheticSettings(SourceSettings):
    """Random images with a bright patch whose position depends on the class, generated from `split_seed`. For
    benchmarks and tests."""

    _target_: str = "stages.load.synthetic.synthetic"
    examples: int = number(1024, at_least=10, at_most=10_000_000, unit="training and validation examples")
    test_examples: int = number(256, at_least=1, at_most=10_000_000, unit="test examples")
    height: int = number(32, at_least=4, at_most=8192, unit="pixels")
    width: int = number(32, at_least=4, at_most=8192, unit="pixels")
    channels: int = number(3, at_least=1, at_most=4)
    num_classes: int = number(10, at_least=2, at_most=16)
    cache: str = choice("off", "disk", "off")


@dataclass(kw_only=True)
class ImagesSettings(SourceSettings):
    """Settings of data sources with encoded images, such as JPEG and PNG files."""

    test_fraction: float = number(0.1, above=0, below=1)
    size: Any = None
    """Size of the training images in pixels: one number for squares, or [height, width]. null: the size of the source's
    images, which must be the same for all."""
    resize: str = choice("stretch", "stretch", "crop", "pad")
    """Method that fits images to `size`. `stretch`: changes the aspect ratio. `crop`: keeps the aspect ratio, and the
    middle of the image. `pad`: keeps the aspect ratio, and adds black borders."""
    channels: int | None = None
    """Number of channels: 1 for gray, 3 for color. null: as in the source."""

    def shape(
        self, of_source: tuple[int | None, int | None, int | None], column: str | None = None
    ) -> tuple[int, int, int]:
        """Return the shape of the images in training, (H, W, C).

        Args:
            of_source: Height, width and channels of the source's images; None for values that differ.
            column: The column of a table, which may have a size of its own.

        Raises:
            UserError: If the sizes differ and no size is set.
        """
        height, width = sides_of(self.size, column) or of_source[:2]
        if height is None or width is None:
            raise UserError(
                "the images have different sizes, and data.size is not set", "a size in pixels", "data.size=160"
            )
        channels = self.channels or of_source[2]
        return int(height), int(width), 1 if channels == 1 else 3

    @property
    def images(self) -> list[str]:
        """The columns of images; none if the data is not a table."""
        return []

    def check(self, path: str) -> None:
        check_sizes(f"{path}.size", self.size, self.images)
        if self.channels not in (None, 1, 3):
            problem = f"{path}.channels={self.channels} is not supported"
            raise UserError(problem, "1 (gray), 3 (color) or null", f"{path}.channels=3")


@option("data", "tfds")
@dataclass(kw_only=True)
class TfdsSettings(ImagesSettings, MaskSettings):
    """A data set from TensorFlow Datasets (TFDS)."""

    _target_: str = "stages.load.tfds.tfds"
    name: str = text("???", r"[\w.:/-]{1,200}", "the name of a TFDS data set", "mnist")
    """Name of the data set in TFDS, such as `mnist`."""
    dir: str | None = None
    """Folder with the prepared TFDS data sets. null: `$TFDS_DATA_DIR` if it is set, else `~/tensorflow_datasets`."""
    download: bool = False
    """Whether TFDS may download and prepare the data set if it is missing."""
    image_key: str | None = None
    """Name of the feature with the image. null: the input of the supervised pair that the data set declares, else
    `image`, else the only Image feature."""
    label_key: str | None = None
    """Name of the feature to predict, which is a mask if it is an image of one channel. null: the target of the
    supervised pair that the data set declares, else `label`, else the only ClassLabel feature."""
    features: Any = None
    """For data sets without images: a mapping from columns to kinds, as for tables, or a list of the only columns to
    use."""
    task: Any = II("task")
    train_split: str = "train"
    """Training split in TFDS syntax, such as `train[:80%]`."""
    val_split: str | None = None
    """Validation split in TFDS syntax. null: `validation` if the data set has it, else `val_fraction` of the training
    examples."""
    test_split: str | None = None
    """Test split in TFDS syntax. null: `test` if the data set has it, else `test_fraction` of all examples."""

    @property
    def source(self) -> str:
        return self.name.partition(":")[0]

    @property
    def folder(self) -> Path:
        """The folder with the prepared data sets."""
        return resolved(self.dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")

    def check(self, path: str) -> None:
        """Refuse a missing data set at once, because TFDS would wait minutes for the network."""
        super().check(path)
        self.check_classes(path)
        prepared = (self.folder / self.name.split(":")[0].split("/")[0]).glob("**/dataset_info.json")
        if not self.download and not any(prepared):
            raise UserError(
                f"{path}.name={self.name} is not prepared in {self.folder}",
                f"a data set that TFDS has prepared there, or {path}.download=true to download it",
                f"{path}.dir=<folder>",
            )


@dataclass(kw_only=True)
class FolderSettings(DataSettings):
    """Settings of data sources with one folder per class."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that are examples."""
    dir: str | None = None
    """Directory with one folder per class, or with folders `train`, `val` and `test` that each have one folder per
    class."""

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
                problem += f" in {Path.cwd()}"
            raise UserError(problem, "a directory with one folder per class", f"{path}.dir=<directory>")
        if self.suffixes and self._target_ == type(self)._target_:
            classes_of(self.folder, self.suffixes)


@option("data", "image_folder")
@dataclass(kw_only=True)
class ImageFolderSettings(ImagesSettings, FolderSettings, MaskSettings):
    """A directory with one folder of images per class, either directly or in train/, val/ and test/; or, with `masks`,
    a directory of images of any structure."""

    suffixes: ClassVar[tuple[str, ...]] = IMAGE_SUFFIXES
    _target_: str = "stages.load.folders.image_folder"
    size: Any = 160
    masks: str | None = None
    """Directory with a mask per image, with the same path but .png, .bmp or .gif. The task is segmentation then, and
    folders are not classes. The value of a pixel is its class, 255 means that it does not count."""

    @property
    def mask_folder(self) -> Path | None:
        """The directory with masks."""
        return None if self.masks is None else resolved(self.masks)

    def check(self, path: str) -> None:
        ImagesSettings.check(self, path)
        if self.masks is None:
            for name in ("classes", "mask_values"):
                if getattr(self, name) is not None:
                    problem = f"{path}.{name} has no effect without {path}.masks, as folders are the classes"
                    raise UserError(problem, "a directory with masks", f"{path}.masks=<directory>")
            FolderSettings.check(self, path)
            return
        for name in ("dir", "masks"):
            if (value := getattr(self, name)) is None or not is_folder(value):
                problem = f"{path}.{name}={value} is not a directory" if value else f"{path}.{name} is not set"
                raise UserError(problem, "a directory", f"{path}.{name}=<directory>")
        self.check_classes(path)
        masks_of(self.folder, resolved(self.masks))


@option("data", "text_folder")
@dataclass(kw_only=True)
class TextFolderSettings(FolderSettings):
    """A directory with one folder of text files (`.txt`) per class, either directly or in train/, val/ and test/."""

    suffixes: ClassVar[tuple[str, ...]] = TEXT_SUFFIXES
    _target_: str = "stages.load.folders.text_folder"
    encoding: str = "utf8"
    """Encoding of all files, such as `cp1252`."""

    @property
    def is_without_images(self) -> bool:
        return True


@option("normalize", "normalize")
@dataclass(kw_only=True)
class NormalizeSettings:
    """Scaling of pixels, and encoding of columns and texts. Both are part of the exported model."""

    _target_: str = "stages.normalize.normalize"
    method: str = choice("auto", "auto", "rescale", "standardize", "imagenet", "none")
    """Scaling of pixels. `auto`: as the network declares (the networks of keras.applications do), else like
    `rescale`. `rescale`: to 0..1. `standardize`: to mean 0 and std 1 per channel, measured on the training split.
    `imagenet`: by the mean and std of ImageNet's pixels. `none`: not at all."""
    max_tokens: int = number(20_000, at_least=1, at_most=10_000_000, unit="words in the vocabulary")
    """Maximum number of words in the vocabulary of a text column."""
    length: int | None = number(None, at_least=1, at_most=100_000, unit="words per text")
    """Number of words kept per text; tokens, if `tokenizer` is set. null: the 95th percentile of the training texts'
    lengths, at most 256."""
    tokenizer: str | None = None
    """Folder of a KerasHub preset whose tokenizer is used. null: texts are split into words, and the vocabulary is
    learned from the training split."""


@option("augment", "augment")
@dataclass(kw_only=True)
class AugmentSettings:
    """Random augmentation of the training images. By default, every augmentation is off."""

    _target_: str = "stages.augment.augment"
    where: str = choice("input", "input", "model")
    """Place where images are augmented. `input`: in the input pipeline, on the host's CPU. `model`: in the training
    step, on its device."""
    horizontal_flip: bool = False
    """Whether to mirror half of the images left to right."""
    vertical_flip: bool = False
    """Whether to mirror half of the images top to bottom."""
    crop: float = number(0.0, at_least=0, below=1, unit="fraction of the side")
    """Largest fraction of a side to cut off. The rest of the image is enlarged to the full size."""
    aspect: float = number(1.0, at_least=1, at_most=4, unit="factor of the aspect ratio")
    """Largest factor by which a crop changes the ratio of width to height. 1: unchanged."""
    rotation: float = number(0.0, at_least=0, at_most=0.5, unit="fraction of a full turn")
    """Largest rotation in either direction, as a fraction of a full turn."""
    zoom: float = number(0.0, at_least=0, below=1, unit="fraction of the size")
    """Largest change of the size, as a fraction of it. Images become larger or smaller."""
    translation: float = number(0.0, at_least=0, at_most=1, unit="fraction of the side")
    """Largest shift in each direction, as a fraction of the side."""
    brightness: float = number(0.0, at_least=0, at_most=1, unit="fraction of the brightness")
    """Largest change of the brightness, as a fraction of it."""
    contrast: float = number(0.0, at_least=0, at_most=1, unit="fraction of the contrast")
    """Largest change of the contrast (the difference from the mean), as a fraction of it."""
    saturation: float = number(0.0, at_least=0, at_most=1, unit="fraction of the saturation")
    """Largest change of the saturation, as a fraction of it. Only images with three channels are changed."""
    hue: float = number(0.0, at_least=0, at_most=0.5, unit="fraction of the color circle")
    """Largest shift of the hue in either direction, as a fraction of the color circle. Only images with three channels
    are changed."""
    rand_augment: int = number(0, at_least=0, at_most=10, unit="operations per image")
    """Number of random RandAugment operations per image. 0: off."""
    magnitude: float = number(9.0, at_least=0, at_most=10, unit="on a scale of 10")
    """Strength of the RandAugment operations, from 0 to 10."""
    mixup: float = number(0.0, at_least=0, at_most=100, unit="alpha of Beta(alpha, alpha); 0: off")
    """MixUp: alpha of the distribution Beta(alpha, alpha) that the weight of an image is drawn from. 0: off."""
    cutmix: float = number(0.0, at_least=0, at_most=100, unit="alpha of Beta(alpha, alpha); 0: off")
    """CutMix: alpha of the distribution Beta(alpha, alpha) that the area of an image is drawn from. 0: off. If MixUp is
    on too, each of the two is applied to half of the examples."""

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
                f"{path}.where=model does not support {path}.mixup and {path}.cutmix: they need images of all replicas",
                f"{path}.where=input, or {path}.mixup=0 and {path}.cutmix=0",
                f"{path}.where=input",
            )


@option("inspect", "inspect")
@dataclass(kw_only=True)
class InspectSettings:
    """Statistics of the splits, and galleries of the images as training sees them."""

    _target_: str = "stages.inspect.inspect"
    batch_size: int = number("${oc.select:train.batch_size,64}", at_least=1, unit="examples per global batch")
    """Global batch size of the batch that is shown. By default `train.batch_size`, so the first training batch is
    shown."""
    seed: int = II("seed")
