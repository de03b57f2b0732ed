"""The laws of random layers: parts of a batch draw together what the whole batch draws, in any precision."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

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
    """Return what a new layer makes of a batch of ones in the parts between `limits`, each as its replica's."""
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
    whole, part = drawn(LAYERS["a custom layer"], (0, ROWS)), drawn(LAYERS["a custom layer"], (7, ROWS), jit=True)
    np.testing.assert_allclose(part, whole[7:], rtol=1e-6)


ALL: dict[str, Callable[[], keras.layers.Layer]] = {
    **{name: LAYERS[name] for name in ("dropout", "one mask for the batch", "alpha dropout", "noise")},
    "dropout of channels": lambda: keras.layers.SpatialDropout2D(0.4, seed=3),
    "multiplied noise": lambda: keras.layers.GaussianDropout(0.4, seed=3),
    "dropout in half precision": lambda: keras.layers.Dropout(0.4, seed=3, dtype="bfloat16"),
    "noise in half precision": lambda: keras.layers.GaussianNoise(1.0, seed=3, dtype="float16"),
    "flips": lambda: keras.layers.RandomFlip(seed=3),
    "crops": lambda: keras.layers.RandomCrop(4, 4, seed=3),
}
FEW = ("dropout", "noise")


def functions(inputs: tf.Tensor, seeds: Any) -> dict[str, tf.Tensor]:
    """Return what the functions of `keras.random` draw, in several dtypes."""
    random, shape = keras.random, (keras.ops.shape(inputs)[0], 7)
    return {
        "uniform": random.uniform(shape, -1.0, 3.0, seed=seeds),
        "normal, float64": random.normal(shape, 1.0, 3.0, "float64", seeds),
        "truncated": random.truncated_normal(shape, 1.0, 3.0, seed=seeds),
        "whole": random.randint(shape, 3, 250, seed=seeds),
        "whole, wide": random.randint(shape, -(2**60), 2**61, "int64", seeds),
        "for the batch": random.normal((2, 2), seed=seeds),
        "classes": random.categorical(tf.reshape(inputs, [-1, 105]), 5, seed=seeds),
        "order": random.shuffle(inputs, seed=seeds),
    }


INPUTS = np.random.default_rng(0).uniform(0, 4, (ROWS, 5, 3, 7)).astype(np.float32)


def all_draws(names: Iterable[str], first: int = 0, by_row: bool = True, jit: bool = False) -> dict[str, np.ndarray]:
    """Return what layers and functions draw for the inputs from row `first` on, in float64 or whole numbers."""
    prepare_random_layers()
    layers, seeds = {name: ALL[name]() for name in names}, keras.random.SeedGenerator(9)

    @tf.function(jit_compile=jit, autograph=False)
    def call(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        with drawing_for_rows(tf.constant(first, tf.int64), inputs) if by_row else nullcontext():
            drawn = {name: layer(inputs, training=True) for name, layer in layers.items()}
            return drawn | (functions(inputs, seeds) if by_row else {})

    with tf.device("/cpu:0"):
        results = call(tf.constant(INPUTS[first:]))
    return {name: value.numpy() if value.dtype.is_integer else tf.cast(value, tf.float64).numpy()
            for name, value in results.items()}  # fmt: skip


@pytest.mark.parametrize(("names", "by_row"), [(ALL, True), (FEW, False)], ids=["the loop", "Keras' fit"])
def test_xla_draws_what_is_drawn_without(names: Iterable[str], by_row: bool) -> None:
    """By layers, preprocessing layers and functions, in each dtype; XLA rounds a product that is added to otherwise."""
    whole, compiled = (all_draws(names, 0, by_row, jit) for jit in (False, True))
    for name, value in whole.items():
        bound = 1e-3 if "half" in name else 0 if "whole" in name else 1e-6
        np.testing.assert_allclose(compiled[name], value, rtol=bound, atol=bound, err_msg=name)
    if by_row:
        for name, value in all_draws(ALL, 4).items():
            if name not in ("one mask for the batch", "for the batch", "classes", "order"):
                np.testing.assert_allclose(value, whole[name][4:], rtol=1e-6, atol=1e-6, err_msg=name)


def test_what_is_drawn_is_distributed_as_asked() -> None:
    prepare_random_layers()
    shape = (200_000,)
    with drawing_for_rows(tf.constant(0, tf.int64), tf.zeros(shape)):
        normal = keras.random.truncated_normal(shape, 1.0, 2.0, seed=1).numpy()
        whole = keras.random.randint(shape, -2, 5, seed=2).numpy()
        logits = tf.math.log([[0.5, 0.3, 0.2], [0.1, 0.0, 0.9]])
        classes = keras.random.categorical(logits, 50_000, seed=3).numpy()
        order = keras.random.shuffle(tf.range(1000), seed=4).numpy()
    assert np.abs(normal - 1.0).max() <= 4.0
    assert (normal.mean(), normal.std()) == pytest.approx((1.0, 2 * 0.8796), abs=0.02)
    np.testing.assert_allclose(np.bincount(whole + 2), np.full(7, 200_000 / 7), rtol=0.03)
    shares = [np.bincount(row, minlength=3) / 50_000 for row in classes]
    np.testing.assert_allclose(shares, [[0.5, 0.3, 0.2], [0.1, 0.0, 0.9]], atol=0.01)
    assert (np.sort(order) == np.arange(1000)).all()
    assert (order[:-1] < order[1:]).mean() == pytest.approx(0.5, abs=0.05)


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
    np.testing.assert_allclose(drawn(LAYERS[name], (0, ROWS)), alone, rtol=1e-6, atol=2e-6 if name == "noise" else 0)


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
