"""TensorFlow and Keras imported, the digits' network built and traced, and one step taken."""

import keras
import numpy as np
import tensorflow as tf

from benchmarks.baselines.networks import convnet

network, optimizer = convnet((8, 8, 1)), keras.optimizers.Adam()
optimizer.build(network.trainable_variables)
images, labels = tf.constant(np.zeros((64, 8, 8, 1), np.float32)), tf.constant(np.zeros(64, np.int32))


@tf.function
def step() -> tf.Tensor:
    with tf.GradientTape() as tape:
        outputs = network(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
    variables = network.trainable_variables
    optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)
    return loss


step().numpy()
