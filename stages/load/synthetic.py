"""Generated images of any size, which need no files."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from stages.data.loading import Example, Source, load, numbered
from stages.reporter import Reporter
from stages.results import Dataset
from stages.seeds import derive
from stages.settings.data import SyntheticSettings


def synthetic(
    settings: SyntheticSettings, reporter: Reporter | None = None, folder: Path | None = None, cache: Path | None = None
) -> Dataset:
    """Return noise, uint8 [N, height, width, channels], with a bright patch at one of 16 places, which is the class.

    Each image is a function of `split_seed` and its number, so images need not be stored. They do not depend on the
    run's `seed`, so runs with different seeds learn the same task. The arguments and the written files are those of
    `stages.data.loading.load`.
    """
    shape = (settings.height, settings.width, settings.channels)
    seed = derive(settings.split_seed, "synthetic")
    facts = (shape, settings.examples, settings.test_examples, settings.num_classes, seed)
    fingerprint = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    numbers = np.arange(settings.examples + settings.test_examples)
    parts = {"train": numbers[: settings.examples], "test": numbers[settings.examples :]}
    names = tuple(f"place {index}" for index in range(settings.num_classes))
    blocks = numbered(partial(_example, shape, settings.num_classes, seed), len(numbers))
    return load(Source("synthetic", fingerprint, shape, names, parts, blocks), settings, reporter, folder, cache)


def _example(shape: tuple[int, int, int], classes: int, seed: int, number: int) -> Example:
    random = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, number]))
    pixels = random.integers(0, 128, shape, dtype=np.uint8)
    rows, columns = shape[0] // 4, shape[1] // 4
    place = number % classes
    top = (place // 4) * rows
    left = (place % 4) * columns
    pixels[top : top + rows, left : left + columns] += 127
    return pixels, place
