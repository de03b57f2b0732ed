"""FLOPs, memory and summary of a network."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

_ONLY_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
"""Operations that want to know how large a tensor is, which TensorFlow remembers without its contents."""

_VIEWS = ("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient")
"""Operations that give a tensor another name or shape."""

_PEAKS_OF_INFERENCE: WeakKeyDictionary[keras.Model, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Cost:
    """peak: bytes of one example at the worst moment, without weights and the like; operations: of the graph."""

    peak: int
    operations: int


Specs = tuple[tf.TensorSpec, list[tf.TensorSpec]]


def flops(network: keras.Model) -> int:
    """Returns the floating-point operations of one image's way through `network`, a multiply-add counted as two.

    TensorFlow's own counts of the operations in the graph: of convolutions, products, sums and pooling, but not of the
    activations that it has no count for. Inference, a batch of one.

    Raises:
        Exception: of whatever kind, where the network cannot be traced or the profiler does not know what to do.
    """

    def forward(images: tf.Tensor, values: list[tf.Tensor]) -> tf.Tensor:
        with _holding(network, values):
            return network(images, training=False)

    graph = tf.function(forward, autograph=False).get_concrete_function(*_specs(network, 1)).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder(tf.compat.v1.profiler.ProfileOptionBuilder.float_operation())
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")  # that the profiler is of TensorFlow 1 is nothing a user could change
    try:
        counts = tf.compat.v1.profiler.profile(graph, options=options.with_empty_output().build())
    finally:
        logger.setLevel(before)
    return int(counts.total_float_ops)


def cost_of_step(network: keras.Model) -> Cost:
    """Returns what a training step costs.

    Goes through the operations of the forward and the backward pass in their order and counts each tensor, in the dtype
    that it has, from the operation that makes it to the last one that reads it. So frozen layers below the lowest that
    is trained cost little. TensorFlow runs operations side by side and computes some in place:
    `stages/training/memory.py` says how far that is off.
    """

    def both(images: tf.Tensor, values: list[tf.Tensor]) -> list[tf.Tensor]:
        with _holding(network, values):
            outputs = network(images, training=True)
        trained = {id(variable) for variable in network.trainable_variables}
        trainable = [value for value, own in zip(values, network.variables, strict=True) if id(own) in trained]
        return tf.gradients(outputs, trainable, unconnected_gradients="zero")

    return _cost(both, network)


def peak_of_inference(network: keras.Model) -> int:
    """Returns how many bytes one example takes at the worst moment of inference, counted as in `cost_of_step`.

    Remembers the answer, as tracing a large network takes a second.
    """
    if network in _PEAKS_OF_INFERENCE:
        return _PEAKS_OF_INFERENCE[network]

    def forward(images: tf.Tensor, values: list[tf.Tensor]) -> tf.Tensor:
        with _holding(network, values):
            return network(images, training=False)

    return _PEAKS_OF_INFERENCE.setdefault(network, _cost(forward, network).peak)


def _cost(function: Callable[..., Any], network: keras.Model) -> Cost:
    graph = tf.function(function, autograph=False).get_concrete_function(*_specs(network, None)).graph
    operations = graph.get_operations()
    last_read: dict[int, int] = {}
    for index, operation in enumerate(operations):
        for tensor in operation.inputs if operation.type not in _ONLY_SHAPES else ():
            last_read[id(_source(tensor))] = index
    taken, peak, until = 0, 0, [0] * len(operations)
    for index, operation in enumerate(operations):
        for tensor in operation.outputs if operation.type not in _VIEWS else ():
            taken += _bytes(tensor)
            until[last_read.get(id(tensor), index)] += _bytes(tensor)
        peak = max(peak, taken)
        taken -= until[index]
    return Cost(peak, len(operations))


def _holding(network: keras.Model, values: list[tf.Tensor]) -> keras.StatelessScope:
    """Gives the variables of `network` values, as in a training step: they may be on servers or on several devices."""
    return keras.StatelessScope(zip(network.variables, values, strict=True))


def _specs(network: keras.Model, examples: int | None) -> Specs:
    shapes = [tf.TensorSpec(variable.shape, variable.dtype) for variable in network.variables]
    return tf.TensorSpec((examples, *network.input_shape[1:]), tf.float32), shapes


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """Returns what `tensor` is another view of."""
    while tensor.op.type in _VIEWS:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def _bytes(tensor: tf.Tensor) -> int:
    """Returns the bytes of one example's part; 0 for what does not grow with the batch, or has no known shape."""
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
