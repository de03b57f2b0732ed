"""Bare compute: the steps of a training on batches that stay where they are, without input, metrics or reports."""

from collections.abc import Callable

import keras
import tensorflow as tf


class Bare:
    """Training steps by Adam, which change the weights, and inference of `network`.

    batch: of training; scored: of inference.
    """

    def __init__(self, network: keras.Model, batch: int, scored: int) -> None:
        self.network, self.strategy = network, network.distribute_strategy
        with self.strategy.scope():
            self.optimizer = keras.optimizers.Adam()
            self.optimizer.build(network.trainable_variables)
        self.train = self._repeated(self._step, batch)
        self.infer = self._repeated(self._loss, scored)

    def _repeated(self, work: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], batch: int) -> Callable[[int], float]:
        # Two batches in turns, and the sum of their losses: TensorFlow can neither take work out of the loop nor leave
        # it out as unused.
        images = tf.random.uniform([2, batch, *self.network.input_shape[1:]], 0, 255)
        labels = tf.random.uniform([batch], 0, self.network.output_shape[-1], tf.int32)

        @tf.function
        def times(count: tf.Tensor) -> tf.Tensor:
            total = 0.0
            for number in tf.range(count):
                total += work(images[number % 2], labels)
            return total

        return lambda count: float(self.strategy.run(times, args=(tf.constant(count),)))

    def _step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self.network.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self.network(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
        self.optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)
        return loss

    def _loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        outputs = self.network(images, training=False)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
