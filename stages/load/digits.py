"""scikit-learn's digits: a small real data set that is part of the package, so nothing is downloaded."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from stages.data.split import Split
from stages.data.splits import cut_all, dataset_of
from stages.features.images import ImageFeature
from stages.features.kinds import IMAGES
from stages.results import Dataset
from stages.settings.data import DigitsSettings
from stages.tasks.classification import classification


def digits(settings: DigitsSettings) -> Dataset:
    """Return 1,797 handwritten digits, uint8 [N, 8, 8, 1] with pixels from 0 to 16.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test part).
    """
    package = find_spec("sklearn")  # `sklearn.datasets.load_digits` takes a second to import
    assert package is not None
    assert package.origin is not None
    table = np.loadtxt(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int32)
    whole = Split.of_images(images, labels, numbers=np.arange(len(labels)))
    rows = cut_all(labels, settings.held_out, settings.split_seed)
    splits = {name: whole.take(part) for name, part in rows.items()}
    features = {IMAGES: ImageFeature(8, 8, 1, high=16.0)}
    return dataset_of("digits", splits, classification(tuple("0123456789")), features)
