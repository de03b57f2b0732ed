"""Several labels: each of them holds for an example or does not, whatever the others do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from stages.data.columns import Column, held
from stages.data.split import Split
from stages.metrics.classes import LogLoss
from stages.metrics.estimates import Columns
from stages.metrics.intervals import reported
from stages.metrics.labels import ExactMatch, MacroF1
from stages.metrics.metric import Metric
from stages.metrics.report import Measured, blank_where_nan, means_of, some, values_by_name
from stages.tasks.classification import ProbabilityHead, WeightedLoss
from stages.tasks.parts import Targets, Trivial, View
from stages.tasks.task import Task

THRESHOLD = 0.5
"""Probability above which a label is predicted."""

NEAR_TIE = 0.05
"""Distance of a model's probability from the threshold within which either answer is its own, at most."""

ROWS_OF_STRATUM = 20
"""Minimum number of examples with the label by which splits are cut, and without it."""


@dataclass(frozen=True)
class LabelTargets(Targets):
    """Labels, int32 [b, k] of 0 and 1; for mixed examples the part of each, float32."""

    plural: ClassVar[str] = "labels"
    singular: ClassVar[str] = "label"

    def task(self) -> Task:
        """See `Targets`."""
        return multi_label(self.names)

    def check(self, where: str, targets: Column) -> None:
        """See `Targets`."""
        targets = held(targets)
        self.check_matrix(where, targets, "0 or 1", np.int32)

    def strata(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the rarest label that has enough examples, int32 [N]."""
        rarer = np.minimum(targets.sum(axis=0), len(targets) - targets.sum(axis=0))
        if rarer.max() < ROWS_OF_STRATUM:
            return None
        return targets[:, int(np.argmin(np.where(rarer < ROWS_OF_STRATUM, len(targets), rarer)))]

    def support(self, targets: Column) -> np.ndarray:
        """See `Targets`."""
        targets = held(targets)
        return np.asarray(targets, np.int64).sum(axis=0)

    def groups(self, targets: Column) -> dict[str, np.ndarray]:
        """See `Targets`."""
        targets = held(targets)
        return {name: np.flatnonzero(holds) for name, holds in zip(self.names, targets.T, strict=True)}

    def title(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Return the labels that hold."""
        return ", ".join(name for name, value in zip(names, target, strict=True) if value > THRESHOLD) or "none"


@dataclass(frozen=True)
class LabelHead(ProbabilityHead):
    """One output per label."""

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the probability of each label, float32 [b, k]."""
        wide = tf.cast(outputs, tf.float32)
        return tf.sigmoid(wide) if self.given == "logits" else wide

    def as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Head`."""
        if self.given == "probabilities":
            return outputs
        return keras.layers.Activation("sigmoid", dtype=outputs.dtype, name=self.answer)(outputs)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`; a mixed example has the labels with the greater part."""
        soft, answers = self.targets.soften(targets), self.predictions(outputs)
        holds, predicted = (tf.cast(part > THRESHOLD, tf.int32) for part in (soft, answers))
        columns = {"target": holds, "predicted": predicted, "probabilities": answers}
        return {**columns, "y_true": soft, "y_pred": answers}

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `Head`."""
        return {"predicted": (rows > THRESHOLD).astype(np.int32), self.answer: rows}

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray]:
        """See `Head`."""
        return self.columns(np.stack([model.probabilities(part, 2)[:, 1] for part in targets.T], axis=1))

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Head`: examples agree whose labels are all the same, up to those near our threshold."""
        is_near = np.abs(ours - THRESHOLD) <= min(allowed, NEAR_TIE)
        agrees = is_near | ((ours > THRESHOLD) == (theirs > THRESHOLD))
        return float(np.max(np.abs(theirs - ours))), float(np.mean(agrees.all(axis=1)))


@dataclass(frozen=True)
class BinaryCrossEntropy(WeightedLoss):
    """The cross-entropy of each example: the mean over its labels. A weight is that of a label where it holds."""

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`."""
        wanted = tf.cast(targets, outputs.dtype)
        values = self.binary_losses(wanted, outputs)
        if self.class_weights is not None:
            values *= 1 + wanted * (tf.constant(self.class_weights, outputs.dtype) - 1)
        return tf.reduce_mean(values, axis=-1)

    def balanced(self, targets: Column) -> list[float]:
        """See `WeightedLoss`."""
        targets = held(targets)
        positives = np.asarray(targets, np.int64).sum(axis=0)
        return [float(value) for value in (len(targets) - positives) / np.maximum(positives, 1)]


@dataclass(frozen=True)
class LabelView(View):
    """Predicted labels as people see them."""

    def report(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> Measured:
        """See `View`."""
        return report_labels(columns, names, confidence, metrics)

    def trivial(self, task: Task, train: Split) -> Trivial:
        """Return the share of each label as its probability."""
        model = "the majority baseline (the more frequent value of each label in"
        shares = means_of(train.target_values, train.weights, len(task.names))
        return Trivial(model, shares, (task.comparable[0], LogLoss()), further=(LogLoss(),))

    def not_beaten(self, names: Sequence[str], ours: Columns, trivial: Columns) -> list[str]:
        """Return the labels whose log loss is not lower."""
        of_names = ((one_target(each, place) for each in (ours, trivial)) for place in range(len(names)))
        pairs = ([float(LogLoss().by_example(one).mean()) for one in both] for both in of_names)
        return [name for name, (our, their) in zip(names, pairs, strict=True) if our >= their]


def one_target(columns: Columns, place: int) -> Columns:
    """Return the columns of one of several labels or targets."""
    return {name: column if column.ndim == 1 else column[:, [place]] for name, column in columns.items()}


def multi_label(names: Sequence[str]) -> Task:
    """Return the task of predicting labels. names: Of the labels."""
    head = LabelHead(LabelTargets(tuple(names)))
    metrics = (MacroF1(), ExactMatch())
    return Task(head.targets, BinaryCrossEntropy(head), metrics, head, LabelView(), "MultiLabel", "multi_label")


def report_labels(
    columns: Columns, names: Sequence[str], confidence: float, metrics: Sequence[Metric] = (MacroF1(), ExactMatch())
) -> Measured:
    """Return the metrics of predicted labels.

    A label that never holds and is never predicted has an F1 of 0; ROC-AUC and average precision are over the labels
    that some examples have and others have not.

    Args:
        columns: `target` and `predicted`, int32 [n, k], `probabilities`, float32 [n, k], and `weight`, if any.
        metrics: Those of the task.
    """
    from sklearn import metrics as sk  # some tenths of a second

    targets, predicted, probabilities = (columns[name] for name in ("target", "predicted", "probabilities"))
    weights = columns.get("weight")
    counted = targets if weights is None else targets[weights > 0]
    ranked = np.flatnonzero(counted.any(axis=0) & ~counted.all(axis=0)).tolist()

    # scikit-learn takes a single column for two classes, so it gets labels one by one, or all as one.
    def joint(score: Callable[..., float], answers: np.ndarray, places: Sequence[int], **more: Any) -> float:
        wide = None if weights is None else np.repeat(weights, len(places))
        return float(score(targets[:, places].ravel(), answers[:, places].ravel(), sample_weight=wide, **more))

    every = range(len(names))
    of_labels = {"f1": np.array([joint(sk.f1_score, predicted, [place], zero_division=0) for place in every])}
    values = values_by_name(metrics, columns)
    values["micro_f1"] = joint(sk.f1_score, predicted, every, zero_division=0)
    scores = (("roc_auc", sk.roc_auc_score), ("average_precision", sk.average_precision_score))
    for name, score in scores if len(ranked) else ():
        of_labels[name] = np.full(len(names), np.nan)
        for place in ranked:
            of_labels[name][place] = joint(score, probabilities, [place])
        values[f"macro_{name}"] = float(of_labels[name][ranked].mean())
        values[f"micro_{name}"] = joint(score, probabilities, ranked)
    intervals, reasons = reported({metric.name: metric.interval(columns, confidence) for metric in metrics})
    left_out = [name for place, name in enumerate(names) if place not in ranked]
    notes = [
        f"all test examples have the same value of {some(left_out)}, so ROC-AUC and average precision do not include it"
    ]
    notes = [*(notes if left_out else []), *reasons]
    counts = (map(int, part.sum(axis=0)) for part in (targets, predicted))
    rows = zip(names, *map(blank_where_nan, of_labels.values()), *counts, strict=True)
    table = [("label", *of_labels, "examples", "predicted"), *rows]
    return Measured(values=values, intervals=intervals, notes=notes, tables={"by_label": table})
