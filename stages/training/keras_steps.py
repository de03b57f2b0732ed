"""Steps that Keras takes, by the network's own `train_step`, for `train=fit`."""

import inspect
from typing import Any

import keras
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.callbacks import numbers
from stages.data.batches import distributed, training_input
from stages.data.examples import network_input
from stages.errors import UserError
from stages.networks.keras_internals import all_layers, seed_states
from stages.networks.precision import keras_floats
from stages.optimization.exact_apply import EMA, LossScale
from stages.optimization.gradients import names_xla
from stages.optimization.optimizers import clipping_of, exclude_from_decay
from stages.results import Dataset, Model, Strategy
from stages.settings.train import FitSettings, TrainSettings
from stages.tasks.task import Task


class TaskLoss(keras.losses.Loss):
    """The loss of a task for `compile`: of a function, Keras gives targets the rank of the outputs, [b, 1] of [b].

    As in the loop, what is weighted is divided by the sum of the weights.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(reduction="mean_with_sample_weight")
        self._task = task
        self._is_used = False

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, [b]."""
        self._is_used = True
        return self._task.loss_of_each(y_true, y_pred)

    def check_use(self, model: Model, settings: TrainSettings) -> None:
        """Refuse settings that a step or a loss of the network's own, once traced, has passed over."""
        network = model.network.core
        if not (model.has_own_loss or isinstance(settings, FitSettings)):
            return
        parameters = inspect.signature(network.compute_loss).parameters
        takes_weights = any(one.name == "sample_weight" or one.kind is one.VAR_KEYWORD for one in parameters.values())
        used = {
            "train.class_weights=null": not settings.class_weights or takes_weights,
            "train.label_smoothing=0": not settings.label_smoothing or self._is_used,
            "task.loss={}": self._task.own_loss is None or self._is_used,
        }
        for fix in (fix for fix, is_used in used.items() if not is_used):
            raise UserError(
                f"{fix.partition('=')[0]} has no effect, as {type(network).__name__} computes its own loss",
                "only one of the two, or a compute_loss that accepts sample_weight and calls super().compute_loss",
                fix,
            )


class KerasStep:
    """The network compiled for Keras, which takes the steps as `Model.fit` would.

    It has what a training asks of `stages.optimization.train_step.Step` and of `stages.training.loop.Loop`.
    """

    waited = None  # Keras' function waits for its batches within a step

    def __init__(
        self, strategy: Strategy, model: Model, task: Task, optimizer: keras.optimizers.Optimizer, settings: FitSettings
    ) -> None:
        self._strategy = strategy
        self._model = model
        self._task = task
        self._settings = settings
        self.network = network = model.network.core
        self.steps_per_call = settings.steps_per_call or 1
        if strategy.in_sync > 1 and (name := clipping_of(optimizer)):
            problem = f"train=fit does not support the optimizer's {name} on several replicas"
            why = "Keras clips the gradients of each replica before it sums them"
            raise UserError(f"{problem}: {why}", "", "train=loop")
        with strategy.distribution.scope(), keras_floats(model.policy):
            exclude_from_decay(optimizer, network, settings.optimizer.decay_exclude)
            self.loss_scale = LossScale(optimizer) if model.policy == "mixed_float16" else None
            functions = task.metric_functions().items()
            metrics = [keras.metrics.MeanMetricWrapper(function, name) for name, function in functions]
            self._loss = TaskLoss(task)
            network.compile(
                self.loss_scale or optimizer,
                self._loss,
                weighted_metrics=metrics,
                jit_compile=settings.jit == "on",
                auto_scale_loss=False,
            )
            network.optimizer.build(network.trainable_variables)
            self.seeds = seed_states(network)
            frozen = {id(v) for layer in all_layers(network) if not layer.trainable for v in layer.weights}
            self.ema = EMA(optimizer, [v for v in network.non_trainable_weights if id(v) not in frozen])
        self._metrics = [*network.metrics, *metrics]  # those of the task are not the network's before its first step
        self.sums = [variable for metric in self._metrics for variable in metric.variables]

    def is_of_xla(self, error: tf.errors.OpError) -> bool:
        """Return whether XLA, and not the network, raised `error`: its message says so."""
        return names_xla(error)

    def reset(self) -> None:
        """Reset the metrics."""
        for metric in self._metrics:
            metric.reset_state()

    def begin(self, dataset: Dataset, settings: TrainSettings, first_step: int) -> "KerasStep":
        """Take the batches of the training loop from `first_step` on."""

        def example(batch: Example) -> tuple[Any, ...]:
            weights = self._task.weights(batch.targets, tf.float64)
            inputs = self._model.network.scaled(network_input(batch.inputs))
            if dataset.train.weights is not None:
                weights = batch.weights if weights is None else batch.weights * weights
            return inputs, batch.targets, *(() if weights is None else (weights,))

        batches = training_input(dataset, settings.batch_size, settings.seed, settings.epochs, first_step)
        self._batches = iter(distributed(self._strategy.distribution, lambda context: batches(context).map(example)))
        self.network.make_train_function()
        return self

    def adapt(self, seconds: float) -> None:
        """The steps of a call are as asked."""

    def run(self, first_step: int, steps: int) -> dict[str, float]:
        """Take `steps` steps; return the network's metrics, or what its `train_step` returns where that is more."""
        network = self.network
        with keras_floats(self._model.policy):  # Keras makes its losses at the first step
            for _ in range(steps):
                logs = network.train_function(self._batches)
        self._loss.check_use(self._model, self._settings)
        is_built = all(getattr(metric, "built", True) for metric in network.metrics)  # by the network's own step, too
        results = network.get_metrics_result() if is_built else {}
        return numbers(results if results.keys() == logs.keys() else logs)
