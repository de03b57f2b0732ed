"""FLOPs, memory and summary of a network."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

_ONLY_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
"""Operations that read the size of a tensor alone, for which its contents need not stay in memory."""

_VIEWS = ("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient")
"""Operations that return the same memory under another name or shape."""

_PEAKS_OF_INFERENCE: WeakKeyDictionary[keras.Model, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Cost:
    """peak: most bytes of one example in memory at once, without weights; operations: their number in the graph."""

    peak: int
    operations: int


Specs = tuple[tf.TensorSpec, list[tf.TensorSpec]]


def flops(network: keras.Model) -> int:
    """Returns the floating-point operations of `network` for one image in inference, a multiply-add counted as two.

    TensorFlow's own counts of the operations in the graph: of convolutions, products, sums and pooling, but not of
    activations for which it has no count.

    Raises:
        Exception: of any kind, where the network cannot be traced or profiled.
    """

    def forward(images: tf.Tensor, values: list[tf.Tensor]) -> tf.Tensor:
        with _with_values(network, values):
            return network(images, training=False)

    graph = tf.function(forward, autograph=False).get_concrete_function(*_specs(network, 1)).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder(tf.compat.v1.profiler.ProfileOptionBuilder.float_operation())
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")  # its warning that the profiler is of TensorFlow 1 is of no use to a user
    try:
        counts = tf.compat.v1.profiler.profile(graph, options=options.with_empty_output().build())
    finally:
        logger.setLevel(before)
    return int(counts.total_float_ops)


def cost_of_step(network: keras.Model) -> Cost:
    """Returns the cost of a training step.

    Goes through the operations of the forward and the backward pass in order and counts each tensor, in its dtype, from
    the operation that makes it to the last one that reads it. So frozen layers below the lowest trained one cost
    little. TensorFlow runs operations in parallel and computes some in place: `stages/training/memory.py` says by how
    much that differs.
    """

    def forward_and_backward(images: tf.Tensor, values: list[tf.Tensor]) -> list[tf.Tensor]:
        with _with_values(network, values):
            outputs = network(images, training=True)
        trained = {id(variable) for variable in network.trainable_variables}
        pairs = zip(values, network.variables, strict=True)
        trainable = [value for value, variable in pairs if id(variable) in trained]
        return tf.gradients(outputs, trainable, unconnected_gradients="zero")

    return _cost(forward_and_backward, network)


def peak_of_inference(network: keras.Model) -> int:
    """Returns the most bytes that one example takes at once in inference, counted as in `cost_of_step`.

    Caches the result, as tracing a large network takes a second.
    """
    if network in _PEAKS_OF_INFERENCE:
        return _PEAKS_OF_INFERENCE[network]

    def forward(images: tf.Tensor, values: list[tf.Tensor]) -> tf.Tensor:
        with _with_values(network, values):
            return network(images, training=False)

    return _PEAKS_OF_INFERENCE.setdefault(network, _cost(forward, network).peak)


def _cost(function: Callable[..., Any], network: keras.Model) -> Cost:
    return cost_of(tf.function(function, autograph=False).get_concrete_function(*_specs(network, None)).graph)


def cost_of(graph: tf.Graph) -> Cost:
    """Returns the cost of a graph of batches of any size, counted as in `cost_of_step`."""
    operations = graph.get_operations()
    last_read: dict[int, int] = {}
    for index, operation in enumerate(operations):
        for tensor in operation.inputs if operation.type not in _ONLY_SHAPES else ():
            last_read[id(_source(tensor))] = index
    live = 0
    peak = 0
    freed = [0] * len(operations)
    for index, operation in enumerate(operations):
        for tensor in operation.outputs if operation.type not in _VIEWS else ():
            live += _bytes(tensor)
            freed[last_read.get(id(tensor), index)] += _bytes(tensor)
        peak = max(peak, live)
        live -= freed[index]
    return Cost(peak, len(operations))


def _with_values(network: keras.Model, values: list[tf.Tensor]) -> keras.StatelessScope:
    """Replaces the variables of `network` by `values`, as a training step does; they may be on other devices."""
    return keras.StatelessScope(zip(network.variables, values, strict=True))


def _specs(network: keras.Model, examples: int | None) -> Specs:
    shapes = [tf.TensorSpec(variable.shape, variable.dtype) for variable in network.variables]
    return tf.TensorSpec((examples, *network.input_shape[1:]), tf.float32), shapes


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor of which `tensor` is a view."""
    while tensor.op.type in _VIEWS:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def _bytes(tensor: tf.Tensor) -> int:
    """Returns the bytes of one example's part; 0 where the size does not grow with the batch or is unknown."""
    shape = tensor.shape
    if shape.rank is None or not shape.rank or shape[0] is not None or not shape[1:].is_fully_defined():
        return 0
    return int(shape[1:].num_elements()) * tensor.dtype.size


def write_summary(network: keras.Model, path: Path) -> None:
    """Writes Keras' table of all layers, nested ones too, with their shapes and parameters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        network.summary(
            line_length=120, expand_nested=True, show_trainable=True, print_fn=lambda line, **_: print(line, file=file)
        )
