"""Random numbers of a network's layers: drawn in float32, and in training by the row of an example in its global batch.

So dropout drops the same units in every precision, and however many replicas, workers or parts share a batch. Keras
draws for the rows that it has: another mask for each way to split a batch.

All numbers are made of Philox's 32 random bits by operations that give the same result with XLA and without. From the
same bits, TensorFlow's kernels and XLA make different uniform, normal and whole numbers: the kernels take the low 23
bits of a float, XLA the high ones. Uniform and whole numbers are equal to the bit, others up to the rounding of
functions such as the logarithm.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from stages.networks.keras_internals import next_seed, noise_dimensions, wrap_backend

_PHILOX = 1
"""TensorFlow's number of the algorithm (tensorflow/core/framework/rng_alg.h)."""

_BLOCK = 4
"""Numbers of 32 bits that Philox makes of one value of its counter
(tensorflow/core/lib/random/philox_random.h)."""

_VECTOR = 32
"""Blocks whose functions a processor computes by vectors alone: 64 pairs, and 16 floats are the widest vector."""

RANDOM_OPERATIONS = ("StatelessRandom", "StatelessTruncated", "StatelessMultinomial", "StatelessParameterized")
"""Beginnings of the names of TensorFlow's operations that draw by a seed."""

FIXED_OPERATIONS = ("StatelessRandomGetKeyCounter", "StatelessRandomUniformFullIntV2")
"""Random operations of TensorFlow that give the same result with XLA and without."""


class _Rows(NamedTuple):
    """Rows of a global batch, or parts of it of equal size.

    first, count: the first one, and how many there are, int64 []. fixed_count: the same where it is known in tracing.
    """

    first: tf.Tensor
    count: tf.Tensor
    fixed_count: int | None = None


_rows: ContextVar[_Rows | None] = ContextVar("rows", default=None)


@contextmanager
def drawing_for_rows(first: tf.Tensor, batch: tf.Tensor) -> Iterator[None]:
    """Have the layers called in the block draw for the rows of a global batch that are in `batch`, from `first` on.

    With one seed, calls for the parts of a batch draw together what one call draws for all of it. That holds for
    uniform, normal, truncated normal and whole numbers, which Keras' dropout, noise and preprocessing layers draw;
    other distributions draw other numbers for each first row. Numbers whose shape begins with a fixed size that is not
    the batch's belong to no row but to the whole batch, as does a mask of `noise_shape=(1, …)`.

    Args:
        first: int64 [].
        batch: inputs or labels of the layers, [b, …].
    """
    token = _rows.set(_Rows(first, tf.shape(batch, tf.int64)[0], batch.shape[0]))
    try:
        yield
    finally:
        _rows.reset(token)


def prepare_random_layers() -> None:
    """Have Keras' random layers draw in float32 and round, in this process, from now on; and by row in training.

    A uniform bfloat16 has 128 values, too few for a rate. Layers that compute in float32 draw what they always have.
    """
    wrap_backend("random", "uniform", partial(_by_row, _uniform))
    wrap_backend("random", "normal", partial(_by_row, _normal))
    wrap_backend("random", "truncated_normal", partial(_by_row, _truncated_normal))
    wrap_backend("random", "randint", _randint)
    wrap_backend("random", "categorical", _categorical)
    wrap_backend("random", "shuffle", _shuffle)
    wrap_backend("random", "dropout", _dropout)
    wrap_backend("random", "draw_seed", _of_first_row)


def _current() -> _Rows | None:
    """Return the rows to draw for; None outside of training, as for initial weights.

    In Keras' fit, outside `drawing_for_rows`, a replica draws as for one of equal parts of a batch.
    """
    rows, replica = _rows.get(), tf.distribute.get_replica_context()
    if rows is not None or replica is None or tf.executing_eagerly():
        return rows
    place = replica.replica_id_in_sync_group if replica.num_replicas_in_sync > 1 else 0
    return _Rows(tf.cast(place, tf.int64), tf.constant(1, tf.int64))


def _by_row(sample: Callable[..., tf.Tensor], draw: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Return `draw`; within `drawing_for_rows` by `sample`, which takes sizes, seed, rows and the asked range."""

    @wraps(draw)
    def drawn(shape: Any, *bounds: Any, dtype: Any = None, seed: Any = None, **named: Any) -> tf.Tensor:
        rows = _current()
        if rows is None:
            return draw(shape, *bounds, dtype=dtype, seed=seed, **named)
        numbers = sample(_dimensions(shape), seed, rows, *bounds, **named)
        return tf.cast(numbers, keras.backend.standardize_dtype(dtype or keras.config.floatx()))

    return drawn


def _uniform(sizes: Sequence[Any], seed: Any, rows: _Rows, minval: Any = 0.0, maxval: Any = 1.0) -> tf.Tensor:
    low, high = tf.cast(minval, tf.float32), tf.cast(maxval, tf.float32)
    return _fractions(_bits(sizes, seed, rows)) * (high - low) + low


def _normal(sizes: Sequence[Any], seed: Any, rows: _Rows, mean: Any = 0.0, stddev: Any = 1.0) -> tf.Tensor:
    numbers = _bits(sizes, seed, rows, _box_muller)
    return numbers * tf.cast(stddev, tf.float32) + tf.cast(mean, tf.float32)


def _truncated_normal(sizes: Sequence[Any], seed: Any, rows: _Rows, mean: Any = 0.0, stddev: Any = 1.0) -> tf.Tensor:
    """Draw within two standard deviations, by the inverse of the distribution function."""
    within = math.erf(math.sqrt(2.0))
    fractions = tf.cast(_fractions(_bits(sizes, seed, rows)), tf.float64) * 2.0 - (1.0 - 2.0**-23)  # symmetric
    numbers = tf.cast(math.sqrt(2.0) * tf.math.erfinv(within * fractions), tf.float32)
    return numbers * tf.cast(stddev, tf.float32) + tf.cast(mean, tf.float32)


def _randint(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    @wraps(original)
    def randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> tf.Tensor:
        rows = _current()
        if rows is None:
            return original(shape, minval, maxval, dtype, seed)
        is_short = keras.backend.standardize_dtype(dtype) == "int32"
        whole, bits_of = (tf.int32, tf.uint32) if is_short else (tf.int64, tf.uint64)
        low, high = tf.cast(minval, whole), tf.cast(maxval, whole)
        sizes = _dimensions(shape)
        if is_short:
            bits = _bits(sizes, seed, rows)
        else:
            first, second = tf.unstack(tf.cast(_bits([*sizes, 2], seed, rows), tf.uint64), axis=-1)
            bits = tf.bitwise.bitwise_or(first, tf.bitwise.left_shift(second, tf.constant(32, tf.uint64)))
        return tf.cast(low + tf.cast(bits % tf.cast(high - low, bits_of), whole), dtype)

    return randint


def _categorical(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Return `original`; in training by the largest of logits with Gumbel noise (Gumbel 1954)."""

    @wraps(original)
    def categorical(logits: tf.Tensor, num_samples: Any, dtype: Any = "int64", seed: Any = None) -> tf.Tensor:
        rows = _current()
        if rows is None:
            return original(logits, num_samples, dtype, seed)
        count, classes = keras.ops.shape(logits)
        uniform = tf.cast(_fractions(_bits([count, num_samples, classes], seed, rows)), tf.float64) + 2.0**-24
        noisy = tf.cast(logits, tf.float64)[:, None, :] - tf.math.log(-tf.math.log(uniform))
        return tf.cast(tf.argmax(noisy, axis=-1), dtype)

    return categorical


def _shuffle(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    @wraps(original)
    def shuffle(x: tf.Tensor, axis: int = 0, seed: Any = None) -> tf.Tensor:
        if _current() is None:
            return original(x, axis, seed)
        keys = _bits([tf.shape(x)[axis]], seed, _Rows(tf.constant(0, tf.int64), tf.constant(1, tf.int64)))
        return tf.gather(x, tf.argsort(_fractions(keys), stable=True), axis=axis)

    return shuffle


def _dropout(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    @wraps(original)
    def dropout(inputs: tf.Tensor, rate: float, noise_shape: Any = None, seed: Any = None) -> tf.Tensor:
        if rate in (0.0, 1.0):
            return original(inputs, rate, noise_shape, seed)
        numbers = keras.random.uniform(noise_dimensions(inputs, noise_shape), dtype="float32", seed=seed)
        return tf.where(numbers >= rate, inputs * tf.constant(1 / (1 - rate), inputs.dtype), tf.zeros_like(inputs))

    return dropout


def _of_first_row(draw_seed: Callable[[Any], tf.Tensor]) -> Callable[[Any], tf.Tensor]:
    """Return `draw_seed`, which gives other seeds for other rows: no two replicas should draw the same."""

    @wraps(draw_seed)
    def drawn(seed: Any) -> tf.Tensor:
        state, rows = draw_seed(seed), _current()
        return state if rows is None else state + tf.cast(tf.stack([rows.first * 1009, 0]), state.dtype)

    return drawn


def _dimensions(shape: Any) -> list[Any]:
    """Return the sizes of a shape: numbers where they are fixed, else int32 []."""
    if not isinstance(shape, tf.Tensor):
        return list(shape)
    fixed = tf.get_static_value(shape)
    return list(fixed) if fixed is not None else tf.unstack(shape)


def _bits(
    dimensions: Sequence[Any], seed: Any, rows: _Rows, of_blocks: Callable[[tf.Tensor], tf.Tensor] = tf.identity
) -> tf.Tensor:
    """Return uint32 of the sizes `dimensions`: of all the numbers that `seed` has for a batch, those of `rows`.

    Philox is random access: its counter says where in the sequence the numbers begin.

    Args:
        of_blocks: makes other numbers of these, [blocks, _BLOCK], each block by itself.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=next_seed(seed))
    shape = tf.stack([tf.cast(size, tf.int64) for size in dimensions]) if dimensions else tf.zeros([0], tf.int64)
    is_of_rows = bool(dimensions) and (isinstance(dimensions[0], tf.Tensor) or dimensions[0] == rows.fixed_count)
    size = tf.reduce_prod(shape)
    begin = rows.first * (size // tf.maximum(rows.count, 1)) if is_of_rows else tf.constant(0, tf.int64)
    from_block = counter + tf.cast(tf.stack([begin // _BLOCK, 0]), counter.dtype)
    # More blocks than needed, of which XLA can cut at a place that it learns only when it runs; whole vectors of them,
    # as what is left over is computed by other code, which rounds otherwise.
    blocks = tf.stack([(size // _BLOCK + 2 + _VECTOR - 1) // _VECTOR * _VECTOR, _BLOCK])
    made = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=blocks, key=key, counter=from_block, alg=_PHILOX, dtype=tf.uint32
    )
    return tf.reshape(tf.slice(tf.reshape(of_blocks(made), [-1]), [begin % _BLOCK], [size]), shape)


def _fractions(bits: tf.Tensor) -> tf.Tensor:
    """Return float32 in [0, 1) of the low 23 bits, as TensorFlow's kernels do: those of a number in [1, 2), less 1."""
    return tf.bitcast((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000), tf.float32) - 1.0


def _box_muller(blocks: tf.Tensor) -> tf.Tensor:
    """Return normal numbers of uint32 [n, _BLOCK], by pairs, as TensorFlow's kernels do (Box and Muller 1958)."""
    first, second = tf.unstack(_fractions(tf.reshape(blocks, [-1, 2])), axis=1)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(first, 1e-7)))
    angle = second * (2.0 * math.pi)
    return tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], axis=1)
