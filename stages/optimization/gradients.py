"""The loss of a batch and its gradients, as a function of the values of a model's variables.

It does not read or write variables. So XLA can compile it under every strategy (compiled code cannot access a variable
on a different device: "Trying to access resource … located in device"), and every replica, worker or part of a batch
calls it with its own values.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from stages.augmentations.transforms import Example
from stages.data.batches import share_of_replica
from stages.data.columns import blocks_of
from stages.data.examples import network_input, target_tensor
from stages.data.split import Split
from stages.errors import UserError
from stages.networks.keras_internals import penalties_in, seed_states
from stages.networks.random_layers import FIXED_OPERATIONS, RANDOM_OPERATIONS, drawing_for_rows
from stages.optimization.xla import for_usual_rows, has_synchronized_layers, names_xla
from stages.reporter import Reporter
from stages.results import Model
from stages.seeds import derive
from stages.settings.train import TrainSettings
from stages.tasks.task import Task


class Result(NamedTuple):
    """The result of a batch."""

    gradients: list[tf.Tensor]
    """The gradients of the summed loss times the scale, one per trained variable, in its shape and dtype."""
    sums: dict[str, tf.Tensor]
    """`loss`, `examples` (the sum of their weights) and the sums of the task's metrics."""
    buffers: list[tf.Tensor]
    """The new values of `Gradients.buffers`."""
    metrics: list[tf.Tensor]
    """The increase of each of `Gradients.metrics`."""


class Values(NamedTuple):
    """The variables of a network, or their values in a replica."""

    trained: list[Any]
    """The weights."""
    buffers: list[Any]
    """The variables that a step may change without training them."""
    metrics: list[Any]
    """The variables of the network's own metrics."""
    seeds: list[Any]
    """The states of random layers, see `seed_states`."""


class Gradients:
    """Computes losses and gradients of a model. Create it outside the strategy's scope, and call it in a replica."""

    dtype: tf.DType
    """The dtype of weights, losses and counts: float32, or float64 for a network in float64."""
    buffers: list[keras.Variable]
    """Variables that a step changes without training them, such as the statistics of BatchNorm."""
    metrics: list[keras.Variable]
    """Variables of the network's own metrics."""
    xla_rows: int | None
    """See `rows_for_xla`; None: XLA compiles nothing."""
    is_compiled: bool
    """Whether XLA compiles the gradients by themselves, and not as a part of the whole step."""

    def __init__(  # each is another fact of a step
        self, model: Model, task: Task, settings: TrainSettings, batch: Example, replicas: int, xla_rows: int | None
    ) -> None:
        """Trace the gradients.

        Args:
            model: The model.
            task: The task with the loss of the training.
            settings: The settings of the training.
            batch: The shapes and dtypes of a batch.
            replicas: The number of replicas that share a batch.
            xla_rows: See `rows_for_xla`; None: XLA compiles nothing.
        """
        network = model.network
        seed = derive(settings.seed, "dropout")
        self.model = model
        self._task = task
        self._parts = settings.optimizer.accumulation
        self.dtype = tf.float64 if model.policy == "float64" else tf.float32
        seeds = seed_states(network)
        self._seeds = [derive(seed, index) % 2**30 for index in range(len(seeds))]
        random = {id(variable) for variable in seeds}
        untrained = [v for v in network.non_trainable_variables if id(v) not in random]
        self.metrics = [variable for metric in model.metrics for variable in metric.variables]
        self._variables = Values(network.trainable_variables, untrained, self.metrics, seeds)
        self._changed: list[int] = []
        # Traced once and on one device: inside a replica, Keras divides its own losses (`Loss`, `add_loss`) by the
        # number of replicas, but not losses that a user wrote.
        signature = (
            batch._replace(weights=tf.TensorSpec([None], self.dtype)),
            tf.nest.map_structure(lambda variable: tf.TensorSpec(variable.shape, variable.dtype), self._variables),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([], self.dtype),
        )
        self.xla_rows = xla_rows
        self.is_compiled = xla_rows is not None
        traced = tf.function(self._compute, autograph=False)
        if xla_rows is None:
            self._function = traced.get_concrete_function(*signature)
        else:

            def trace_once(*values: Any) -> Result:
                # Traced in here, where TensorFlow makes gradients of loops that XLA can compile, such as an LSTM's.
                self._function = traced.get_concrete_function(*signature)
                result: Result = self._function(*values)
                return result

            compiled = tf.function(trace_once, jit_compile=True, autograph=False)
            self._compiled = compiled.get_concrete_function(*signature)
        self.buffers = [untrained[index] for index in self._changed]
        operations = self._function.graph.get_operations()
        self._draws = [op.name for op in operations if op.op_def.is_stateful and "seed2" in op.node_def.attr]
        drawing = [op for op in operations if op.type.startswith(RANDOM_OPERATIONS) and op.type not in FIXED_OPERATIONS]
        self._others_with_xla = [op.name for op in drawing] if xla_rows is not None else []
        # A synchronized BatchNorm reduces over replicas, which a function within a function cannot.
        if replicas > 1 and has_synchronized_layers(network):
            if model.has_own_loss:
                raise UserError(
                    "a network with a synchronized BatchNorm and a custom compute_loss requires 1 replica: on several, "
                    "Keras divides its own part of the loss by the number of replicas, but not the custom part",
                    "only one of the two, or one replica",
                    "strategy=one_device",
                )
            self._function = self._compute

    def __call__(self, batch: Example, step: tf.Tensor, first_row: tf.Tensor, scale: tf.Tensor) -> Result:
        """Return the result of a replica's batch.

        Args:
            batch: The batch.
            step: The step of the run, int64 [].
            first_row: The first row of the batch in its global batch, int64 [].
            scale: The factor of the summed loss, [] of `dtype`.
        """
        batch = batch._replace(weights=tf.cast(batch.weights, self.dtype))
        read = self._variables._replace(seeds=[])
        values = tf.nest.map_structure(lambda variable: tf.convert_to_tensor(variable.value), read)
        values = values._replace(seeds=self._seeds_of(step))
        total: Result | None = None
        for part in range(self._parts):
            part_of_batch, first = self._part(batch, part)
            previous = [] if total is None else total.gradients  # in sequence, or no memory would be saved
            with tf.control_dependencies(previous):
                result = self._result(part_of_batch, values, first_row + first, scale)
            for index, value in zip(self._changed, result.buffers, strict=True):
                values.buffers[index] = value
            total = result if total is None else _added(total, result)
        assert total is not None
        return total

    def _result(self, batch: Example, values: Values, first_row: tf.Tensor, scale: tf.Tensor) -> Result:
        """Return the result of a part of a batch, by XLA if the part is of a usual size."""
        arguments = batch, values, first_row, scale
        function: Callable[..., Result] = self._function
        if self.is_compiled:
            function = for_usual_rows(self._compiled, self._function, self.xla_rows or 0)
        return function(*arguments)

    def is_of_xla(self, error: tf.errors.OpError) -> bool:
        """Return whether XLA, and not the network, raised `error`, which a call has raised.

        The message names XLA if an operation cannot be compiled. Other errors of XLA, such as that for a shape that it
        does not support, need not: they are XLA's if the same function without XLA works. It reads and writes no
        variable, so trying it changes nothing.
        """
        if self.xla_rows is None or names_xla(error):
            return self.xla_rows is not None
        if not isinstance(error, tf.errors.UnimplementedError):  # it may be about the data
            return False
        inputs = self._function.structured_input_signature[0]
        zeros = tf.nest.map_structure(lambda spec: tf.zeros([size or 1 for size in spec.shape], spec.dtype), inputs)
        try:
            self._function(*zeros)
        except tf.errors.OpError:
            return False
        return True

    def warn_of_draws(self, reporter: Reporter) -> None:
        """Warn about random numbers that change when a run resumes, or with XLA."""
        if self._others_with_xla:
            reporter.warn(
                f"{self._others_with_xla[0]} draws different random numbers with train.jit=on and with train.jit=off. "
                "Functions of keras.random do not"
            )
        if self._draws:
            reporter.warn(
                f"{self._draws[0]} draws different random numbers in each replica and after resuming. "
                "Functions of keras.random do not"
            )

    def mean_weight(self, split: Split) -> float:
        """Return the mean weight of the examples of the training `split`, times the weights of their classes."""
        weights = np.ones(1) if split.weights is None else split.weights
        if self._task.loss.weights(target_tensor(split.targets[:1]), tf.float64) is not None:
            blocks = (target_tensor(block) for block in blocks_of(split.targets))
            weights = weights * np.concatenate([np.asarray(self._task.loss.weights(one, tf.float64)) for one in blocks])
        return float(np.mean(weights)) or 1.0

    def _part(self, batch: Example, part: int) -> tuple[Example, tf.Tensor]:
        """Return a part of the batch, for accumulation, and its first row in the batch."""
        if self._parts == 1:
            return batch, tf.constant(0, tf.int64)
        count = tf.shape(batch.targets, tf.int64)[0]
        first, end, weight = share_of_replica(count, part, self._parts)
        own = tf.nest.map_structure(lambda values: tf.gather(values, tf.range(first, end)), batch)
        return own._replace(weights=own.weights * tf.cast(weight, self.dtype)), first

    def _seeds_of(self, step: tf.Tensor) -> list[tf.Tensor]:
        """Return states of the random layers that are a function of (seed, step), so that a run can start at any step.

        The state of a Keras SeedGenerator counts its calls instead.
        """
        return [
            tf.cast(tf.stack([tf.constant(seed, tf.int64), step * 256]), variable.dtype)
            for variable, seed in zip(self._variables.seeds, self._seeds, strict=True)
        ]

    def _compute(self, batch: Example, values: Values, first_row: tf.Tensor, scale: tf.Tensor) -> Result:
        inputs, targets, weights = network_input(batch.inputs), batch.targets, batch.weights
        network, task = self.model.network, self._task
        by_target = task.loss.weights(targets, self.dtype)
        if by_target is not None:
            weights *= by_target
        pairs = zip(tf.nest.flatten(self._variables), tf.nest.flatten(values), strict=True)
        examples = tf.reduce_sum(weights)
        with keras.StatelessScope(pairs, collect_losses=True) as scope, drawing_for_rows(first_row, targets):
            outputs = network(inputs, training=True)
            if self.model.has_own_loss:
                loss = network.compute_loss(x=inputs, y=targets, y_pred=outputs, sample_weight=by_target)
                loss *= tf.cast(examples, loss.dtype)
            else:
                losses = task.loss.of_each(targets, outputs)
                loss = tf.reduce_sum(losses * tf.cast(weights, losses.dtype))
                for penalty in penalties_in(scope, network):  # counts once, however many replicas share the batch
                    loss += tf.cast(penalty, loss.dtype) * tf.cast(examples, loss.dtype)
        for weight, value in zip(self._variables.trained, values.trained, strict=True):
            if scope.get_current_value(weight) is not value:
                raise UserError(
                    f"a layer assigns the trainable weight {weight.path} in call, which train=loop would ignore",
                    "layers that do not assign trainable weights",
                    "train=fit",
                )
        buffers = [scope.get_current_value(variable) for variable in self._variables.buffers]
        self._changed = [index for index, value in enumerate(buffers) if value is not values.buffers[index]]
        sums = {"loss": tf.cast(loss, self.dtype), "examples": examples, **task.add_all(targets, outputs, weights)}
        # Rows that several replicas hold count in part, in the network's own metrics too.
        part = examples / tf.cast(tf.shape(targets)[0], self.dtype)
        increases = [
            tf.cast(tf.cast(scope.get_current_value(metric) - before, self.dtype) * part, before.dtype)
            for metric, before in zip(self.metrics, values.metrics, strict=True)
        ]
        # tf.gradients, not a tape: it places each layer's backward pass on the device of its forward pass.
        gradients = tf.gradients(loss * tf.cast(scale, loss.dtype), values.trained, unconnected_gradients="zero")
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return Result(dense, sums, [buffers[index] for index in self._changed], increases)


def _added(a: Result, b: Result) -> Result:
    total: Result = tf.nest.map_structure(operator.add, a._replace(buffers=[]), b._replace(buffers=[]))
    return total._replace(buffers=b.buffers)
