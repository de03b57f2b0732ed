"""The training step: once for every synchronous strategy, k of them in one compiled function."""

import keras
import numpy as np
import tensorflow as tf

from stages.batches import Batch
from stages.loss_scale import LossScale
from stages.losses import cross_entropy
from stages.results import Model, Strategy
from stages.seeds import derive
from stages.totals import Totals
from stages.update import Update


class Loop:
    """Trains `model` with `optimizer`. `totals` sums loss, right answers and examples since they were last reset.

    The gradient of a step is that of the mean loss over the global batch, whatever share each replica has: replicas
    sum their gradients and their example counts in one reduction, and divide the one by the other. Keras averages the
    means of the replicas, which is another number as soon as the shares differ.
    """

    def __init__(
        self, strategy: Strategy, model: Model, optimizer: keras.optimizers.Optimizer, batch_size: int, seed: int
    ) -> None:
        self._strategy = strategy.distribution
        self._network = model.network
        self._loss = cross_entropy(model.outputs)
        with self._strategy.scope():
            self.totals = Totals(loss=(), correct=(), examples=())
            self.loss_scale = LossScale(batch_size) if model.policy == "mixed_float16" else None
            optimizer.build(model.network.trainable_variables)
        self._update = Update(optimizer, model.network, self.loss_scale)
        self._dropout_seed = derive(seed, "dropout")
        self._random_states = [v for v in model.network.variables if v.path.endswith("seed_generator_state")]
        self._compiled = tf.function(self._steps, reduce_retracing=True)

    def run(self, batches: tf.data.Iterator, first_step: int, steps: int) -> dict[str, float]:
        """Runs `steps` steps, the first of which is the run's `first_step`; returns what `means` gives."""
        self._compiled(batches, tf.constant(first_step, tf.int64), tf.constant(steps, tf.int64))
        return self.means()

    def means(self) -> dict[str, float]:
        """Returns the mean `loss` and `accuracy` of the examples that `totals` hold; nan for none."""
        sums = self.totals.read()
        with np.errstate(invalid="ignore"):
            return {
                "loss": float(sums["loss"] / sums["examples"]),
                "accuracy": float(sums["correct"] / sums["examples"]),
            }

    def _steps(self, batches: tf.data.Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> None:
        for offset in tf.range(steps):
            self._strategy.run(self._step, args=(next(batches), first_step + offset))

    def _step(self, batch: Batch, step: tf.Tensor) -> None:
        images, labels, weights = batch
        replica = tf.distribute.get_replica_context()
        self._seed_dropout(step, replica.replica_id_in_sync_group)
        examples = tf.reduce_sum(weights)
        with tf.GradientTape() as tape:
            outputs = self._network(images, training=True)
            loss = tf.reduce_sum(self._loss(labels, outputs) * weights)
            if self._network.losses:  # a weight penalty counts once, however many replicas share the batch
                loss += tf.add_n(self._network.losses) * examples
            scale = 1.0 if self.loss_scale is None else self.loss_scale.factor()
            scaled = loss * scale
        gradients = tape.gradient(scaled, self._update.variables, unconnected_gradients="zero")
        *summed, count = replica.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, examples])
        means = [gradient / tf.cast(count * scale, gradient.dtype) for gradient in summed]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in means])
        replica.merge_call(self._update, args=(means, finite))
        self._add(loss, outputs, labels, weights, finite)

    def _add(
        self, loss: tf.Tensor, outputs: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, finite: tf.Tensor
    ) -> None:
        right = tf.equal(tf.argmax(outputs, axis=-1, output_type=labels.dtype), labels)
        sums = {
            "loss": loss,
            "correct": tf.reduce_sum(tf.cast(right, tf.float32) * weights),
            "examples": tf.reduce_sum(weights),
        }
        if self.loss_scale is not None:  # a skipped step has taught nothing; without scaling, NaN must be seen
            sums = {name: tf.where(finite, value, 0.0) for name, value in sums.items()}
        self.totals.add(**sums)

    def _seed_dropout(self, step: tf.Tensor, replica: tf.Tensor | int) -> None:
        """Makes every random layer a function of (seed, step, replica), so that a run can start at any step.

        A Keras SeedGenerator counts its own calls otherwise, the same in every replica.
        """
        for layer, state in enumerate(self._random_states):
            key = tf.cast(replica, tf.int64) * 1009 + derive(self._dropout_seed, layer) % 2**30
            state.assign(tf.cast(tf.stack([key, step * 256]), state.dtype))
