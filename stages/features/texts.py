"""Texts: numbers of words or tokens, by a vocabulary learned from the training split or a tokenizer of KerasHub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column, evenly_spread
from stages.errors import UserError
from stages.features.kinds import ROWS, Encoded, Feature, some_rows
from stages.features.numbers import SAMPLE, describe_numbers
from stages.settings.places import content_digest

if TYPE_CHECKING:
    import tensorflow as tf

    from stages.data.split import Split
    from stages.settings.data import NormalizeSettings

BLOCK = 2**12
"""Number of texts that are learned from, or encoded, at once."""

QUANTILE = 0.95
"""Quantile of the lengths of the training texts that becomes the length of a row of numbers, if none is set."""

LONGEST = 256
"""Maximum number of words in a row of numbers, if none is set."""

RESERVED = 2
"""Reserved token ids: 0 fills rows, and UNKNOWN stands for every unknown word."""

UNKNOWN = 1

MOST_UNKNOWN = 0.5
"""Share of unknown words in the validation split from which on a network learns nothing from them."""


@dataclass(frozen=True)
class Words:
    """A vocabulary, the most frequent words first."""

    words: tuple[str, ...]
    length: int
    """Number of words of a text that the network gets."""

    @property
    def indices(self) -> int:
        return len(self.words) + RESERVED

    def encode(self, texts: Any) -> Any:
        """Return the numbers of the words, int32 [b, length]: from RESERVED on, UNKNOWN, and 0 at the end."""
        import keras  # seconds, which commands without TensorFlow must not wait for

        layer = keras.layers.TextVectorization(vocabulary=list(self.words), output_sequence_length=self.length)
        return keras.ops.cast(layer(texts), "int32")


@dataclass(frozen=True)
class Tokens:
    """A tokenizer of KerasHub."""

    preset: str
    """Its folder."""
    digest: str
    """A digest of the content of the folder."""
    tokens: int
    """The size of its vocabulary."""
    length: int
    """Number of tokens of a text, start and end included, that the network gets."""

    @property
    def indices(self) -> int:
        return self.tokens + 1

    def encode(self, texts: Any) -> Any:
        """Return the numbers of the tokens, int32 [b, length]: one more than in the preset, and 0 at the end.

        Call it only in a graph. There KerasHub uses TensorFlow Text; elsewhere it uses Python, which differs for some
        texts.
        """
        import keras  # seconds, which commands without TensorFlow must not wait for
        from keras_hub import layers

        tokenizer = _tokenizer(self.preset)
        ends = {f"{end}_value": getattr(tokenizer, f"{end}_token_id", None) for end in ("start", "end", "pad")}
        packer = layers.StartEndPacker(self.length, **ends, return_padding_mask=True)
        tokens, is_token = packer(tokenizer(texts))
        numbers = keras.ops.where(is_token, keras.ops.cast(tokens, "int32") + 1, 0)
        return keras.ops.reshape(numbers, (-1, self.length))


@dataclass(frozen=True)
class TextFeature(Feature):
    """A text of words."""

    kind: ClassVar[str] = "text"
    unit: ClassVar[str] = "texts"
    block: ClassVar[int] = BLOCK

    dtype: str = "string"
    vocabulary: Words | Tokens | None = None

    @property
    def indices(self) -> int:
        return 0 if self.vocabulary is None else self.vocabulary.indices

    @property
    def digest(self) -> str | None:
        """The digest of the tokenizer, if there is one."""
        return self.vocabulary.digest if isinstance(self.vocabulary, Tokens) else None

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        shown = self.column_name(name)
        if settings.tokenizer is None:
            return replace(self, vocabulary=learn_words(column, settings.max_tokens, settings.length, shown))
        return replace(self, vocabulary=learn_tokens(column, settings.tokenizer, settings.length, shown))

    def encode(self, values: Any) -> Encoded:
        assert self.vocabulary is not None
        return Encoded(indices=self.vocabulary.encode(values))

    def measured(self, column: Column) -> np.ndarray:
        return _words_in(some_rows(column, ROWS)).astype(np.float64)

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        texts = split.features[name][evenly_spread(len(split), SAMPLE)]
        counts = _words_in(texts)
        missing, different = float(np.mean(counts == 0)), len(np.unique(texts))
        return [self._row(name, missing, *describe_numbers(counts), different, "")]

    def warnings(self, name: str, train: Split, val: Split) -> list[str]:
        if not isinstance(self.vocabulary, Words):
            return []
        words = np.asarray(val.inputs[name][evenly_spread(len(val), SAMPLE)])
        unknown = np.mean(words[words > 0] == UNKNOWN) if words.any() else 0.0
        if unknown <= MOST_UNKNOWN:
            return []
        column = self.column_name(name)
        problem = f"{unknown:.0%} of the words of the column {column} in val do not occur in the training texts"
        return [f"{problem}. A tokenizer splits them into known parts: normalize.tokenizer=<preset>"]

    @property
    def known(self) -> dict[str, Any]:
        return {} if self.vocabulary is None else asdict(self.vocabulary)

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        vocabulary: Words | Tokens | None = None
        if "words" in values:
            vocabulary = Words(tuple(values["words"]), values["length"])
        elif "preset" in values:
            vocabulary = Tokens(*(values[key] for key in Tokens.__dataclass_fields__))
        return cls(values.get("dtype", "string"), vocabulary, **common)


def _words_in(texts: np.ndarray) -> np.ndarray:
    """Return how many words each text has."""
    return np.array([len(text.split()) for text in texts], np.int64)


def learn_words(column: Column, max_tokens: int, length: int | None = None, name: str = "text") -> Words:
    """Return the vocabulary of texts, by frequency, then by name.

    Args:
        column: The texts of the training split.
        max_tokens: The maximum number of words.
        length: The number of words of a text that the network gets. None: as many as most texts have, at most LONGEST.
        name: The name of the column, for errors.

    Raises:
        UserError: If no text has a word.
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
    return Words(tuple(word.decode() for word in ordered[:max_tokens]), length or _usual(np.concatenate(lengths)))


def _usual(lengths: np.ndarray) -> int:
    return max(1, min(int(np.quantile(lengths, QUANTILE, method="higher")), LONGEST))


def split_words(texts: np.ndarray) -> tf.RaggedTensor:
    """Return the words of texts as `keras.layers.TextVectorization` splits them by default."""
    import tensorflow as tf  # seconds, which commands without TensorFlow must not wait for

    lower = tf.strings.lower(tf.constant(texts, tf.string))
    plain = tf.strings.regex_replace(lower, r"""[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']""", "")
    return tf.strings.split(plain)


def learn_tokens(column: Column, preset: str, length: int | None = None, name: str = "text") -> Tokens:
    """Return the tokenizer in the folder `preset`. Only the length is learned, as by `learn_words`.

    Raises:
        UserError: If the folder has no tokenizer, or its backbone accepts fewer tokens than `length`.
    """
    import tensorflow as tf  # seconds, which commands without TensorFlow must not wait for

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
    learned = Tokens(preset, content_digest(preset), tokens, length or min(most, LONGEST))
    if length is not None:
        return learned
    encode = tf.function(learned.encode, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    blocks = (column[start : start + BLOCK] for start in range(0, column.shape[0], BLOCK))
    lengths = [np.count_nonzero(encode(tf.constant(block, tf.string)), axis=1) for block in blocks]
    return replace(learned, length=_usual(np.concatenate(lengths)))


def _tokenizer(preset: str) -> Any:
    from keras_hub import tokenizers  # seconds

    return tokenizers.Tokenizer.from_preset(str(Path(preset).expanduser()))
