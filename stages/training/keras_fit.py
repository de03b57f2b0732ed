"""The engine of `train=fit`: steps that Keras takes, by the network's own `train_step`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.callbacks import numbers
from stages.data.batches import distributed, training_input
from stages.data.examples import network_input
from stages.errors import UserError
from stages.networks.keras_internals import all_layers, seed_states
from stages.networks.precision import keras_floats
from stages.optimization.ema import EMA
from stages.optimization.loss_scale import LossScale, all_finite
from stages.optimization.optimizers import clipping_of, exclude_from_decay
from stages.optimization.xla import choose_jit, names_xla
from stages.results import Dataset, Model, Strategy
from stages.settings.train import TrainSettings
from stages.tasks.task import Task
from stages.training.engine import Setup
from stages.training.outcome import warn_of_memory
from stages.training.state import TrainState


class KerasFit:
    """Takes the steps that `Model.fit` would take, with the batches of the training loop."""

    no_features: ClassVar[str] = "train=fit uses the training step of Keras"

    def __init__(self, setup: Setup) -> None:
        strategy, settings, optimizer = setup.strategy, setup.settings, setup.optimizer
        self._setup = setup
        self._network = network = setup.model.network.core
        self.scored = self.whole = setup.whole
        self.steps_per_call = settings.steps_per_call or 1
        self.waited: float | None = None  # Keras' function waits for its batches within a step
        if strategy.in_sync > 1 and (name := clipping_of(optimizer)):
            problem = f"train=fit does not support the optimizer's {name} on several replicas"
            why = "Keras clips the gradients of each replica before it sums them"
            raise UserError(f"{problem}: {why}", "", "train=loop")
        warn_of_memory(setup.model, strategy, settings, setup.reporter)
        self.is_compiled = settings.jit == "on" and choose_jit(settings, strategy, setup.model)
        with strategy.distribution.scope(), keras_floats(setup.model.policy):
            exclude_from_decay(optimizer, network, settings.optimizer.decay_exclude)
            functions = setup.task.metric_functions().items()
            metrics = [keras.metrics.MeanMetricWrapper(function, name) for name, function in functions]
            loss_scale = LossScale() if setup.model.policy == "mixed_float16" else None
            network.compile(
                optimizer if loss_scale is None else ScaledOptimizer(optimizer, loss_scale),
                setup.loss,
                weighted_metrics=metrics,
                jit_compile=self.is_compiled,
                auto_scale_loss=False,
            )
            network.optimizer.build(network.trainable_variables)
            frozen = {id(v) for layer in all_layers(network) if not layer.trainable for v in layer.weights}
            buffers = [v for v in network.non_trainable_weights if id(v) not in frozen]
            ema = EMA(settings.optimizer.ema_momentum, network.trainable_variables, buffers)
        self._metrics = [*network.metrics, *metrics]  # the network has the task's only after its first step
        sums = [variable for metric in self._metrics for variable in metric.variables]
        whole = setup.whole.network
        self.state = TrainState.of(strategy, whole, optimizer, ema, loss_scale, sums, seed_states(network))

        @tf.function(autograph=False)
        def move_averages() -> None:
            strategy.distribution.run(lambda: ema.update(optimizer.iterations))

        self._move_averages = move_averages

    @classmethod
    def check(cls, model: Model, dataset: Dataset, strategy: Strategy, settings: TrainSettings) -> None:
        examples, size, replicas = len(dataset.train), settings.batch_size, strategy.in_sync
        last = examples % size or size
        task = model.task.for_training(settings, dataset.train.targets)
        by_target = task.loss.weights(tf.constant(dataset.train.targets[:1]), tf.float32)
        if replicas > 1 and (dataset.train.weights is not None or by_target is not None):
            raise UserError(
                f"train=fit supports weights of examples or classes on 1 replica only, but {replicas} are used: Keras "
                "averages the replicas' means, although their sums of weights differ",
                "one device, or train=loop",
                "train=loop",
            )
        if size % replicas or last % replicas:
            raise UserError(
                f"train=fit requires batches that {replicas} replicas share equally, but train.batch_size={size} and "
                f"the last batch has {last} examples: Keras averages the replicas' means "
                "(github.com/keras-team/keras/issues/19891)",
                f"batch sizes divisible by {replicas}, or train=loop, which is exact for all sizes",
                "train=loop",
            )

    @staticmethod
    def logged(task: Task) -> Sequence[str]:
        return list(task.metric_functions())

    @staticmethod
    def seen_by_callbacks(network: keras.Model) -> keras.Model:
        core: keras.Model = network.core  # the user's own network, as in Keras
        return core

    def begin(self, first_step: int, epochs: int) -> None:
        setup = self._setup
        split = setup.dataset.train

        def example(batch: Example) -> tuple[Any, ...]:
            weights = setup.task.loss.weights(batch.targets, tf.float64)
            inputs = setup.model.network.scaled(network_input(batch.inputs))
            if split.weights is not None:
                weights = batch.weights if weights is None else batch.weights * weights
            return inputs, batch.targets, *(() if weights is None else (weights,))

        batches = training_input(setup.dataset, setup.settings.batch_size, setup.settings.seed, epochs, first_step)
        distribution = setup.strategy.distribution
        self._batches = iter(distributed(distribution, lambda context: batches(context).map(example)))
        self._network.make_train_function()

    def reset(self) -> None:
        for metric in self._metrics:
            metric.reset_state()

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Take `steps` steps; return the network's metrics, or more if its `train_step` returns more."""
        network, setup = self._network, self._setup
        with keras_floats(setup.model.policy):  # Keras creates its losses at the first step
            for _ in range(steps):
                logs = self._take(network.train_function)
        setup.loss.check_use(setup.model, setup.settings)
        is_built = all(getattr(metric, "built", True) for metric in network.metrics)  # also by the network's own step
        results = network.get_metrics_result() if is_built else {}
        return numbers(results if results.keys() == logs.keys() else logs)

    def _take(self, train_function: Any) -> dict[str, Any]:
        """Take a step, and update the EMA unless the step was skipped."""
        if not self.state.ema.values:
            logs: dict[str, Any] = train_function(self._batches)
            return logs
        before = int(self.state.iterations.numpy())
        logs = train_function(self._batches)
        if int(self.state.iterations.numpy()) > before:
            self._move_averages()
        return logs

    def adapt(self, seconds: float) -> None:
        """The settings alone decide on the number of steps per call."""

    def refresh(self) -> None:
        """The weights are here."""

    def is_of_xla(self, error: tf.errors.OpError) -> bool:
        return names_xla(error)


class ScaledOptimizer(keras.optimizers.Optimizer):
    """An optimizer with the loss scale of float16, for the training step of Keras.

    Keras' own `LossScaleOptimizer` looks for overflows before the gradients are summed, so replicas would not skip the
    same steps.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, loss_scale: LossScale) -> None:
        super().__init__(learning_rate=0.0)
        self._scaled = optimizer
        self._loss_scale = loss_scale

    def build(self, variables: list[keras.Variable]) -> None:
        self._scaled.build(variables)
        super().build(variables)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * tf.cast(self._loss_scale.value, loss.dtype)

    def apply(self, grads: Sequence[tf.Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        scale = tf.convert_to_tensor(self._loss_scale.value)
        gradients = [tf.cast(tf.cast(gradient, scale.dtype) / scale, gradient.dtype) for gradient in grads]
        overflows = tf.cast(tf.logical_not(all_finite(gradients)), tf.float32)
        overflows = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, overflows)

        def update(gradients: Sequence[tf.Tensor]) -> None:
            self._scaled.apply(gradients, trainable_variables)

        self._loss_scale.update_if(tf.equal(overflows, 0.0), update, gradients)

    @property
    def variables(self) -> list[keras.Variable]:
        return list(self._scaled.variables)

    @property
    def iterations(self) -> keras.Variable:
        return self._scaled.iterations

    @property
    def learning_rate(self) -> Any:
        return self._scaled.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self._scaled.learning_rate = learning_rate
