"""Classification: one of several classes, by logits or probabilities; and what other tasks share that answer so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.metrics.classes import Accuracy
from stages.metrics.keras_metric import KerasMetric
from stages.metrics.metric import Metric
from stages.tasks.task import Task

if TYPE_CHECKING:
    from stages.settings.train import TrainSettings

NEAR_TIE = 0.1
"""Difference between a model's probabilities of two classes below which either is its answer, at most: a file that is
allowed to differ by more (int8) is not allowed any other class."""


@dataclass(frozen=True)
class Probabilities(Task):
    """A task whose answers are probabilities.

    given: what the network returns, `logits` or `probabilities`.
    label_smoothing: part of a target that is spread over all answers alike (Szegedy et al. 2016, arXiv:1512.00567,
        section 7). class_weights: factor of the loss by class or label; None: 1.
    """

    given: str = "logits"
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    answer: ClassVar[str] = "probabilities"

    def of_network(self, outputs: str) -> Self:
        """See `Task`.

        Raises:
            UserError: for probabilities where the loss of the configuration takes logits.
        """
        if outputs == "probabilities" and self.own_loss is not None and self.own_loss.takes_logits:
            raise UserError(
                "task.loss.from_logits=true does not match model.outputs=probabilities",
                "logits or probabilities in both settings",
                "task.loss.from_logits=false",
            )
        return replace(self, given=outputs)

    def for_training(self, settings: TrainSettings, targets: np.ndarray) -> Self:
        """See `Task`.

        Raises:
            UserError: where there are not as many weights as names.
        """
        super().for_training(settings, targets)
        weights = settings.class_weights
        if weights == "balanced":
            weights = self.balanced(targets)
        elif weights is not None and len(weights) != len(self.names):
            raise UserError(
                f"train.class_weights has {len(weights)} numbers, but there are {len(self.names)} {self.named}",
                f"one number each for {', '.join(self.names)}",
                "train.class_weights=balanced",
            )
        weights = None if weights is None else tuple(map(float, weights))
        return replace(self, label_smoothing=settings.label_smoothing, class_weights=weights)

    def balanced(self, targets: np.ndarray) -> Sequence[float]:
        """Returns the weights that `train.class_weights=balanced` means for the targets of the training split."""
        raise NotImplementedError

    def binary_losses(self, wanted: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the cross-entropy of each output, [b, k], whose targets are `wanted`, of 0 to 1, [b, k]."""
        smooth = tf.cast(wanted, outputs.dtype) * (1.0 - self.label_smoothing) + self.label_smoothing / 2
        if self.given == "logits":
            return tf.nn.sigmoid_cross_entropy_with_logits(smooth, outputs)
        clipped = tf.clip_by_value(outputs, 1e-7, 1 - 1e-7)  # Keras' own bounds
        return -smooth * tf.math.log(clipped) - (1 - smooth) * tf.math.log(1 - clipped)

    def squashed(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the probabilities that logits mean, [b, outputs]."""
        return tf.sigmoid(logits)

    def of_own_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Task`: a column of targets for each output; of a single logit that of the second class."""
        wanted = tf.cast(self.soften(targets), outputs.dtype)[:, -self.outputs :]
        are_answers = as_logits or self.given == "probabilities"
        return wanted, outputs if are_answers else self.squashed(outputs)

    def check_outputs(self, outputs: np.ndarray) -> None:
        """See `Task`: for outputs that cannot be the probabilities that they are said to be."""
        if self.given == "probabilities" and not np.all((outputs >= 0) & (outputs <= 1)):
            raise UserError(
                "model.outputs=probabilities, but some outputs of the network are not between 0 and 1",
                "the kind of output that the last layer returns",
                "model.outputs=logits",
            )


@dataclass(frozen=True)
class Classification(Probabilities):
    """Classes, int32 [b]; of mixed examples the part of each, float32 [b, classes], rows that add up to 1.

    single_logit: whether two classes have one output, that of the second.
    """

    single_logit: bool = False

    kind: ClassVar[str] = "classification"
    primary: ClassVar[str] = "accuracy"
    target: ClassVar[str] = "label"
    named: ClassVar[str] = "classes"
    least: ClassVar[int] = 30

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    def with_single_logit(self) -> Self:
        """Returns the task of two classes with one output, and with the area under the ROC curve as a metric."""
        one = replace(self, single_logit=True)
        return replace(one, own_metrics=(KerasMetric(keras.metrics.AUC(name="auc")),))

    @property
    def outputs(self) -> int:
        """See `Task`."""
        return 1 if self.single_logit else len(self.names)

    def check(self, where: str, targets: np.ndarray) -> None:
        """See `Task`; class names are two different texts or more."""
        if len(set(self.names)) < max(len(self.names), 2) or not all(isinstance(name, str) for name in self.names):
            problem = f"{where.partition(':')[0]}: the {len(self.names)} class name(s) are {self.names[:9]}"
            raise UserError(problem, "at least two names, all of them different texts")
        is_whole = targets.ndim == 1 and targets.dtype.kind in "iu"
        if not is_whole or (targets.size and (targets.min() < 0 or targets.max() >= len(self.names))):
            kind = f"are {targets.dtype} of shape {targets.shape}"
            if is_whole:
                kind = f"range from {targets.min()} to {targets.max()}"
            raise UserError(f"{where} labels {kind}", f"integers from 0 to {len(self.names) - 1}, one per example")

    def strata(self, targets: np.ndarray) -> np.ndarray:
        """See `Task`."""
        return targets

    def support(self, targets: np.ndarray) -> np.ndarray:
        """See `Task`."""
        return np.bincount(targets, minlength=len(self.names))

    def groups(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        """See `Task`."""
        return {name: np.flatnonzero(targets == place) for place, name in enumerate(self.names)}

    def title(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Returns the class; of a mixed target the two greatest parts above 0.05, such as `cat 0.7 dog 0.3`."""
        if target.ndim == 0:
            return names[int(target)]
        greatest = [index for index in np.argsort(-target, kind="stable")[:2] if target[index] > 0.05]
        return " ".join(f"{names[index]} {target[index]:.1f}" for index in greatest)

    def balanced(self, targets: np.ndarray) -> list[float]:
        """See `Probabilities`."""
        return [len(targets) / (len(self.names) * max(count, 1)) for count in self.support(targets)]

    def check_outputs(self, outputs: np.ndarray) -> None:
        """See `Task`: logits that are taken for probabilities train to wrong numbers without an error."""
        if self.single_logit:
            super().check_outputs(outputs)
            return
        sums_to_one = bool(np.all(outputs >= 0) and np.allclose(outputs.sum(axis=1), 1.0, atol=1e-3))
        if sums_to_one != (self.given == "probabilities"):
            add_up = "add up to 1" if sums_to_one else "do not add up to 1"
            raise UserError(
                f"model.outputs={self.given}, but the network's outputs for an example {add_up}",
                "the kind of output that the last layer returns",
                f"model.outputs={'probabilities' if sums_to_one else 'logits'}",
            )

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the cross-entropy, [b]; targets may be floats, from Keras."""
        if self.single_logit:
            return self.binary_losses(self.soften(targets)[:, 1:], outputs)[:, 0]
        of_logits = self.given == "logits"
        plain = (_of_logits if of_logits else _of_probabilities)(targets, outputs)
        if not self.label_smoothing:
            return plain
        logs = tf.nn.log_softmax(outputs) if of_logits else _logs_of_probabilities(outputs)
        uniform = -tf.reduce_mean(logs, axis=-1)
        return (1.0 - self.label_smoothing) * plain + self.label_smoothing * uniform

    def weights(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor | None:
        """See `Task`."""
        if self.class_weights is None:
            return None
        weights = tf.constant(self.class_weights, dtype)
        return tf.linalg.matvec(tf.cast(targets, dtype), weights) if _is_mixed(targets) else tf.gather(weights, targets)

    def soften(self, targets: tf.Tensor) -> tf.Tensor:
        """See `Task`; targets may be floats, from Keras, or mixed already."""
        if _is_mixed(targets):
            return tf.cast(targets, tf.float32)
        return tf.one_hot(tf.cast(targets, tf.int32), len(self.names))

    def squashed(self, logits: tf.Tensor) -> tf.Tensor:
        """See `Probabilities`."""
        return tf.sigmoid(logits) if self.single_logit else tf.nn.softmax(logits)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Task`; a mixed example has the class with the greatest part."""
        labels = tf.argmax(targets, axis=-1) if _is_mixed(targets) else tf.cast(targets, tf.int64)
        wanted, answers = self.soften(labels), self.answers(outputs)
        first = int(self.single_logit)  # a single logit has a single column for Keras
        columns = {"label": labels, "predicted": self.classes(outputs), "probabilities": answers}
        return {**columns, "y_true": wanted[:, first:], "y_pred": answers[:, first:]}

    def classes(self, outputs: tf.Tensor, dtype: tf.DType = tf.int64) -> tf.Tensor:
        """Returns the likeliest class of each example, [b]."""
        if not self.single_logit:
            return tf.argmax(outputs, axis=-1, output_type=dtype)
        return tf.cast(outputs[:, 0] > (0.0 if self.given == "logits" else 0.5), dtype)

    @property
    def standard_metrics(self) -> tuple[Metric, ...]:
        """See `Task`."""
        return (Accuracy(),)

    def answers(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns probabilities, float32 [b, classes], rows that add up to 1."""
        if self.single_logit:
            wide = tf.cast(outputs, tf.float32)
            of_logits = self.given == "logits"
            both = (tf.sigmoid(-wide), tf.sigmoid(wide)) if of_logits else (1 - wide, wide)
            return tf.concat(both, axis=-1)
        return tf.cast(tf.nn.softmax(outputs) if self.given == "logits" else outputs, tf.float32)

    def with_answers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Task`: of a single logit those of two, the first of which is 0."""
        if self.single_logit:
            first = keras.layers.Rescaling(0.0 if self.given == "logits" else -1.0, float(self.given != "logits"))
            outputs = keras.layers.Concatenate(dtype=outputs.dtype)([first(outputs), outputs])
        if self.given == "probabilities":
            return outputs
        return keras.layers.Softmax(dtype=outputs.dtype, name=self.answer)(outputs)

    @property
    def width(self) -> int:
        """See `Task`."""
        return len(self.names) + 1

    def predict(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns probabilities and, as one more column, the predicted class: that of the outputs as they are."""
        wide = outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)
        predicted = self.classes(outputs, tf.int32)
        return tf.concat([self.answers(wide), tf.cast(predicted, tf.float32)[:, tf.newaxis]], axis=1)

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `Task`."""
        return {"predicted": np.rint(rows[:, -1]).astype(np.int32), self.answer: rows[:, :-1]}

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray]:
        """See `Task`."""
        answers = model.probabilities(targets, len(self.names))
        return {"predicted": answers.argmax(axis=1).astype(np.int32), self.answer: answers}

    def explained(self, answers: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the name of the likeliest class, and its probability."""
        with tf.device("/cpu:0"):
            likeliest = tf.gather(names, tf.argmax(answers, axis=-1))
        return {"class_name": likeliest, "score": tf.reduce_max(answers, axis=-1)}

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Task`: examples agree that get our class, or another that we find as likely, up to `allowed`."""
        given = ours[np.arange(len(theirs)), theirs.argmax(axis=1)]
        agreement = float(np.mean(ours.max(axis=1) - given <= min(allowed, NEAR_TIE)))
        return float(np.max(np.abs(theirs - ours))), agreement


def _is_mixed(targets: tf.Tensor) -> bool:
    return bool(targets.shape.rank == 2)


def _of_logits(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    if _is_mixed(targets):
        return tf.nn.softmax_cross_entropy_with_logits(tf.cast(targets, outputs.dtype), outputs)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), outputs)


def _of_probabilities(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    logs = _logs_of_probabilities(outputs)
    if _is_mixed(targets):
        return -tf.reduce_sum(tf.cast(targets, logs.dtype) * logs, axis=-1)
    return -tf.gather(logs, tf.cast(targets, tf.int32), batch_dims=1)


def _logs_of_probabilities(outputs: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.clip_by_value(outputs, 1e-7, 1.0))  # Keras' own bound
