"""scikit-learn's digits: real, small, and part of the package, so that nothing is downloaded."""

from pathlib import Path

import numpy as np
import sklearn

from stages.data.split import Split
from stages.data.splits import cut_all, dataset_of
from stages.features.kinds import IMAGES, image
from stages.results import Dataset
from stages.settings.data import DigitsSettings
from stages.tasks.classification import Classification


def digits(settings: DigitsSettings) -> Dataset:
    """Returns 1,797 handwritten digits, uint8 [N, 8, 8, 1] with pixels from 0 to 16.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test part).
    """
    data = Path(sklearn.__file__).with_name("datasets") / "data"  # of which `load_digits` would import much more
    rows = np.loadtxt(data / "digits.csv.gz", np.uint8, delimiter=",")
    images, labels = rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32)
    splits = {
        name: Split.of_images(images[numbers], labels[numbers], numbers=numbers)
        for name, numbers in cut_all(labels, settings.held_out, settings.split_seed).items()
    }
    features = {IMAGES: image((8, 8, 1), "uint8", (0.0, 16.0))}
    return dataset_of("digits", splits, Classification(tuple("0123456789")), features)
