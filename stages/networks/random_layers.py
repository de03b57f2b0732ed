"""Random numbers of a network's layers: drawn in float32, and in training by the row of an example in its global batch.

So dropout drops the same units in every precision, and however many replicas, workers or parts share a batch. Keras
draws for the rows that it has: another mask for each way to split a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from stages.networks.keras_internals import next_seed, noise_dimensions, wrap_backend

_PHILOX = 1
"""TensorFlow's number of the algorithm (tensorflow/core/framework/rng_alg.h)."""

_BLOCK = 4
"""Floats that Philox makes of one value of its counter, uniform or normal ones
(tensorflow/core/lib/random/random_distributions.h)."""

Sample = Callable[..., tf.Tensor]
"""`tf.raw_ops.StatelessRandomUniformV2` or `StatelessRandomNormalV2`."""


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
    """Has the layers called in the block draw for the rows of a global batch that are in `batch`, from `first` on.

    With one seed, calls for the parts of a batch draw together what one call draws for all of it. That holds for layers
    that draw uniform or normal numbers, such as Keras' dropout and noise layers; other distributions draw other numbers
    for each first row. Numbers whose shape begins with a fixed size that is not the batch's belong to no row but to the
    whole batch, as does a mask of `noise_shape=(1, …)`.

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
    """Has Keras' random layers draw in float32 and round, in this process, from now on; and by row in training.

    A uniform bfloat16 has 128 values, too few for a rate. Layers that compute in float32 draw what they always have.
    """
    wrap_backend("random", "uniform", partial(_by_row, tf.raw_ops.StatelessRandomUniformV2, _between))
    wrap_backend("random", "normal", partial(_by_row, tf.raw_ops.StatelessRandomNormalV2, _around))
    wrap_backend("random", "dropout", _dropout)
    wrap_backend("random", "draw_seed", _of_first_row)


def _current() -> _Rows | None:
    """Returns the rows to draw for. In a replica outside `drawing_for_rows`, as in Keras' fit, one of equal parts."""
    rows, replica = _rows.get(), tf.distribute.get_replica_context()
    if rows is not None or replica is None or replica.num_replicas_in_sync == 1:
        return rows
    return _Rows(tf.cast(replica.replica_id_in_sync_group, tf.int64), tf.constant(1, tf.int64))


def _by_row(
    sample: Sample, scaled: Callable[..., tf.Tensor], draw: Callable[..., tf.Tensor]
) -> Callable[..., tf.Tensor]:
    """Returns `draw`; within `drawing_for_rows` by `sample`, whose numbers `scaled` brings to the asked range."""

    @wraps(draw)
    def drawn(shape: Any, *bounds: Any, dtype: Any = None, seed: Any = None, **named: Any) -> tf.Tensor:
        rows = _current()
        if rows is None:
            return draw(shape, *bounds, dtype=dtype, seed=seed, **named)
        numbers = scaled(_sampled(sample, _dimensions(shape), seed, rows), *bounds, **named)
        return tf.cast(numbers, keras.backend.standardize_dtype(dtype or keras.config.floatx()))

    return drawn


def _between(numbers: tf.Tensor, minval: Any = 0.0, maxval: Any = 1.0) -> tf.Tensor:
    low, high = tf.cast(minval, tf.float32), tf.cast(maxval, tf.float32)
    return numbers * (high - low) + low


def _around(numbers: tf.Tensor, mean: Any = 0.0, stddev: Any = 1.0) -> tf.Tensor:
    return numbers * tf.cast(stddev, tf.float32) + tf.cast(mean, tf.float32)


def _dropout(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    @wraps(original)
    def dropout(inputs: tf.Tensor, rate: float, noise_shape: Any = None, seed: Any = None) -> tf.Tensor:
        if rate in (0.0, 1.0):
            return original(inputs, rate, noise_shape, seed)
        numbers = keras.random.uniform(noise_dimensions(inputs, noise_shape), dtype="float32", seed=seed)
        return tf.where(numbers >= rate, inputs * tf.constant(1 / (1 - rate), inputs.dtype), tf.zeros_like(inputs))

    return dropout


def _of_first_row(draw_seed: Callable[[Any], tf.Tensor]) -> Callable[[Any], tf.Tensor]:
    """Returns `draw_seed`, which gives other seeds for other rows: no two replicas should draw the same."""

    @wraps(draw_seed)
    def drawn(seed: Any) -> tf.Tensor:
        state, rows = draw_seed(seed), _current()
        return state if rows is None else state + tf.cast(tf.stack([rows.first * 1009, 0]), state.dtype)

    return drawn


def _dimensions(shape: Any) -> list[Any]:
    """Returns the sizes of a shape: numbers where they are fixed, else int32 []."""
    if not isinstance(shape, tf.Tensor):
        return list(shape)
    fixed = tf.get_static_value(shape)
    return list(fixed) if fixed is not None else tf.unstack(shape)


def _sampled(sample: Sample, dimensions: Sequence[Any], seed: Any, rows: _Rows) -> tf.Tensor:
    """Returns float32 of the sizes `dimensions`: of all the numbers that `seed` has for a batch, those of `rows`.

    Philox is random access: its counter says where in the sequence the numbers begin.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=next_seed(seed))
    shape = tf.stack([tf.cast(size, tf.int64) for size in dimensions]) if dimensions else tf.zeros([0], tf.int64)
    made = partial(sample, key=key, alg=_PHILOX, dtype=tf.float32)
    is_of_rows = bool(dimensions) and (isinstance(dimensions[0], tf.Tensor) or dimensions[0] == rows.fixed_count)
    if not is_of_rows:
        return made(shape=shape, counter=counter)
    size = tf.reduce_prod(shape)
    begin = rows.first * (size // tf.maximum(rows.count, 1))
    # A block more than needed, of which XLA can cut at a place that it learns only when it runs.
    from_block = counter + tf.cast(tf.stack([begin // _BLOCK, 0]), counter.dtype)
    numbers = made(shape=[size + _BLOCK - 1], counter=from_block)
    return tf.reshape(tf.slice(numbers, [begin % _BLOCK], [size]), shape)
