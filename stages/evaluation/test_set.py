"""Test sets and validation sets told apart: digests of their examples and of their pixels."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from stages.data.columns import blocks_of
from stages.data.split import Split
from stages.features.images import ImageFeature
from stages.results import Dataset
from stages.reuse import PENALIZED, VALIDATED, VALIDATED_LOSS, VALIDATED_PIXELS

if TYPE_CHECKING:
    import keras

EXAMPLES, PIXELS = "test_examples", "test_pixels"


def facts_of(split: Split) -> dict[str, str]:
    """Return what tells a test set from others: digests of its examples and of their pixels.

    test_examples: of numbers (or files) and targets, in order. test_pixels: the features' shapes and a digest of all
    values, such as pixels, which are others for the same examples at another size.
    """
    kind = "+".join("x".join(map(str, column.shape[1:])) for column in split.features.values())
    pixels = hashlib.blake2b(split.described.digests.data, digest_size=16).hexdigest()
    return {EXAMPLES: digest_of(split), PIXELS: f"{kind} {pixels}"}


def validation_facts(dataset: Dataset, network: "keras.Model") -> dict[str, object]:
    """Return what tells the validation set from others, as `facts_of` does a test set, and a loss that is not usual.

    The kind of its pixels has the way of resizing, too: resized in two ways, they are of the same examples.
    """
    facts = facts_of(dataset.val)
    shape, _, pixels = facts[PIXELS].partition(" ")
    resize = "+".join(one.resize if isinstance(one, ImageFeature) else "" for one in dataset.features.values())
    loss = dict(dataset.task.loss.settings)
    if any(weight.regularizer is not None for weight in network.trainable_weights):
        loss[PENALIZED] = True
    found = {VALIDATED: facts[EXAMPLES], VALIDATED_PIXELS: f"{shape}/{resize} {pixels}"}
    return {**found, VALIDATED_LOSS: loss} if loss else {**found}


def digest_of(split: Split) -> str:
    """Return a digest of the examples' numbers (or files), targets and weights, in order: 32 hexadecimal digits."""
    content = hashlib.blake2b(digest_size=16)
    is_of_files = split.files is not None and not split.is_table
    named = "\n".join(split.files or ()).encode(errors="surrogateescape")
    content.update(named if is_of_files else numbers_of(split).data)
    for block in blocks_of(split.targets):
        content.update(np.ascontiguousarray(block).data)
    content.update(b"" if split.weights is None else np.ascontiguousarray(split.weights).data)
    return content.hexdigest()


def is_same_test_set(facts: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether both are of the same examples, of the same pixels where their images are of one size."""
    return facts[EXAMPLES] == other[EXAMPLES] and may_be_same_pixels(facts[PIXELS], other[PIXELS])


def may_be_same_pixels(pixels: str, other: str) -> bool:
    """Return whether two descriptions of pixels are equal, or of two kinds, which nothing can be said about."""
    return pixels == other or pixels.partition(" ")[0] != other.partition(" ")[0]


def numbers_of(split: Split) -> np.ndarray:
    """Return the numbers of the examples in their source, int64 [n]; their places in the split where it has none."""
    numbers = split.numbers if split.numbers is not None else np.arange(len(split))
    return np.ascontiguousarray(numbers, np.int64)
