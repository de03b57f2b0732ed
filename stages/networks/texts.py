"""Networks for texts: convolutions over words, and a small encoder of the transformer's kind."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from stages.networks.joined import Shapes, embed_words, join, mean_where
from stages.networks.precision import last_dtype

HEAD = 16
"""Numbers of a word that a head of attention compares."""

AMPLITUDE = 0.05
"""Of the positions: that of Keras' embeddings before training, so that neither drowns the other."""


def text_cnn(
    input_shape: Shapes, outputs: int, filters: int, widths: list[int], dropout: float, categories: Mapping[str, int]
) -> keras.Model:
    """Return a network from texts and other columns to float32 [b, outputs], or wider.

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


def transformer(
    input_shape: Shapes, outputs: int, width: int, blocks: int, dropout: float, categories: Mapping[str, int]
) -> keras.Model:
    """Return a network from texts and other columns to float32 [b, outputs], or wider.

    Words attend to words alone, never to what fills a row; the mean over the words is kept. Sources: Vaswani et al.
    2017 (arXiv:1706.03762); normalization before each part, Xiong et al. 2020 (arXiv:2002.04745).

    Args:
        width: numbers that stand for a word; the dense part of a block has four times as many units.
        categories: from inputs of indices to the number of different ones.
    """

    def encoded(indices: Any, words: int, name: str) -> Any:
        values, is_word = embed_words(indices, words, width, name)
        values = ops.add(values, positions(indices.shape[1], width))
        attended = ops.expand_dims(ops.not_equal(indices, 0), axis=1)  # [b, 1, length]: the same for each word
        for _ in range(blocks):
            normal = keras.layers.LayerNormalization()(values)
            attention = keras.layers.MultiHeadAttention(max(width // HEAD, 1), HEAD, dropout=dropout)
            attended_to = attention(normal, normal, attention_mask=attended)
            values = ops.add(values, keras.layers.Dropout(dropout)(attended_to))
            dense = keras.layers.Dense(4 * width, activation="gelu")(keras.layers.LayerNormalization()(values))
            values = ops.add(values, keras.layers.Dropout(dropout)(keras.layers.Dense(width)(dense)))
        return mean_where(keras.layers.LayerNormalization()(values), is_word)

    inputs, last = join(input_shape, categories, encoded)
    return keras.Model(inputs, keras.layers.Dense(outputs, dtype=last_dtype())(last), name="transformer")


def positions(length: int, width: int) -> np.ndarray:
    """Return sines and cosines of the places in a row, float32 [length, width], which no row's length changes."""
    place, number = np.arange(length)[:, np.newaxis], np.arange(width)
    angle = place / 10_000 ** (number // 2 * 2 / width)
    return (AMPLITUDE * np.where(number % 2, np.cos(angle), np.sin(angle))).astype(np.float32)
