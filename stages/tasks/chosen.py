"""The task as a configuration has it: the one that a target asks for, with the user's choices."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np
import tensorflow as tf

from stages.data.columns import Column, held
from stages.errors import UserError
from stages.metrics.keras_metric import KerasMetric
from stages.metrics.metric import Metric
from stages.targets import imported, made
from stages.tasks.classification import ClassHead, ProbabilityHead, classification
from stages.tasks.parts import Head, Loss
from stages.tasks.quantiles import with_quantiles
from stages.tasks.task import Task

if TYPE_CHECKING:
    from stages.settings.train import TaskSettings, TrainSettings


@dataclasses.dataclass(frozen=True)
class CustomLoss(Loss):
    """A loss of Keras or of the user, in place of the standard loss of the task."""

    standard: Loss
    """The loss that the task has without it; it weighs the examples by their classes."""

    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = dataclasses.field(compare=False)
    """Returns the loss of each example, [b], of targets and outputs, [b, k] each."""

    takes_logits: bool = False
    """Whether its `from_logits` is true, so it receives what the network returns."""

    entry: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """`_target_` and arguments."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Loss`."""
        return self.entry

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`."""
        return self.function(*self.head.for_keras_loss(targets, outputs, self.takes_logits))

    def weights(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor | None:
        """See `Loss`."""
        return self.standard.weights(targets, dtype)

    def with_head(self, head: Head) -> Self:
        """See `Loss`.

        Raises:
            UserError: If the network returns probabilities, but the loss expects logits.
        """
        if self.takes_logits and head != self.head:
            raise UserError(
                "task.loss.from_logits=true does not match model.outputs=probabilities",
                "logits or probabilities in both settings",
                "task.loss.from_logits=false",
            )
        return dataclasses.replace(self, head=head, standard=self.standard.with_head(head))

    def for_training(self, settings: TrainSettings, targets: Column) -> Self:
        """See `Loss`."""
        if settings.label_smoothing:
            raise UserError(
                f"train.label_smoothing={settings.label_smoothing} has no effect with a custom loss (task.loss)",
                "only one of the two settings",
                "train.label_smoothing=0",
            )
        return dataclasses.replace(self, standard=self.standard.for_training(settings, targets))


TRIED = 16
"""Training examples on which losses and metrics are tried."""


def chosen_task(found: Task, settings: TaskSettings, targets: Column) -> Task:
    """Return the task of a network.

    Args:
        found: The task of the data set.
        settings: The user's choices.
        targets: The targets of the training split.

    Raises:
        UserError: If the target does not fit, or a loss, a metric or a class cannot be used.
    """
    found = found.of_targets(targets)
    if settings.kind not in ("auto", found.kind):
        raise UserError(
            f"task={settings.kind} does not match the target ({', '.join(found.names[:5])}), which needs "
            f"task={found.kind}",
            f"task={found.kind}, or a different target",
            f"task={found.kind}",
        )
    if getattr(settings, "single_logit", False):
        if not isinstance(found.head, ClassHead) or len(found.names) != 2:
            there = f"{len(found.names)} {found.targets.plural}"
            if there == "2 classes":
                there += f", and needs task={found.kind}"
            problem = f"task.single_logit=true requires 2 classes, but the data has {there}"
            raise UserError(problem, "", "task.single_logit=false")
        single = classification(found.names, single_logit=True)
        found = dataclasses.replace(single, view=dataclasses.replace(found.view, shown=single.view.shown))
    if quantiles := getattr(settings, "quantiles", []):
        found = with_quantiles(found, quantiles)
    if settings._target_ is not None:
        found = _own_task(found, settings._target_)
    some = held(targets, TRIED)
    if settings.loss:
        found = dataclasses.replace(found, loss=own_loss(settings.loss, found, some))
    for place, entry in enumerate(settings.metrics):
        found = found.with_metrics(own_metric(entry, place, found, some))
    return found


def _own_task(found: Task, target: str) -> Task:
    """Return the task that the function at `target` makes of the one that the targets need."""
    place, fix = f"task._target_={target}", "task._target_=null"
    expected = "a function of a stages.tasks.task.Task that returns one, such as dataclasses.replace(task, loss=...)"
    task: Task = made(Task, target, place, expected, fix, found)
    named = dataclasses.replace(task, name=target.rpartition(".")[2]) if task.name == found.name else task
    if len(set(named.measured)) < len(named.measured):
        raise UserError(f"{place}: two metrics have the same name", "a different name for each metric", fix)
    return named


def _takes_logits(callee: Any, attributes: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return `from_logits` as `arguments` have it, else by the attributes of what was made, or its own default."""
    own = inspect.signature(callee).parameters.get("from_logits")
    return bool({"from_logits": own is not None and own.default, **attributes, **arguments}["from_logits"])


HALF = 8
"""Examples of each of the two halves on which a metric is tried."""


def own_loss(entry: Mapping[str, Any], task: Task, targets: np.ndarray) -> CustomLoss:
    """Return the loss that `task.loss` names.

    Args:
        targets: some of the training split, on which it is tried.

    Raises:
        UserError: where it cannot be made or called, or returns something else than a loss for each example.
    """
    arguments = {str(name): value for name, value in entry.items() if name != "_target_"}
    target = str(entry["_target_"])
    expected = "the import path of a Keras loss or of your own"
    found = imported(target, f"task.loss._target_={target}", expected, "task.loss._target_=keras.losses.Huber")
    if inspect.isclass(found):
        expected = "a loss with arguments that it accepts"
        instance = made(object, target, f"task.loss._target_={target}", expected, "task.loss={}", **arguments)
        function = instance.call if isinstance(instance, keras.losses.Loss) else instance
    else:
        function = instance = partial(found, **arguments)
    takes_logits = _takes_logits(found, vars(instance), arguments)
    loss = CustomLoss(task.head, task.loss, function, takes_logits, entry)
    outputs = _outputs(task, len(targets))
    try:
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            losses = loss.of_each(tf.constant(targets), outputs)
        shape = tuple(losses.shape)
        problem = f"returns shape {shape}" if tape.gradient(losses, outputs) is not None else "has no gradient"
    except Exception as error:  # a function may be anything
        shape, problem = (), " ".join(f"raises {type(error).__name__}: {error}".split())[:200]
    if shape != (len(targets),) or problem == "has no gradient":
        raise UserError(
            f"task.loss._target_={target} {problem} when called with {len(targets)} examples of shape "
            f"{task.head.shape}",
            f"one loss per example, of shape ({len(targets)},) and differentiable. Targets have one column per class, "
            "so Keras' Sparse losses are not supported",
            "keras.ops.mean(losses, axis=-1), or task.loss._target_=keras.losses.Huber",
        )
    return loss


def own_metric(entry: Mapping[str, Any], place: int, task: Task, targets: np.ndarray) -> Metric:
    """Return the metric that `task.metrics` names: a metric of Keras, or a `Metric` of the project's kind.

    Args:
        entry: `_target_` and arguments.
        place: Its place in `task.metrics`.
        targets: Some of the training split, on which it is tried.

    Raises:
        UserError: If it cannot be created or called, is not one number, or cannot be computed from sums.
    """
    where = f"task.metrics[{place}]"
    arguments = {str(name): value for name, value in entry.items() if name != "_target_"}
    target = str(entry["_target_"])
    expected, fix = (
        "a keras.metrics.Metric, or a stages.metrics.metric.Metric, with arguments that it accepts",
        "'task.metrics=[{_target_: keras.metrics.AUC}]'",
    )
    metric = made(object, target, f"{where} {target}", expected, fix, **arguments)
    if isinstance(metric, keras.metrics.Metric):
        if "y_true" not in task.head.known(task.targets.blank(), _outputs(task, 1)):
            problem = f"{where} {target} is a metric of Keras, which would also count pixels that do not count"
            raise UserError(problem, "a stages.metrics.metric.Metric", "task.metrics=[]")
        plain = re.sub(r"_\d+$", "", metric.name)
        if "name" not in arguments and plain.replace("_", "") == type(metric).__name__.lower():
            metric.name = _free_name(plain, task.measured)  # Keras has numbered it among all of the process
        if isinstance(task.head, ProbabilityHead) and _takes_logits(type(metric), vars(metric), arguments):
            problem = f"{where}: {target} has from_logits=true, but metrics receive probabilities"
            raise UserError(problem, "", "from_logits: false")
        metric = KerasMetric(metric)
    elif not isinstance(metric, Metric):
        raise UserError(f"{where} {target} is not a metric", expected, fix)
    if metric.name in (*task.measured, "loss") or not metric.name.replace("_", "").isalnum():
        problem = f"{where}: the name {metric.name} is used by a different metric, or cannot be used as a name"
        raise UserError(problem, "a different name of letters, digits and _", "name: mine")
    return tried(metric, f"{where}: {target}", task, targets)


def _free_name(name: str, taken: Sequence[str]) -> str:
    numbered = (f"{name}_{number}" if number else name for number in count())
    return next(one for one in numbered if one not in taken)


def tried(metric: Metric, where: str, task: Task, targets: np.ndarray) -> Metric:
    """Return the metric, whose sums over two halves of some examples add up to the sums over all of them.

    Raises:
        UserError: If they do not, or the metric is not one number.
    """
    rows = np.arange(2 * HALF) % len(targets)
    columns = task.head.known(tf.constant(targets[rows]), _outputs(task, len(rows)))
    weights = tf.constant(1 + np.arange(len(rows)) % 3, tf.float32)
    try:
        is_zero = not isinstance(metric, KerasMetric) or metric.starts_at_zero(columns, weights)
        parts = [_sums(metric, columns, weights, part) for part in (slice(HALF), slice(HALF, None), slice(None))]
        metric.value({**parts[2], "examples": np.sum(weights)})
    except Exception as error:  # a metric may be anything
        reason = " ".join(str(error).split())[:200]
        shapes = {name: tuple(column.shape) for name, column in columns.items()}
        given = f"columns of shape {shapes}"
        if "y_true" in shapes:
            given = f"targets of shape {shapes['y_true']} and predictions of shape {shapes['y_pred']}"
        raise UserError(
            f"{where} cannot be computed from {given} ({reason})",
            "a metric that returns one number for these. Keras' Sparse metrics need other targets",
            "task.metrics=[]",
        ) from error
    first, second, whole = parts
    adds_up = is_zero and all(np.allclose(first[name] + second[name], whole[name], 1e-4, 1e-5) for name in whole)
    if not adds_up:
        raise UserError(
            f"{where} cannot be computed from sums: its states for two halves of the examples do not add up to its "
            "state for all of them, so its value would depend on batches and replicas",
            "a metric whose update_state adds to variables that start at 0. Compute any other from predictions.parquet",
            "task.metrics=[]",
        )
    return metric


def _sums(metric: Metric, columns: Mapping[str, tf.Tensor], weights: tf.Tensor, part: slice) -> dict[str, np.ndarray]:
    some = {name: column[part] for name, column in columns.items()}
    return {name: value.numpy() for name, value in metric.sums(some, weights[part]).items()}


def _outputs(task: Task, count: int) -> tf.Tensor:
    """Return outputs such as a network may return: between 0 and 1, so that they pass for logits and probabilities."""
    outputs = np.random.default_rng(0).uniform(0.05, 0.95, (count, *task.head.shape))
    return tf.constant(outputs / np.maximum(outputs.sum(axis=-1, keepdims=True), 1.0), tf.float32)
