"""Examples of a split as tensors: read by number, in the dtypes that networks take, and the structure of a batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from stages.data.columns import ALIGNMENT, Column
from stages.data.split import Split
from stages.results import Dataset

Reader = Callable[[tf.Tensor], tf.Tensor]
"""From examples of a split, int64 [b], to their values of a column as the network takes them, [b, ...]."""


class Batch(NamedTuple):
    """Examples of a replica, a structure of tensors.

    inputs: by name, float32 or int32 [b, ...], such as images [b, H, W, C].
    targets: int32 [b] or float32 [b, k]; of mixed images float32 [b, classes], rows that add up to 1.
    weights: float64 [b], which add up to the number of examples, or to their weights, over all replicas.
    uniforms: where the training step is to augment, the random numbers for it, float32 [b, randoms]; else nothing.
    """

    inputs: dict[str, tf.Tensor]
    targets: tf.Tensor
    weights: tf.Tensor
    uniforms: tuple[tf.Tensor, ...] = ()


def network_input(inputs: Mapping[str, tf.Tensor]) -> Any:
    """Returns what a network is called with: the one tensor, or all of them by name."""
    return dict(inputs) if len(inputs) > 1 else next(iter(inputs.values()))


def reader(column: Column) -> Reader:
    """Returns a function that reads examples of a column, in memory or wherever it is."""
    if isinstance(column, np.ndarray):
        return gathering(in_memory(column))
    dtype = tf.as_dtype(column.dtype)

    def read(examples: tf.Tensor) -> tf.Tensor:
        values = tf.numpy_function(column.__getitem__, [examples], dtype)
        return _for_network(tf.ensure_shape(values, [None, *column.shape[1:]]))

    return read


def gathering(values: tf.Tensor) -> Reader:
    """Returns a function that reads examples of a column in memory, [N, ...]."""
    return lambda examples: _for_network(tf.gather(values, examples))


def _for_network(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, network_dtype(values.dtype))


def network_dtype(dtype: Any) -> tf.DType:
    """Returns the dtype in which a network gets values: int32 of whole numbers, float32 of bytes and all others."""
    dtype = tf.as_dtype(dtype)
    return tf.int32 if dtype.is_integer and dtype != tf.uint8 else tf.float32


def in_memory(array: np.ndarray) -> tf.Tensor:
    """Returns a tensor that shares the array's memory where TensorFlow can use it as it lies, else a copy."""
    if array.ctypes.data % ALIGNMENT or not array.flags.c_contiguous or not array.flags.writeable:
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


@dataclass(frozen=True)
class Examples:
    """The examples of a split. weights: float64 [N], where they are not all alike."""

    inputs: Mapping[str, Reader]
    targets: tf.Tensor
    weights: tf.Tensor | None = None

    @classmethod
    def of_split(cls, split: Split) -> "Examples":
        readers = {name: reader(column) for name, column in split.inputs.items()}
        return cls(readers, tf.constant(split.targets), weights_of(split))

    def of(self, examples: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns the inputs and targets of `examples`, int64 [b]."""
        return {name: read(examples) for name, read in self.inputs.items()}, tf.gather(self.targets, examples)


def weights_of(split: Split) -> tf.Tensor | None:
    """Returns the weights of the examples, float64 [N]; None where they are all alike."""
    return None if split.weights is None else tf.constant(split.weights, tf.float64)


def first_inputs(split: Split, count: int) -> Any:
    """Returns what a network is called with for the first `count` examples of a split."""
    first = {name: _for_network(tf.constant(column[:count])) for name, column in split.inputs.items()}
    return network_input(first)


def spec_of(dataset: Dataset) -> Batch:
    """Returns the shapes and dtypes of the batches of a training; weights are float64."""
    inputs = {
        name: tf.TensorSpec([None, *column.shape[1:]], network_dtype(column.dtype))
        for name, column in dataset.train.inputs.items()
    }
    targets = dataset.train.targets
    spec = tf.TensorSpec([None, *targets.shape[1:]], targets.dtype)
    if dataset.mixing is not None:
        spec = tf.TensorSpec([None, dataset.task.outputs], tf.float32)
    return Batch(inputs, spec, tf.TensorSpec([None], tf.float64))
