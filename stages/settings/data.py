"""Settings of the `load` stage, under the group `data`."""

import os
from dataclasses import dataclass
from pathlib import Path

from omegaconf import II

from stages.errors import UserError
from stages.settings.ranges import number


@dataclass(kw_only=True)
class DataSettings:
    """What every source shares: how much of it is kept aside, and the seed of the split."""

    _target_: str = "???"
    """The function that loads, such as `stages.load.digits.digits`."""
    val_fraction: float = number(0.1, above=0, below=1)
    """Share of the training examples kept for validation, the same in every class."""
    seed: int = II("seed")


@dataclass(kw_only=True)
class DigitsSettings(DataSettings):
    """scikit-learn's 1,797 digits of 8×8 grey pixels from 0 to 16, 10 classes."""

    _target_: str = "stages.load.digits.digits"
    test_fraction: float = number(0.2, above=0, below=1)
    """Share of all examples kept for the test, the same in every class."""


@dataclass(kw_only=True)
class SyntheticSettings(DataSettings):
    """Random pictures with a bright patch whose place depends on the class. For benchmarks and tests."""

    _target_: str = "stages.load.synthetic.synthetic"
    examples: int = number(1024, at_least=10, unit="training and validation examples")
    test_examples: int = number(256, at_least=1, unit="examples")
    height: int = number(32, at_least=4, unit="pixels")
    width: int = number(32, at_least=4, unit="pixels")
    channels: int = number(3, at_least=1, at_most=4)
    num_classes: int = number(10, at_least=2, at_most=16)

    def check(self, path: str) -> None:
        if self.examples * min(self.val_fraction, 1 - self.val_fraction) < self.num_classes:
            raise UserError(
                f"{path}.examples={self.examples} leaves a split with fewer than {self.num_classes} examples",
                "at least one of each class in every split",
                f"{path}.examples={20 * self.num_classes} {path}.val_fraction=0.1",
            )


@dataclass(kw_only=True)
class TfdsSettings(DataSettings):
    """An image-classification set of TensorFlow Datasets whose pictures are all of one size."""

    _target_: str = "stages.load.tfds.tfds"
    name: str = "???"
    """Its TFDS name, such as `mnist`."""
    dir: str | None = None
    """Where TFDS keeps prepared sets; null: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`."""
    download: bool = False
    """Whether TFDS may fetch and prepare the set when it is not there."""
    train_split: str = "train"
    test_split: str = "test"

    @property
    def folder(self) -> Path:
        """The folder that holds prepared sets."""
        given = self.dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        return Path(given).expanduser().resolve()

    def check(self, path: str) -> None:
        """Says at once that a set is missing; TFDS itself would wait minutes for the network."""
        if self.download:
            return
        if self.dir and not self.folder.is_dir():
            raise UserError(
                f"{path}.dir={self.dir} is not a directory ({self.folder})",
                "a directory that TFDS prepared",
                f"{path}.dir=<that directory>, or {path}.download=true to make it",
            )
        if not any((self.folder / self.name).glob("**/dataset_info.json")):
            raise UserError(
                f"{path}.name={self.name} is not prepared in {self.folder}",
                "a set that TFDS has prepared there, or leave to download it",
                f"{path}.dir=<where it is>, or {path}.download=true",
            )
