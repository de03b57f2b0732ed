"""The laws of random layers: parts of a batch draw together what the whole batch draws, in any precision."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.networks.random_layers import drawing_for_rows, prepare_random_layers

ROWS = 10
LIMITS = (0, 1, 4, 10)
SIGNATURE = [tf.TensorSpec([None, 5, 3, 7], tf.float32), tf.TensorSpec([], tf.int64)]


class Jitter(keras.layers.Layer):
    """A custom layer: uniform numbers for each row, and one for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        own = keras.random.uniform(keras.ops.shape(inputs), -1.0, 2.0, seed=self.seeds)
        return inputs + own + 10 * keras.random.normal((1, 1, 1, 1), 3.0, 2.0, seed=self.seeds)


LAYERS: dict[str, Callable[[], keras.layers.Layer]] = {
    "dropout": lambda: keras.layers.Dropout(0.4, seed=3),
    "dropout of places": lambda: keras.layers.Dropout(0.4, noise_shape=(None, 5, 3, 1), seed=3),
    "one mask for the batch": lambda: keras.layers.Dropout(0.4, noise_shape=(1, 5, 3, 7), seed=3),
    "alpha dropout": lambda: keras.layers.AlphaDropout(0.4, seed=3),
    "noise": lambda: keras.layers.GaussianNoise(1.0, seed=3),
    "a custom layer": Jitter,
}


def drawn(make: Callable[[], keras.layers.Layer], limits: Sequence[int], jit: bool = False) -> np.ndarray:
    """Returns what a new layer makes of a batch of ones in the parts between `limits`, each as its replica's."""
    prepare_random_layers()
    parts = []
    for begin, end in itertools.pairwise(limits):
        layer = make()

        @tf.function(jit_compile=jit, autograph=False, input_signature=SIGNATURE)
        def call(inputs: tf.Tensor, first: tf.Tensor, layer: keras.layers.Layer = layer) -> tf.Tensor:
            with drawing_for_rows(first, inputs):
                return layer(inputs, training=True)

        with tf.device("/cpu:0"):
            parts.append(call(tf.ones([end - begin, 5, 3, 7]), tf.constant(begin, tf.int64)).numpy())
    return np.concatenate(parts)


@pytest.mark.parametrize("name", LAYERS)
def test_parts_draw_what_the_whole_batch_draws(name: str) -> None:
    whole = drawn(LAYERS[name], (0, ROWS))
    np.testing.assert_allclose(drawn(LAYERS[name], LIMITS), whole, rtol=1e-6)
    is_shared = name == "one mask for the batch"
    assert (len(np.unique(whole, axis=0)) == 1) is is_shared  # no two rows alike, but by one mask for all


@pytest.mark.slow
def test_so_they_do_where_xla_compiles_them() -> None:
    whole, part = (drawn(LAYERS["a custom layer"], limits, jit=True) for limits in ((0, ROWS), (7, ROWS)))
    np.testing.assert_allclose(part, whole[7:], rtol=1e-6)


def test_so_they_do_where_the_size_of_a_batch_is_fixed() -> None:
    """As on TPUs. The custom layer's number for the whole batch is of a fixed size, too, and not a row's."""
    prepare_random_layers()
    parts = []
    for begin, end in ((0, ROWS), (7, ROWS)):
        inputs = tf.ones([end - begin, 5, 3, 7])
        with drawing_for_rows(tf.constant(begin, tf.int64), inputs):
            parts.append(Jitter()(inputs))
    np.testing.assert_allclose(parts[1], parts[0][7:], rtol=1e-6)


@pytest.mark.parametrize("name", ["dropout", "noise", "a custom layer"])
def test_a_whole_batch_draws_what_keras_does(name: str) -> None:
    alone = LAYERS[name]()(tf.ones([ROWS, 5, 3, 7]), training=True)
    np.testing.assert_array_equal(drawn(LAYERS[name], (0, ROWS)), alone)


def test_other_distributions_draw_other_numbers_for_other_rows() -> None:
    """A part draws its own; whether it is what the whole batch has there is not promised."""
    prepare_random_layers()
    draws = []
    for first in (0, 4):
        seeds = keras.random.SeedGenerator(1)
        with drawing_for_rows(tf.constant(first, tf.int64), tf.zeros([4])):
            draws.append(keras.random.gamma((4, 3), 2.0, seed=seeds).numpy())
    assert not np.isclose(*draws).any()


@pytest.mark.parametrize("layer", ["Dropout", "SpatialDropout2D"])
def test_dropout_drops_the_same_units_in_every_precision(layer: str) -> None:
    def kept(dtype: str, in_training_step: bool) -> np.ndarray:
        random = getattr(keras.layers, layer)(0.3, seed=11, dtype=dtype)
        inputs = tf.ones([ROWS, 6, 6, 32], dtype)
        rows = drawing_for_rows(tf.constant(0, tf.int64), inputs)
        with rows if in_training_step else nullcontext():
            return np.asarray(tf.cast(random(inputs, training=True), tf.float32))

    prepare_random_layers()
    expected = kept("float32", False)
    assert 0.1 < (expected == 0).mean() < 0.5
    for dtype in ("float64", "bfloat16", "float16"):
        for in_training_step in (False, True):
            np.testing.assert_array_equal(kept(dtype, in_training_step) == 0, expected == 0)
            np.testing.assert_allclose(kept(dtype, in_training_step), expected, rtol=0.01)
