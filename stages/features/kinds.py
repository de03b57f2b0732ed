"""The kinds of features: what goes into a network, by name."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

IMAGES = "images"
"""Name of the feature of a data set of images."""

NO_NUMBER = -(2**63)
"""Stands for a missing value of a category of whole numbers, and for an unknown one: none is in a vocabulary."""

TRAINED_ON = "trained_on"
"""Among a feature's facts: what its column was like in training, for `stages.features.drift`."""


@dataclass(frozen=True)
class Feature:
    """A named input of an example, as it is before any encoder: what an exported model takes.

    kind: `image`, pixels [H, W, C]; `number`; `category`, one of a few values; `text`, words; `vector`, numbers that
        belong together, [d].
    dtype: NumPy's name of it; `string` for texts, and for categories that are texts.
    shape: of one example, without the axis of the batch; None where examples differ.
    facts: what is known of its values, by the kind: an image's `range` (its least and its greatest pixel) and `resize`
        (how an encoded image of another size becomes one of this shape), and `is_measured` where that range is none
        of the usual ones, but that of the pixels; a category's `values`, in their order; a text's `words` and
        `length`, once they are learnt.
    """

    kind: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def texts_of(values: np.ndarray) -> np.ndarray:
    """Returns values of a category, texts or whole numbers, as texts, object; a missing one is empty."""
    return np.array(["" if value == NO_NUMBER else str(value) for value in values.tolist()], object)


def image(shape: tuple[int, ...], dtype: Any, ends: tuple[float, float], resize: str = "stretch") -> Feature:
    """Returns the feature of images [H, W, C]; see `Feature.facts`."""
    low, high = ends
    return Feature("image", str(dtype), shape, {"range": (float(low), float(high)), "resize": resize})


def facts_of(features: Mapping[str, Feature]) -> dict[str, int]:
    """Returns facts to record: the size of images where there is nothing else, else how many features are of a kind."""
    only = next(iter(features.values())) if len(features) == 1 else None
    if only is not None and only.kind == "image":
        return dict(zip(("height", "width", "channels"), (size or 0 for size in only.shape), strict=True))
    return {f"{kind}_features": count for kind, count in Counter(one.kind for one in features.values()).items()}
