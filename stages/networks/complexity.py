"""FLOPs, sizes of layer outputs, and summary of a network."""

import math
from functools import partial
from pathlib import Path

import keras
import tensorflow as tf

from stages.networks.keras_internals import graph_of, nodes_of

SCORING_BYTES = 2**28
"""Limit for the outputs of two layers in a batch of validation, evaluation or features."""


def flops(network: keras.Model) -> int:
    """Floating-point operations of `network` for one example in inference, a multiply-add counted as two.

    TensorFlow's own counts of the operations in the graph: of convolutions, products, sums and pooling, but not of
    activations for which it has no count.

    Raises:
        Exception: of any kind, where the network cannot be traced or profiled.
    """
    from tensorflow.python.framework import ops  # what `tf.compat.v1.profiler` asks
    from tensorflow.python.util import deprecation

    one = keras.tree.map_structure(lambda given: tf.TensorSpec((1, *given.shape[1:]), given.dtype), network.input)
    graph = tf.function(partial(network, training=False), autograph=False).get_concrete_function(one).graph
    with deprecation.silence():  # their warning that they are of TensorFlow 1 is of no use to a user
        counts = [ops.get_stats_for_node_def(graph, each.node_def, "flops").value for each in graph.get_operations()]
    return sum(int(count or 0) for count in counts)


def output_bytes(network: keras.Model) -> list[int]:
    """Bytes of each layer's output for one example; of a network without trained weights, the largest alone.

    Layers inside a subclassed network are not counted.
    """
    graph = graph_of(network)
    sizes: list[int] = []
    for node in nodes_of(graph) if graph is not None else ():
        inner = output_bytes(node.operation) if isinstance(node.operation, keras.Model) else []
        if inner:
            sizes += inner if node.operation.trainable_weights else [max(inner)]
        else:
            shapes = [(tensor.shape[1:], tf.as_dtype(tensor.dtype).size) for tensor in node.output_tensors]
            sizes += [math.prod(shape) * size for shape, size in shapes if None not in shape]
    return sizes


def scoring_batch(network: keras.Model, replicas: int = 1) -> int:
    """Number of examples that fit into SCORING_BYTES at a time, over all replicas; one a replica at least.

    It depends on the network alone, not on free memory, so that every run has the same batches.
    """
    return max(SCORING_BYTES // max(2 * max(output_bytes(network), default=0), 1), replicas)


def write_summary(network: keras.Model, path: Path) -> None:
    """Write Keras' table of all layers, nested ones too, with their shapes and parameters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        network.summary(
            line_length=120, expand_nested=True, show_trainable=True, print_fn=lambda line, **_: print(line, file=file)
        )
