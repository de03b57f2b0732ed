"""Vocabularies of texts, and the numbers of their words: the same in training, in a file and in a graph."""

from pathlib import Path

import numpy as np
import pytest

from stages.errors import UserError
from stages.features.encoder import encoder_of, encoding, learn, sizes
from stages.features.numbers import NumberFeature
from stages.features.texts import LONGEST, RESERVED, TextFeature, learn_words, split_words
from stages.settings.data import NormalizeSettings
from tests.stages.features.test_encoder import assert_the_same_in_parts_in_a_file_and_in_a_graph

TEXTS = np.array(
    ["The cat, the CAT!", "", "a dog's bowl (blue)", "Größe: 3.5 m\n\tthe end", "[UNK] \\ ^caret^ `tick` ~", "  ..  "],
    object,
)
FEATURES = {"review": TextFeature()}


def test_a_vocabulary_is_ordered_by_frequency_then_name_and_limited() -> None:
    assert learn_words(np.array(["b a c", "c"], object), 10).words == ("c", "a", "b")
    assert learn_words(np.array(["b a c a\0", "c"], object), 10).words == ("c", "a", "b")  # as of a damaged file
    assert learn_words(np.array(["b a c", "c"], object), 2).words == ("c", "a")


def test_the_length_is_that_of_most_texts_up_to_a_limit() -> None:
    texts = np.array(["one"] * 98 + ["word " * 50] * 2, object)
    assert (learn_words(texts, 9).length, learn_words(texts, 9, length=7).length) == (1, 7)
    assert learn_words(np.array(["word " * 999], object), 9).length == LONGEST


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(UserError, match="the column text has no words"):
        learn_words(np.array(["", " .. "], object), 9)


def test_words_are_those_of_the_layer() -> None:
    learnt = learn_words(TEXTS, 1000)
    encoder = encoder_of({"review": TextFeature(vocabulary=learnt)})
    encode = encoding(encoder)
    numbers = encode({"review": TEXTS}, slice(None))["review"]
    assert numbers.dtype == np.int32
    places = {word: place for place, word in enumerate(learnt.words, start=RESERVED)}
    for row, words in zip(numbers, split_words(TEXTS), strict=True):
        expected = [places[word.decode()] for word in words.numpy()][: learnt.length]
        assert row.tolist() == expected + [0] * (learnt.length - len(expected))
    [unknown] = encode({"review": np.array(["the zebra"], object)}, slice(None))["review"]
    assert unknown[:3].tolist() == [RESERVED, 1, 0]


def test_any_batch_a_file_and_a_graph_give_the_same_numbers(tmp_path: Path) -> None:
    features = {**FEATURES, "width": NumberFeature()}
    texts = np.tile(TEXTS, 2)
    columns = {"review": texts, "width": np.arange(len(texts), dtype=float)}
    learnt = learn(features, columns, NormalizeSettings(max_tokens=5, length=4))
    encoder = encoder_of(learnt)
    assert sizes(learnt) == {"review": 7}
    assert_the_same_in_parts_in_a_file_and_in_a_graph(encoder, features, columns, tmp_path)
