"""Examples as tensors: a batch of them, and how they are read from a split in the dtypes of the network's inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.data.columns import ALIGNMENT, Column, Gathered
from stages.data.split import Split
from stages.results import Dataset

Reader = Callable[[tf.Tensor], tf.Tensor]
"""From examples of a split, int64 [b], to their values of a column as the network takes them, [b, ...]."""


def network_input(inputs: Mapping[str, tf.Tensor]) -> Any:
    """Return what a network is called with: the one tensor, or all of them by name."""
    return dict(inputs) if len(inputs) > 1 else next(iter(inputs.values()))


def reader(column: Column) -> Reader:
    """Return a function that reads examples of a column, in memory or wherever it is."""
    if isinstance(column, np.ndarray):
        return gathering(in_memory(column))
    if isinstance(column, Gathered) and isinstance(column.rows, np.ndarray):
        read_rows = _gathering_rows(column, in_memory(column.rows))
        return lambda examples: _for_network(read_rows(examples))
    dtype = tf.as_dtype(column.dtype)

    def read(examples: tf.Tensor) -> tf.Tensor:
        values = tf.numpy_function(column.__getitem__, [examples], dtype)
        return _for_network(tf.ensure_shape(values, [None, *column.shape[1:]]))

    return read


def gathering(values: tf.Tensor) -> Reader:
    """Return a function that reads examples of a column in memory, [N, ...]."""
    return lambda examples: _for_network(tf.gather(values, examples))


def _gathering_rows(column: Gathered, rows: tf.Tensor) -> Reader:
    """Return a function that reads examples of a column that is gathered from `rows`, which are in memory."""
    starts = tf.constant(column.starts, tf.int64)

    def read(examples: tf.Tensor) -> tf.Tensor:
        first = tf.gather(starts, examples)
        if column.length is not None:
            first = first[:, tf.newaxis] + tf.range(column.length, dtype=tf.int64)
        return tf.reshape(tf.gather(rows, first), [-1, *column.shape[1:]])

    return read


def _for_network(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, network_dtype(values.dtype))


def network_dtype(dtype: Any) -> tf.DType:
    """Return the dtype in which a network gets values: int32 of whole numbers, float32 of bytes and all others."""
    dtype = tf.as_dtype(dtype)
    return tf.int32 if dtype.is_integer and dtype != tf.uint8 else tf.float32


def target_reader(column: Column) -> Reader:
    """Return a function that reads examples of the targets, in memory or wherever they are."""
    dtype = tf.as_dtype(column.dtype)
    if isinstance(column, np.ndarray):
        values = target_tensor(column)
        return lambda examples: tf.gather(values, examples)
    if isinstance(column, Gathered) and isinstance(column.rows, np.ndarray):
        return _gathering_rows(column, target_tensor(column.rows))

    def read(examples: tf.Tensor) -> tf.Tensor:
        values = tf.numpy_function(column.__getitem__, [examples], dtype)
        return tf.cast(tf.ensure_shape(values, [None, *column.shape[1:]]), target_dtype(dtype))

    return read


def target_tensor(values: np.ndarray) -> tf.Tensor:
    """Return targets as a task gets them."""
    return tf.constant(values, target_dtype(values.dtype))


def target_dtype(dtype: Any) -> tf.DType:
    """Return the dtype in which a task gets targets: int32 for whole numbers, also for bytes; others unchanged."""
    dtype = tf.as_dtype(dtype)
    return tf.int32 if dtype.is_integer else dtype


def in_memory(array: np.ndarray) -> tf.Tensor:
    """Return a tensor that shares the array's memory where TensorFlow can use it as it lies, else a copy."""
    if array.ctypes.data % ALIGNMENT or not array.flags.c_contiguous or not array.flags.writeable:
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


@dataclass(frozen=True)
class SplitReader:
    """Read examples of a split by number."""

    inputs: Mapping[str, Reader]
    targets: Reader
    weights: tf.Tensor | None = None
    """float64 [N]; None if all examples count alike."""

    @classmethod
    def of(cls, split: Split) -> "SplitReader":
        readers = {name: reader(column) for name, column in split.inputs.items()}
        return cls(readers, target_reader(split.targets), weights_of(split))

    def read(self, examples: tf.Tensor) -> Example:
        """Return `examples`, int64 [b], by their numbers in the split."""
        inputs = {name: read(examples) for name, read in self.inputs.items()}
        weights = tf.ones_like(examples, tf.float64) if self.weights is None else tf.gather(self.weights, examples)
        return Example(inputs, self.targets(examples), weights)


def weights_of(split: Split) -> tf.Tensor | None:
    """Return the weights of the examples, float64 [N]; None where they are all alike."""
    return None if split.weights is None else tf.constant(split.weights, tf.float64)


def first_inputs(split: Split, count: int) -> Any:
    """Return what a network is called with for the first `count` examples of a split."""
    first = {name: _for_network(tf.constant(column[:count])) for name, column in split.inputs.items()}
    return network_input(first)


def spec_of(dataset: Dataset) -> Example:
    """Return the shapes and dtypes of training examples."""
    inputs = {
        name: tf.TensorSpec([None, *column.shape[1:]], network_dtype(column.dtype))
        for name, column in dataset.train.inputs.items()
    }
    targets = dataset.train.targets
    spec = tf.TensorSpec([None, *targets.shape[1:]], target_dtype(targets.dtype))
    example = Example(inputs, spec, tf.TensorSpec([None], tf.float64))
    for transform in dataset.transforms:
        example = transform.spec(example)
    return example
