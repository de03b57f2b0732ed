"""Generated images: any size, no disk."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.loading import Example, Invalid, Source, load
from stages.reporter import Reporter
from stages.results import Dataset
from stages.seeds import derive
from stages.settings.data import SyntheticSettings


def synthetic(
    settings: SyntheticSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Returns noise, uint8 [N, height, width, channels], with a bright patch at one of 16 places, which is the class.

    Arguments and files are those of `stages.data.loading.load`.
    """
    return load(SyntheticSource(settings), settings, reporter, folder, cache)


class SyntheticSource(Source):
    """Generates each image as a function of (`split_seed`, its number), so that none has to be stored.

    The run's `seed` plays no part: images are data, and runs of several seeds learn the same task.
    """

    name = "synthetic"

    def __init__(self, settings: SyntheticSettings) -> None:
        self.image_shape = (settings.height, settings.width, settings.channels)
        self._examples = settings.examples
        self._classes = settings.num_classes
        self._seed = derive(settings.split_seed, "synthetic")
        facts = (self.image_shape, self._examples, settings.test_examples, self._classes, self._seed)
        self.fingerprint = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
        self.parts = {
            "train": np.arange(self._examples),
            "test": np.arange(self._examples, self._examples + settings.test_examples),
        }
        self.class_names = tuple(f"place {index}" for index in range(self._classes))

    def read(self, block: Any) -> list[Example | Invalid]:
        """See `Source`."""
        return [(self._image(int(number)), int(number) % self._classes) for number in block]

    def _image(self, number: int) -> np.ndarray:
        random = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, number]))
        pixels = random.integers(0, 128, self.image_shape, dtype=np.uint8)
        rows, columns = self.image_shape[0] // 4, self.image_shape[1] // 4
        place = number % self._classes
        top = (place // 4) * rows
        left = (place % 4) * columns
        pixels[top : top + rows, left : left + columns] += 127
        return pixels
