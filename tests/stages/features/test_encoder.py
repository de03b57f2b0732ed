"""What is learnt of numbers and categories, and the model that encodes them: same bits in training and in a file."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.features.categories import ONE_HOT, CategoryFeature, vocabulary_of
from stages.features.encoder import (
    NAME,
    NUMBERS,
    encoder_of,
    encoding,
    learn,
    restore_encoder,
)
from stages.features.kinds import NO_NUMBER, Schema
from stages.features.numbers import NumberFeature, moments_of
from stages.reporter import Reporter
from stages.settings.data import NormalizeSettings

RANDOM = np.random.default_rng(3)
ROWS = 3000
COLUMNS = {
    "width": RANDOM.normal(1e9, 3.0, ROWS),
    "age": np.where(RANDOM.random(ROWS) < 0.2, np.nan, RANDOM.normal(40, 9, ROWS)),
    "color": RANDOM.choice(np.array(["red", "blue", ""], object), ROWS, p=[0.6, 0.3, 0.1]),
    "class": RANDOM.integers(1, 4, ROWS),
    "zip": np.array([f"z{number}" for number in RANDOM.zipf(1.3, ROWS) % 200], object),
}
FEATURES = {
    "width": NumberFeature(), "age": NumberFeature(), "color": CategoryFeature(), "class": CategoryFeature("int64"),
    "zip": CategoryFeature(),
}  # fmt: skip


@pytest.fixture(scope="module")
def encoder() -> keras.Model:
    return encoder_of(learn(FEATURES, COLUMNS, NormalizeSettings()))


def test_statistics_are_those_of_float64() -> None:
    values = np.concatenate([RANDOM.normal(1e8, 1.0, 150_000), [np.nan] * 5])
    [learnt] = moments_of(values)
    np.testing.assert_allclose(learnt.mean, np.nanmean(values), rtol=1e-15)
    np.testing.assert_allclose(learnt.std, np.nanstd(values), rtol=1e-9)
    assert learnt.median == np.nanmedian(values)
    assert learnt.has_missing


def test_constant_and_missing_columns_stay_finite() -> None:
    assert moments_of(np.full(9, 0.1))[0].std == 1.0
    assert moments_of(np.full(9, np.nan))[0].median == 0.0


def test_a_vocabulary_is_ordered_by_frequency_then_name() -> None:
    assert vocabulary_of(np.array(["b", "a", "c", "c"], object)) == ["c", "a", "b"]
    many = np.array([f"{number:03}" for number in range(50)] + ["007"], object)
    assert vocabulary_of(many) == ["007"]  # those that occur once stand for unknown ones


def test_values_are_as_documented(encoder: keras.Model) -> None:
    tensors = encoding(encoder)(COLUMNS, slice(None))
    numbers = tensors[NUMBERS]
    assert (numbers.dtype, numbers.shape) == (np.float32, (ROWS, 2 + 1 + 3 + 3 + 1))
    wide = COLUMNS["width"]
    np.testing.assert_allclose(numbers[:, 0], (wide - wide.mean()) / wide.std(), rtol=1e-6, atol=1e-7)
    is_missing = np.isnan(COLUMNS["age"])
    np.testing.assert_array_equal(numbers[:, 2], is_missing)
    assert len(np.unique(numbers[is_missing, 1])) == 1
    np.testing.assert_array_equal(numbers[:, 3:6].argmax(1), [["red", "blue", ""].index(c) for c in COLUMNS["color"]])
    vocabulary = vocabulary_of(COLUMNS["zip"])
    assert len(vocabulary) > ONE_HOT
    places = {value: place for place, value in enumerate(vocabulary, start=1)}
    np.testing.assert_array_equal(tensors["zip"], [places.get(value, 0) for value in COLUMNS["zip"]])


def test_unknown_categories_are_zeros(encoder: keras.Model) -> None:
    row = {name: values[:1] for name, values in COLUMNS.items()}
    row |= {"color": np.array(["green"], object), "class": np.array([9]), "zip": np.array(["?"], object)}
    tensors = encoding(encoder)(row, slice(None))
    assert (tensors[NUMBERS][0, 3:].tolist(), tensors["zip"][0]) == ([0] * 6 + [1], 0)


def test_values_that_keras_gives_a_meaning_have_none_here() -> None:
    columns = {"text": np.array(["[UNK]", "a", "[UNK]", ""], object), "whole": np.array([-1, 5, -1, NO_NUMBER])}
    features = {"text": CategoryFeature(), "whole": CategoryFeature("int64")}
    learnt = learn(features, {"text": columns["text"], "whole": columns["whole"][:3]}, NormalizeSettings())
    tensors = encoding(encoder_of(learnt))(columns, slice(None))
    assert tensors[NUMBERS].tolist() == [[1, 0, 0, 1, 0], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 0, 0]]


def assert_the_same_in_parts_in_a_file_and_in_a_graph(
    encoder: keras.Model, features: Schema, columns: Mapping[str, np.ndarray], folder: Path
) -> None:
    """Asserts that an encoder gives the same bits for parts of the rows, and from a file, compiled."""
    encode, rows = encoding(encoder), len(next(iter(columns.values())))
    parts = [encode(columns, slice(start, start + 7)) for start in range(0, rows, 7)]
    encoder.save(folder / "encoder.keras")
    loaded = keras.models.load_model(folder / "encoder.keras")
    raw = {name: tf.constant(values, features[name].dtype) for name, values in columns.items()}
    answers = tf.function(loaded, autograph=False)(raw)
    for name, values in encode(columns, slice(None)).items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
        np.testing.assert_array_equal(answers[name], values)


def test_any_batch_a_file_and_a_graph_give_the_same_bits(encoder: keras.Model, tmp_path: Path) -> None:
    assert_the_same_in_parts_in_a_file_and_in_a_graph(encoder, FEATURES, COLUMNS, tmp_path)


def test_an_encoder_from_somebody_else_runs_no_code(tmp_path: Path) -> None:
    place = str(tmp_path / "marker")
    inputs = keras.Input((1,))
    outputs = keras.layers.Lambda(lambda x: [open(place, "w"), x][1])(inputs)  # noqa: PTH123, SIM115
    keras.Model(inputs, outputs).save(tmp_path / f"{NAME}.keras")
    Path(place).unlink()
    (tmp_path / f"{NAME}.json").write_text(json.dumps({"x": {"kind": "number", "dtype": "float64"}}))
    with pytest.raises(ValueError, match=r"unsafe|safe_mode"):
        restore_encoder(tmp_path, SimpleNamespace(features={"x": NumberFeature()}, name="x"), None, Reporter())  # type: ignore[arg-type]
    assert not Path(place).exists()
