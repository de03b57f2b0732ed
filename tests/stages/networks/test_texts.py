"""Networks of texts: what is behind the last word changes nothing."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.networks.auto import auto
from stages.networks.mlp import mlp
from stages.networks.text_cnn import text_cnn
from stages.networks.transformer import transformer

WORDS = 50
NETWORKS: dict[str, Callable[[Any, Any], keras.Model]] = {
    "text_cnn": lambda shapes, categories: text_cnn(shapes, 3, 16, [2, 5], 0.1, categories),
    "transformer": lambda shapes, categories: transformer(shapes, 3, 32, 2, 0.1, categories),
    "mlp": lambda shapes, categories: mlp(shapes, 3, [8], 0.1, categories),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_do_not_depend_on_the_length_of_the_row(name: str) -> None:
    build = NETWORKS[name]
    texts = np.array([[2, 9, 4, 1], [7, 0, 0, 0], [0, 0, 0, 0]])
    long = np.pad(texts, ((0, 0), (0, 23)))
    short, other = (build({"text": values.shape[1:]}, {"text": WORDS}) for values in (texts, long))
    for layer in short.layers:  # biases of 0 would hide what the padding adds
        layer.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in layer.get_weights()])
    other.set_weights(short.get_weights())
    given = short(tf.constant(texts)).numpy()
    assert np.isfinite(given).all()
    np.testing.assert_allclose(other(tf.constant(long)), given, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_text_stands_beside_other_columns(name: str) -> None:
    shapes = {"numbers": (4,), "zip": (), "text": (6,)}
    network = NETWORKS[name](shapes, {"zip": 71, "text": WORDS})
    inputs = {"numbers": tf.zeros((2, 4)), "zip": tf.constant([1, 2]), "text": tf.constant([[2, 3, 0, 0, 0, 0]] * 2)}
    assert network(inputs).shape == (2, 3)
    other = network({**inputs, "text": tf.constant([[2, 3, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0]])})
    changed = np.abs(network(inputs).numpy() - other.numpy()).max(axis=1) > 0
    assert changed.tolist() == [False, True]


def test_auto_is_text_cnn_for_one_text_and_mlp_for_more() -> None:
    assert auto({"text": (6,)}, 3, {"text": WORDS}).name == "text_cnn"
    assert auto({"text": (6,), "numbers": (2,)}, 3, {"text": WORDS}).name == "mlp"
