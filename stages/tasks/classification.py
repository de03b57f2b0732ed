"""Classification: one of several classes, by logits or probabilities; and what other tasks with probabilities share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from stages.data.columns import Column, held
from stages.errors import UserError
from stages.metrics.classes import Accuracy, LogLoss
from stages.metrics.estimates import Columns
from stages.metrics.keras_metric import KerasMetric
from stages.metrics.metric import Metric
from stages.metrics.report import Measured, means_of, values_by_name
from stages.tasks.class_report import AveragePrecision, Predicted, draw_classes, metrics_of, report_classes
from stages.tasks.parts import Head, Loss, Predict, Targets, Trivial, View
from stages.tasks.task import Task

if TYPE_CHECKING:
    from pathlib import Path

    from stages.data.split import Split
    from stages.results import Dataset
    from stages.settings.results import EvaluateSettings
    from stages.settings.train import TrainSettings

NEAR_TIE = 0.1
"""Difference between a model's probabilities of two classes below which either is its answer, at most: a file that is
allowed to differ by more (int8) is not allowed any other class."""

IMBALANCED = 0.7
"""Share of one class from which the accuracy can hardly tell models apart: always predicting it is as accurate."""


@dataclass(frozen=True)
class ProbabilityHead(Head):
    """A head whose predictions are probabilities."""

    given: str = "logits"
    """The kind of outputs of the network, `logits` or `probabilities`."""

    answer: ClassVar[str] = "probabilities"

    def of_network(self, outputs: str) -> Self:
        """See `Head`."""
        return replace(self, given=outputs)

    def check(self, outputs: np.ndarray) -> None:
        """See `Head`: for outputs that cannot be the probabilities that they are said to be."""
        if self.given == "probabilities" and not np.all((outputs >= 0) & (outputs <= 1)):
            raise UserError(
                "model.outputs=probabilities, but some outputs of the network are not between 0 and 1",
                "the kind of output that the last layer returns",
                "model.outputs=logits",
            )

    def squashed(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the probabilities that logits mean, [b, units]."""
        return tf.sigmoid(logits)

    def merged(self, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`; of logits in logarithms, in which small probabilities keep their digits."""
        if self.given == "probabilities":
            return super().merged(outputs)
        return tf.reduce_logsumexp(tf.math.log_sigmoid(outputs), axis=1) - tf.reduce_logsumexp(
            tf.math.log_sigmoid(-outputs), axis=1
        )

    def merged_as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Head`."""
        return keras.ops.mean(self.as_layers(outputs), axis=1)

    def for_keras_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Head`: a column of targets for each output; for a single logit, the column of the second class."""
        wanted = tf.cast(self.targets.soften(targets), outputs.dtype)[:, -self.units :]
        are_ready = as_logits or self.given == "probabilities"
        return wanted, outputs if are_ready else self.squashed(outputs)


@dataclass(frozen=True)
class WeightedLoss(Loss):
    """A loss with smooth targets and weights of classes or labels."""

    head: ProbabilityHead

    label_smoothing: float = 0.0
    """Part of a target that is spread over all classes (Szegedy et al. 2016, arXiv:1512.00567, section 7)."""

    class_weights: tuple[float, ...] | None = None
    """Factor of the loss by class or label; None: 1."""

    def for_training(self, settings: TrainSettings, targets: Column) -> Self:
        """See `Loss`.

        Raises:
            UserError: If there are not as many weights as names.
        """
        known, weights = self.head.targets, settings.class_weights
        if weights == "balanced":
            weights = self.balanced(targets)
        elif weights is not None and len(weights) != len(known.names):
            raise UserError(
                f"train.class_weights has {len(weights)} numbers, but there are {len(known.names)} {known.plural}",
                f"one number each for {', '.join(known.names)}",
                "train.class_weights=balanced",
            )
        weights = None if weights is None else tuple(map(float, weights))
        return replace(self, label_smoothing=settings.label_smoothing, class_weights=weights)

    def balanced(self, targets: Column) -> Sequence[float]:
        """Return the weights that `train.class_weights=balanced` means for the targets of the training split."""
        raise NotImplementedError

    def binary_losses(self, wanted: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy of each output, [b, k]. wanted: Targets from 0 to 1, [b, k]."""
        smooth = tf.cast(wanted, outputs.dtype) * (1.0 - self.label_smoothing) + self.label_smoothing / 2
        if self.head.given == "logits":
            return tf.nn.sigmoid_cross_entropy_with_logits(smooth, outputs)
        clipped = tf.clip_by_value(outputs, 1e-7, 1 - 1e-7)  # Keras' own bounds
        return -smooth * tf.math.log(clipped) - (1 - smooth) * tf.math.log(1 - clipped)


@dataclass(frozen=True)
class ClassTargets(Targets):
    """Classes, int32 [b]; for mixed examples the part of each class, float32 [b, classes], in rows that add up to 1."""

    plural: ClassVar[str] = "classes"
    singular: ClassVar[str] = "class"

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    def task(self) -> Task:
        """See `Targets`."""
        return classification(self.names)

    def check(self, where: str, targets: Column) -> None:
        """See `Targets`; class names are two different texts or more."""
        targets = held(targets)
        if len(set(self.names)) < max(len(self.names), 2) or not all(isinstance(name, str) for name in self.names):
            problem = f"{where.partition(':')[0]}: the {len(self.names)} class name(s) are {self.names[:9]}"
            raise UserError(problem, "at least two names, all of them different texts")
        is_whole = targets.ndim == 1 and targets.dtype.kind in "iu"
        if not is_whole or (targets.size and (targets.min() < 0 or targets.max() >= len(self.names))):
            kind = f"are {targets.dtype} of shape {targets.shape}"
            if is_whole:
                kind = f"range from {targets.min()} to {targets.max()}"
            raise UserError(f"{where} labels {kind}", f"integers from 0 to {len(self.names) - 1}, one per example")

    def soften(self, targets: tf.Tensor) -> tf.Tensor:
        """See `Targets`; targets may be floats, from Keras, or mixed already."""
        if _is_mixed(targets):
            return tf.cast(targets, tf.float32)
        return tf.one_hot(tf.cast(targets, tf.int32), len(self.names))

    def strata(self, targets: np.ndarray) -> np.ndarray:
        """See `Targets`."""
        return targets

    def support(self, targets: Column) -> np.ndarray:
        """See `Targets`."""
        targets = held(targets)
        return np.bincount(targets, minlength=len(self.names))

    def groups(self, targets: Column) -> dict[str, np.ndarray]:
        """See `Targets`."""
        targets = held(targets)
        return {name: np.flatnonzero(targets == place) for place, name in enumerate(self.names)}

    def title(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Return the class; for a mixed target the two greatest parts above 0.05, such as `cat 0.7 dog 0.3`."""
        if target.ndim == 0:
            return names[int(target)]
        greatest = [index for index in np.argsort(-target, kind="stable")[:2] if target[index] > 0.05]
        return " ".join(f"{names[index]} {target[index]:.1f}" for index in greatest)


@dataclass(frozen=True)
class ClassHead(ProbabilityHead):
    """One output per class, or one for two classes."""

    single_logit: bool = False
    """Whether two classes share one output, the output of the second class."""

    @property
    def units(self) -> int:
        """See `Head`."""
        return 1 if self.single_logit else len(self.targets.names)

    def check(self, outputs: np.ndarray) -> None:
        """See `Head`: logits that are taken for probabilities train to wrong numbers without an error."""
        if self.single_logit:
            super().check(outputs)
            return
        check_probabilities(outputs, self.given)

    def squashed(self, logits: tf.Tensor) -> tf.Tensor:
        """See `ProbabilityHead`."""
        return tf.sigmoid(logits) if self.single_logit else tf.nn.softmax(logits)

    def merged(self, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        if self.single_logit or self.given == "probabilities":
            return super().merged(outputs)
        return tf.reduce_logsumexp(tf.nn.log_softmax(outputs), axis=1) - np.log(outputs.shape[1])

    def classes(self, outputs: tf.Tensor, dtype: tf.DType = tf.int64) -> tf.Tensor:
        """Return the likeliest class of each example, [b]."""
        if not self.single_logit:
            return tf.argmax(outputs, axis=-1, output_type=dtype)
        return tf.cast(outputs[:, 0] > (0.0 if self.given == "logits" else 0.5), dtype)

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return probabilities, float32 [b, classes], in rows that add up to 1."""
        if self.single_logit:
            wide = tf.cast(outputs, tf.float32)
            of_logits = self.given == "logits"
            both = (tf.sigmoid(-wide), tf.sigmoid(wide)) if of_logits else (1 - wide, wide)
            return tf.concat(both, axis=-1)
        return tf.cast(tf.nn.softmax(outputs) if self.given == "logits" else outputs, tf.float32)

    def as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Head`: a single logit becomes two, the first of which is 0."""
        if self.single_logit:
            first = keras.layers.Rescaling(0.0 if self.given == "logits" else -1.0, float(self.given != "logits"))
            outputs = keras.layers.Concatenate(dtype=outputs.dtype)([first(outputs), outputs])
        if self.given == "probabilities":
            return outputs
        return keras.layers.Softmax(dtype=outputs.dtype, name=self.answer)(outputs)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`; a mixed example has the class with the greatest part."""
        labels = tf.argmax(targets, axis=-1) if _is_mixed(targets) else tf.cast(targets, tf.int64)
        wanted, answers = self.targets.soften(labels), self.predictions(outputs)
        first = int(self.single_logit)  # a single logit has a single column for Keras
        columns = {"label": labels, "predicted": self.classes(outputs), "probabilities": answers}
        return {**columns, "y_true": wanted[:, first:], "y_pred": answers[:, first:]}

    @property
    def width(self) -> int:
        """See `Head`."""
        return len(self.targets.names) + 1

    def rows(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return probabilities and, in a last column, the predicted class, by the outputs in their own precision."""
        wide = outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)
        predicted = self.classes(outputs, tf.int32)
        return tf.concat([self.predictions(wide), tf.cast(predicted, tf.float32)[:, tf.newaxis]], axis=1)

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `Head`."""
        return {"predicted": np.rint(rows[:, -1]).astype(np.int32), self.answer: rows[:, :-1]}

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray]:
        """See `Head`."""
        answers = model.probabilities(targets, len(self.targets.names))
        return {"predicted": answers.argmax(axis=1).astype(np.int32), self.answer: answers}

    def explained(self, predictions: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the name of the likeliest class, and its probability."""
        with tf.device("/cpu:0"):
            likeliest = tf.gather(names, tf.argmax(predictions, axis=-1))
        return {"class_name": likeliest, "score": tf.reduce_max(predictions, axis=-1)}

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Head`: examples agree that get our class, or another that we find as likely, up to `allowed`."""
        given = ours[np.arange(len(theirs)), theirs.argmax(axis=1)]
        agreement = float(np.mean(ours.max(axis=1) - given <= min(allowed, NEAR_TIE)))
        return float(np.max(np.abs(theirs - ours))), agreement


@dataclass(frozen=True)
class CrossEntropy(WeightedLoss):
    """The cross-entropy of classes."""

    head: ClassHead

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`; targets may be floats, from Keras."""
        if self.head.single_logit:
            return self.binary_losses(self.head.targets.soften(targets)[:, 1:], outputs)[:, 0]
        of_logits = self.head.given == "logits"
        plain = (_of_logits if of_logits else _of_probabilities)(targets, outputs)
        if not self.label_smoothing:
            return plain
        logs = tf.nn.log_softmax(outputs) if of_logits else logs_of_probabilities(outputs)
        uniform = -tf.reduce_mean(logs, axis=-1)
        return (1.0 - self.label_smoothing) * plain + self.label_smoothing * uniform

    def weights(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor | None:
        """See `Loss`."""
        if self.class_weights is None:
            return None
        weights = tf.constant(self.class_weights, dtype)
        return tf.linalg.matvec(tf.cast(targets, dtype), weights) if _is_mixed(targets) else tf.gather(weights, targets)

    def balanced(self, targets: Column) -> list[float]:
        """See `WeightedLoss`."""
        targets = held(targets)
        support = np.bincount(targets, minlength=len(self.head.targets.names))
        return [len(targets) / (len(support) * max(count, 1)) for count in support]


@dataclass(frozen=True)
class ClassView(View):
    """Predicted classes as people see them."""

    column: ClassVar[str] = "label"
    least: ClassVar[int] = 30

    def report(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> Measured:
        """See `View`."""
        return report_classes(columns, names, confidence, bins, metrics)

    def values(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> dict[str, float]:
        """See `View`: without intervals of classes, which take longest."""
        return {**metrics_of(Predicted.of(columns), bins)[0], **values_by_name(metrics, columns)}

    def draw(
        self, columns: Columns, dataset: Dataset, settings: EvaluateSettings, folder: Path, predict: Predict
    ) -> list[Path]:
        """See `View`."""
        return draw_classes(Predicted.of(columns), dataset, settings, folder)

    def further(self, names: Sequence[str], train: Split) -> tuple[Metric, ...]:
        """See `View`."""
        shares = means_of(train.target_values, train.weights, len(names))
        rarest = int(shares.argmin())
        return (LogLoss(), AveragePrecision(rarest, names[rarest])) if shares.max() >= IMBALANCED else ()

    def trivial(self, task: Task, train: Split) -> Trivial:
        """Return the majority class, with the shares of the classes as probabilities."""
        shares = means_of(train.target_values, train.weights, len(task.names))
        majority = int(shares.argmax())
        model = f'the majority-class baseline (always "{task.names[majority]}", {100 * shares[majority]:.1f}% of'
        further = self.further(task.names, train)
        return Trivial(model, np.append(shares, majority), (task.comparable[0], LogLoss()), further)


def classification(names: Sequence[str], single_logit: bool = False) -> Task:
    """Return the task of predicting one of several classes.

    Args:
        names: Of the classes.
        single_logit: Whether two classes have one output. The area under the ROC curve is then a metric too.
    """
    head = ClassHead(ClassTargets(tuple(names)), single_logit=single_logit)
    task = Task(head.targets, CrossEntropy(head), (Accuracy(),), head, ClassView(), "Classification", "classification")
    return task.with_metrics(KerasMetric(keras.metrics.AUC(name="auc"))) if single_logit else task


def check_probabilities(outputs: np.ndarray, given: str) -> None:
    """Raise UserError for outputs, [..., classes], that are not what `model.outputs` says.

    Args:
        outputs: Of the network, for some examples.
        given: `logits` or `probabilities`.
    """
    sums_to_one = bool(np.all(outputs >= 0) and np.allclose(outputs.sum(axis=-1), 1.0, atol=1e-3))
    if sums_to_one != (given == "probabilities"):
        add_up = "add up to 1" if sums_to_one else "do not add up to 1"
        raise UserError(
            f"model.outputs={given}, but the network's outputs for an example {add_up}",
            "the kind of output that the last layer returns",
            f"model.outputs={'probabilities' if sums_to_one else 'logits'}",
        )


def _is_mixed(targets: tf.Tensor) -> bool:
    return bool(targets.shape.rank == 2)


def _of_logits(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    if _is_mixed(targets):
        return tf.nn.softmax_cross_entropy_with_logits(tf.cast(targets, outputs.dtype), outputs)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), outputs)


def _of_probabilities(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    logs = logs_of_probabilities(outputs)
    if _is_mixed(targets):
        return -tf.reduce_sum(tf.cast(targets, logs.dtype) * logs, axis=-1)
    return -tf.gather(logs, tf.cast(targets, tf.int32), batch_dims=1)


def logs_of_probabilities(outputs: tf.Tensor) -> tf.Tensor:
    """Return the logarithms of probabilities, which are not less than Keras' own bound."""
    return tf.math.log(tf.clip_by_value(outputs, 1e-7, 1.0))
