"""Splits have a seed of their own: runs of several seeds are compared on the same examples, whatever the source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipeline.provenance.identity import identity
from stages.data.batches import training_input
from stages.data.split import Split
from stages.errors import UserError
from stages.load.arrays import dataset_of_result
from stages.load.digits import digits
from stages.load.folders import image_folder
from stages.load.synthetic import synthetic
from stages.load.tfds import tfds
from stages.results import Dataset
from stages.settings.arrays import ArraysSettings
from tests.conftest import shared
from tests.pipeline.experiments import experiment
from tests.stages.images import folder_of

pytestmark = pytest.mark.slow

LOADERS = {"digits": digits, "image_folder": image_folder, "synthetic": synthetic, "tf_flowers": tfds}


def content(split: Split) -> list[tuple[bytes, int]]:
    """Return a split's examples as a set: images and labels, in an order of their own."""
    return sorted(
        (image.tobytes(), int(label)) for image, label in zip(split.images[:], split.target_values, strict=True)
    )


def composed(source: str, folder: Path) -> Callable[..., Dataset]:
    """Return what loads `source` as a command with further overrides would."""
    given = {
        "digits": (),
        "synthetic": ("data.examples=200", "data.test_examples=40", "data.height=8", "data.width=8"),
        "image_folder": (f"data.dir={folder}", "data.size=16", "data.cache=off"),
        "tf_flowers": ("data.size=16", "data.train_split='train[:120]'", "data.cache=off"),
    }[source]
    if source == "tf_flowers":
        given = (*given, f"data.dir={shared('tfds')}")
    return lambda *more: LOADERS[source](experiment(f"data={source}", *given, *more).settings["load"])  # type: ignore[operator]


def own(*overrides: str) -> Dataset:
    """Return arrays as a user's own source has them, with the seed of the splits that a command would set."""
    random = np.random.default_rng(1)
    images, labels = random.integers(0, 256, (200, 6, 6, 3), np.uint8), random.integers(0, 2, 200)
    given = dict(override.removeprefix("data.").split("=") for override in overrides if override.startswith("data."))
    settings: dict[str, Any] = {name: int(value) for name, value in given.items()}
    return dataset_of_result((images, labels), ArraysSettings(**settings))


@pytest.mark.parametrize("source", [*LOADERS, "own"])
def test_the_seed_moves_no_split_and_the_seed_of_the_splits_moves_every_one(source: str, tmp_path: Path) -> None:
    load = own if source == "own" else composed(source, folder_of(tmp_path, examples=20))
    first, second = load("seed=1"), load("seed=2")
    assert first.fingerprint == second.fingerprint
    for name, split in first.splits.items():
        assert content(split) == content(second.splits[name])
    other = load("seed=1", "data.split_seed=7")
    assert first.fingerprint != other.fingerprint
    for name, split in first.splits.items():
        assert content(split) != content(other.splits[name])
    default = load()
    assert default.fingerprint == load("data.split_seed=42").fingerprint


def test_the_seed_still_moves_the_order_and_identities_know_both() -> None:
    dataset = digits(experiment().settings["load"])

    def labels(seed: int) -> np.ndarray:
        source = training_input(dataset, 500, seed, epochs=1)
        return np.concatenate([batch[1] for batch in source(tf.distribute.InputContext(1, 0, 1))])

    assert sorted(labels(1)) == sorted(labels(2))
    assert (labels(1) != labels(2)).mean() > 0.5
    identities = {identity(experiment(*given)) for given in ((), ("seed=1",), ("data.split_seed=1",))}
    assert len(identities) == 3


def test_a_seed_of_the_splits_that_is_none_is_refused() -> None:
    for given in ("data.split_seed=-1", f"data.split_seed={2**31}"):
        with pytest.raises(UserError, match=rf"{given} is out of range"):
            experiment(given)
