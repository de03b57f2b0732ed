"""Texts: a vocabulary learnt from the training split, by which a layer makes numbers of words before the network."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.data.columns import Column
from stages.errors import UserError

BLOCK = 2**12
"""Texts that are learnt from, or encoded, at once."""

QUANTILE = 0.95
"""Of the lengths of the training split's texts: the length of a row of numbers, where none is set."""

LONGEST = 256
"""Words in a row of numbers, at most, where none is set."""

RESERVED = 2
"""Numbers that are no word of the vocabulary: 0 fills rows, 1 is every unknown word."""


@dataclass(frozen=True)
class LearntText:
    """The vocabulary, the most frequent words first, and how many words of a text the network takes."""

    words: list[str]
    length: int


def learn_text(column: Column, max_tokens: int, length: int | None = None, name: str = "text") -> LearntText:
    """Returns the vocabulary of texts, by frequency, then by name.

    Args:
        max_tokens: words in it, at most.
        length: words of a text that the network takes; None: as many as most texts have, LONGEST at most.
        name: of the column, for errors.

    Raises:
        UserError: where no text has a word.
    """
    counts: Counter[bytes] = Counter()
    lengths = [np.zeros(0, np.int64)]
    for start in range(0, column.shape[0], BLOCK):
        words = split_words(column[start : start + BLOCK])
        counts.update(words.values.numpy().tolist())
        lengths.append(words.row_lengths().numpy())
    if not counts:
        raise UserError(f"the training split has no word in the column {name}", "texts of words")
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    usual = int(np.quantile(np.concatenate(lengths), QUANTILE, method="higher"))
    return LearntText([word.decode() for word in ordered[:max_tokens]], length or max(1, min(usual, LONGEST)))


def split_words(texts: np.ndarray) -> tf.RaggedTensor:
    """Returns the words of texts as `keras.layers.TextVectorization` splits them by default."""
    lower = tf.strings.lower(tf.constant(texts, tf.string))
    plain = tf.strings.regex_replace(lower, r"""[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']""", "")
    return tf.strings.split(plain)


def numbers_of(texts: Any, learnt: LearntText) -> Any:
    """Returns the numbers of a text's words, int32 [b, length]: RESERVED and up, 1 for unknown ones, 0 at the end."""
    layer = keras.layers.TextVectorization(vocabulary=learnt.words, output_sequence_length=learnt.length)
    return keras.ops.cast(layer(texts), "int32")
