"""Convolutions over words, for texts."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from stages.networks.joined import Shapes, embed_words, join
from stages.networks.precision import last_dtype


def text_cnn(
    input_shape: Shapes,
    outputs: int,
    filters: int,
    widths: list[int],
    dropout: float,
    categories: Mapping[str, int],
) -> keras.Model:
    """Returns a network from texts, and whatever is beside them, to float32 [b, outputs], or wider.

    Of each filter the greatest value over a text's words is kept. Source: Kim 2014 (arXiv:1408.5882).

    Args:
        filters: of each width; as many numbers stand for a word.
        widths: of the convolutions, in words.
        categories: from inputs of indices to the number of different ones.
    """

    def convolved(indices: Any, words: int, name: str) -> Any:
        values, is_word = embed_words(indices, words, filters, name)
        parts = []
        for width in widths:
            padded = keras.layers.ZeroPadding1D((0, width - 1))(values)
            found = keras.layers.Conv1D(filters, width, activation="relu", name=f"conv_{name}_{width}")(padded)
            # No value is below 0, so those that begin behind the last word are none of the greatest.
            parts.append(keras.layers.GlobalMaxPooling1D()(ops.multiply(found, is_word)))
        return parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)

    inputs, last = join(input_shape, categories, convolved)
    last = keras.layers.Dropout(dropout)(last) if dropout else last
    return keras.Model(inputs, keras.layers.Dense(outputs, dtype=last_dtype())(last), name="text_cnn")
