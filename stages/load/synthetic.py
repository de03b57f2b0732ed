"""Pictures made of numbers: any size, no disk."""

import numpy as np

from stages.load.splits import assemble, divide
from stages.results import Dataset, Split
from stages.seeds import derive
from stages.settings.data import SyntheticSettings


def synthetic(settings: SyntheticSettings) -> Dataset:
    """Returns noise, uint8 [N, height, width, channels], with a bright patch at one of 16 places: the class."""
    shape = (settings.height, settings.width, settings.channels)
    named = {
        name: _pictures(examples, shape, settings.num_classes, derive(settings.seed, "synthetic", name))
        for name, examples in {"train": settings.examples, "test": settings.test_examples}.items()
    }
    train, val = divide(named["train"].images, named["train"].labels, settings.val_fraction, settings.seed, "val")
    class_names = tuple(f"place {index}" for index in range(settings.num_classes))
    return assemble("synthetic", train, val, named["test"], class_names)


def _pictures(examples: int, shape: tuple[int, int, int], num_classes: int, seed: int) -> Split:
    random = np.random.default_rng(seed)
    labels = (np.arange(examples) % num_classes).astype(np.int32)
    random.shuffle(labels)
    images = random.integers(0, 128, (examples, *shape), dtype=np.uint8)
    rows, columns = shape[0] // 4, shape[1] // 4
    for place in range(num_classes):
        top, left = (place // 4) * rows, (place % 4) * columns
        images[labels == place, top : top + rows, left : left + columns] += 127
    return Split(images, labels)
