"""Networks of several inputs: categories get embeddings, and of texts what is behind the last word changes nothing."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.networks.auto import auto
from stages.networks.joined import embedding_width
from stages.networks.mlp import mlp, wide_and_deep
from stages.networks.texts import text_cnn, transformer

WORDS = 50
COLUMNS: dict[str, tuple[int, ...]] = {"numbers": (4,), "zip": (), "shop": ()}
VALUES = {"zip": 71, "shop": 1001}
TEXT = {"text": WORDS}
NETWORKS = {
    "mlp": lambda shapes, values: mlp(shapes, 3, [8], 0.1, values),
    "wide_and_deep": lambda shapes, values: wide_and_deep(shapes, 3, [8, 8], 0.1, values),
    "text_cnn": lambda shapes, values: text_cnn(shapes, 3, 16, [2, 5], 0.1, values),
    "transformer": lambda shapes, values: transformer(shapes, 3, 32, 2, 0.1, values),
}
OF_TEXTS = ["text_cnn", "transformer", "mlp"]


def answers_that_change(network: keras.Model, inputs: dict[str, Any], **others: Any) -> list[bool]:
    """Return for which rows a network answers otherwise where it is given `others`."""
    given, changed = (
        network({name: tf.constant(of[name]) for name in of}).numpy() for of in (inputs, {**inputs, **others})
    )
    return (np.abs(given - changed).max(axis=1) > 0).tolist()


@pytest.mark.parametrize("name", ["mlp", "wide_and_deep"])
def test_each_category_has_an_embedding(name: str) -> None:
    network = NETWORKS[name](COLUMNS, VALUES)
    for key, values in VALUES.items():
        assert network.get_layer(f"embed_{key}").embeddings.shape == (values, embedding_width(values))
    numbers = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    inputs = {"numbers": numbers, "zip": [0, 1, 70], "shop": [0, 5, 1000]}
    assert answers_that_change(network, inputs, zip=[2, 1, 70]) == [True, False, False]


def test_the_first_weights_of_an_mlp_do_not_depend_on_its_embeddings() -> None:
    """Another order of its layers would train another network from the same seed."""
    width = 4 + sum(map(embedding_width, VALUES.values()))
    kernels = []
    for shapes, values in ((COLUMNS, VALUES), ({"numbers": (width,)}, None)):
        keras.utils.set_random_seed(1)
        layers = mlp(shapes, 3, [8], 0.1, values).layers
        kernels.append([layer.kernel.numpy() for layer in layers if isinstance(layer, keras.layers.Dense)])
    for one, other in zip(*kernels, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", OF_TEXTS)
def test_a_text_stands_beside_other_columns(name: str) -> None:
    network = NETWORKS[name]({"numbers": (4,), "zip": (), "text": (6,)}, {"zip": 71, **TEXT})
    text = np.array([[2, 3, 0, 0, 0, 0]] * 2)
    inputs = {"numbers": np.zeros((2, 4), np.float32), "zip": [1, 2], "text": text}
    assert answers_that_change(network, inputs, text=text * [[1], [2]]) == [False, True]


@pytest.mark.parametrize("name", OF_TEXTS)
def test_answers_do_not_depend_on_the_length_of_the_row(name: str) -> None:
    texts = np.array([[2, 9, 4, 1], [7, 0, 0, 0], [0, 0, 0, 0]])
    long = np.pad(texts, ((0, 0), (0, 23)))
    short, other = (NETWORKS[name]({"text": values.shape[1:]}, TEXT) for values in (texts, long))
    for layer in short.layers:  # biases of 0 would hide what the padding adds
        layer.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in layer.get_weights()])
    other.set_weights(short.get_weights())
    given = short(tf.constant(texts)).numpy()
    assert np.isfinite(given).all()
    np.testing.assert_allclose(other(tf.constant(long)), given, rtol=0, atol=1e-5)


def test_the_wide_part_is_linear() -> None:
    network = wide_and_deep((4,), 1, [8], 0.0)
    deep = network.get_layer("deep")
    deep.set_weights([np.zeros_like(weight) for weight in deep.get_weights()])
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)
    np.testing.assert_allclose(network(2 * x), 2 * network(x), rtol=1e-5)


@pytest.mark.parametrize(("shape", "values", "name"), [
    ((28, 28, 1), {}, "cnn"), ((7,), {}, "mlp"), (COLUMNS, VALUES, "mlp"), ({"text": (6,)}, TEXT, "text_cnn"),
    ({"text": (6,), "numbers": (2,)}, TEXT, "mlp"),
])  # fmt: skip
def test_auto_chooses_by_the_inputs(shape: Any, values: dict[str, int], name: str) -> None:
    assert auto(shape, 3, values).name == name
