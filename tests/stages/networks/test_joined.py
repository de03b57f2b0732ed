"""Networks of several inputs: numbers beside categories, which get embeddings."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.networks.auto import auto
from stages.networks.joined import embedding_width
from stages.networks.mlp import mlp
from stages.networks.wide_and_deep import wide_and_deep

SHAPES = {"numbers": (4,), "zip": (), "shop": ()}
CATEGORIES = {"zip": 71, "shop": 1001}
INPUTS = {
    "numbers": tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32),
    "zip": tf.constant([0, 1, 70, 1, 1]),
    "shop": tf.constant([0, 5, 1000, 5, 6]),
}
NETWORKS = {
    "mlp": mlp(SHAPES, 3, [8], 0.1, CATEGORIES),
    "wide_and_deep": wide_and_deep(SHAPES, 3, [8, 8], 0.1, CATEGORIES),
    "auto": auto(SHAPES, 3, CATEGORIES),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_each_category_has_an_embedding(name: str) -> None:
    network = NETWORKS[name]
    for key, values in CATEGORIES.items():
        assert network.get_layer(f"embed_{key}").embeddings.shape == (values, embedding_width(values))
    assert network(INPUTS).shape == (5, 3)
    other = network({**INPUTS, "zip": tf.constant([2, 1, 70, 1, 1])})
    changed = np.abs(network(INPUTS).numpy() - other.numpy()).max(axis=1) > 0
    assert changed.tolist() == [True, False, False, False, False]


def test_the_wide_part_is_linear() -> None:
    network = wide_and_deep((4,), 1, [8], 0.0)
    deep = network.get_layer("deep")
    deep.set_weights([np.zeros_like(weight) for weight in deep.get_weights()])
    x = INPUTS["numbers"]
    np.testing.assert_allclose(network(2 * x), 2 * network(x), rtol=1e-5)


@pytest.mark.parametrize(("shape", "name"), [((28, 28, 1), "cnn"), ((7,), "mlp"), (SHAPES, "mlp")])
def test_auto_chooses_by_the_inputs(shape: tuple[int, ...], name: str) -> None:
    network = auto(shape, 3, CATEGORIES)
    assert isinstance(network, keras.Model)
    assert network.name == name
