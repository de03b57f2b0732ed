"""Inputs of several kinds, joined: categories get embeddings, everything else is flattened."""

from collections.abc import Mapping
from typing import Any

import keras

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each input, by name."""


def join(shapes: Shapes, categories: Mapping[str, int]) -> tuple[dict[str, Any], Any]:
    """Returns the inputs of a network, and all of them as one tensor, float [b, d].

    Args:
        categories: from inputs of indices, [b], to the number of different ones; all other inputs are floats.
    """
    inputs = {
        name: keras.Input(shape, dtype="int32" if name in categories else "float32", name=name)
        for name, shape in shapes.items()
    }
    parts = [
        keras.layers.Embedding(categories[name], embedding_width(categories[name]), name=f"embed_{name}")(value)
        if name in categories
        else keras.layers.Flatten()(value)
        for name, value in inputs.items()
    ]
    return inputs, parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)


def embedding_width(values: int) -> int:
    """Returns how many numbers stand for one of `values` categories (J. Howard and S. Gugger, fastai, 2020)."""
    return min(600, round(1.6 * values**0.56))
