"""The kinds of features: what goes into a network, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("image", "number", "category", "text", "vector")
"""Of features: pixels [H, W, C]; one number; one of a few values; words; numbers that belong together, [d]."""


@dataclass(frozen=True)
class Feature:
    """A named input of an example, as it is before any encoder: what an exported model takes.

    kind: one of KINDS.
    dtype: NumPy's name of it; `string` for texts, and for categories that are texts.
    shape: of one example, without the axis of the batch; None where examples differ.
    facts: what is known of its values, by the kind: an image's `range` (its least and its greatest pixel) and `resize`
        (how an encoded image of another size becomes one of this shape); a category's `values`, in their order.
    """

    kind: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
