"""What a network consists of and what it computes."""

from pathlib import Path

import keras
import tensorflow as tf


def flops(network: keras.Model) -> int:
    """Returns the floating-point operations of one picture's way through `network`, a multiply-add counted as two.

    TensorFlow's own counts of the operations in the graph: of convolutions, products, sums and pooling, but not of the
    activations that it has no count for. Inference, a batch of one.

    Raises:
        Exception: of whatever kind, where the network cannot be traced or the profiler does not know what to do.
    """
    variables = network.variables

    def forward(images: tf.Tensor, values: list[tf.Tensor]) -> tf.Tensor:
        # Of values, as for the training step: variables may be on servers, or spread over several devices.
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return network(images, training=False)

    shapes = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
    traced = tf.function(forward, autograph=False).get_concrete_function(
        tf.TensorSpec((1, *network.input_shape[1:]), tf.float32), shapes
    )
    options = tf.compat.v1.profiler.ProfileOptionBuilder(tf.compat.v1.profiler.ProfileOptionBuilder.float_operation())
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")  # that the profiler is of TensorFlow 1 is nothing a user could change
    try:
        found = tf.compat.v1.profiler.profile(traced.graph, options=options.with_empty_output().build())
    finally:
        logger.setLevel(before)
    return int(found.total_float_ops)


def write_summary(network: keras.Model, path: Path) -> None:
    """Writes Keras' table of all layers, nested ones too, with their shapes and parameters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        network.summary(
            line_length=120, expand_nested=True, show_trainable=True, print_fn=lambda line, **_: print(line, file=file)
        )
