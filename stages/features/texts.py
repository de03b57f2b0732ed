"""Texts: numbers of words or tokens, by a vocabulary learnt from the training split or a tokenizer of KerasHub."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.data.columns import Column
from stages.errors import UserError
from stages.settings.places import content_digest

BLOCK = 2**12
"""Texts that are learnt from, or encoded, at once."""

QUANTILE = 0.95
"""Of the lengths of the training split's texts: the length of a row of numbers, where none is set."""

LONGEST = 256
"""Words in a row of numbers, at most, where none is set."""

RESERVED = 2
"""Numbers that are no word of the vocabulary: 0 fills rows, UNKNOWN is every unknown word."""

UNKNOWN = 1


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
    known = [word for word in counts if b"\0" not in word]  # which NumPy would cut short in a vocabulary
    if not known:
        raise UserError(f"the column {name} has no words in the training split", "texts with words")
    ordered = sorted(known, key=lambda word: (-counts[word], word))
    return LearntText([word.decode() for word in ordered[:max_tokens]], length or _usual(np.concatenate(lengths)))


def _usual(lengths: np.ndarray) -> int:
    return max(1, min(int(np.quantile(lengths, QUANTILE, method="higher")), LONGEST))


def split_words(texts: np.ndarray) -> tf.RaggedTensor:
    """Returns the words of texts as `keras.layers.TextVectorization` splits them by default."""
    lower = tf.strings.lower(tf.constant(texts, tf.string))
    plain = tf.strings.regex_replace(lower, r"""[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']""", "")
    return tf.strings.split(plain)


def numbers_of(texts: Any, learnt: LearntText) -> Any:
    """Returns the numbers of a text's words, int32 [b, length]: RESERVED and up, 1 for unknown ones, 0 at the end."""
    layer = keras.layers.TextVectorization(vocabulary=learnt.words, output_sequence_length=learnt.length)
    return keras.ops.cast(layer(texts), "int32")


@dataclass(frozen=True)
class LearntTokens:
    """A tokenizer of KerasHub.

    preset: its folder. digest: of the folder's content. tokens: how many it knows. length: of a text, start and end
    among them, that the network takes.
    """

    preset: str
    digest: str
    tokens: int
    length: int


def learn_tokens(column: Column, preset: str, length: int | None = None, name: str = "text") -> LearntTokens:
    """Returns the tokenizer in the folder `preset`; nothing is learnt but the length, as `learn_text` does it.

    Raises:
        UserError: where the folder has no tokenizer, or its backbone takes fewer tokens than `length`.
    """
    folder = Path(preset).expanduser()
    if not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"{preset} has no tokenizer for the texts of {name}",
            "a KerasHub preset with tokenizer.json, such as that of a text backbone",
            "model=transformer",
        )
    most = json.loads((folder / "config.json").read_text())["config"].get("max_sequence_length") or length or LONGEST
    if length is not None and length > most:
        raise UserError(
            f"normalize.length={length} is more than {preset} supports", f"at most {most}", f"normalize.length={most}"
        )
    tokens = _tokenizer(preset).vocabulary_size()
    learnt = LearntTokens(preset, content_digest(preset), tokens, length or min(most, LONGEST))
    if length is not None:
        return learnt
    texts = tf.TensorSpec([None], tf.string)
    numbers = tf.function(lambda texts: tokens_of(texts, learnt), autograph=False, input_signature=[texts])
    blocks = (column[start : start + BLOCK] for start in range(0, column.shape[0], BLOCK))
    lengths = [np.count_nonzero(numbers(tf.constant(block, tf.string)), axis=1) for block in blocks]
    return replace(learnt, length=_usual(np.concatenate(lengths)))


def _tokenizer(preset: str) -> Any:
    from keras_hub import tokenizers  # seconds

    return tokenizers.Tokenizer.from_preset(str(Path(preset).expanduser()))


def tokens_of(texts: Any, learnt: LearntTokens) -> Any:
    """Returns the numbers of a text's tokens, int32 [b, length]: one more than in the preset, and 0 at the end.

    In a graph alone: there KerasHub computes by TensorFlow Text, and elsewhere by Python, which differs for some texts.
    """
    from keras_hub import layers

    tokenizer = _tokenizer(learnt.preset)
    ends = {f"{end}_value": getattr(tokenizer, f"{end}_token_id", None) for end in ("start", "end", "pad")}
    packer = layers.StartEndPacker(learnt.length, **ends, return_padding_mask=True)
    tokens, is_token = packer(tokenizer(texts))
    numbers = keras.ops.where(is_token, keras.ops.cast(tokens, "int32") + 1, 0)
    return keras.ops.reshape(numbers, (-1, learnt.length))
