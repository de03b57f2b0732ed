"""Several labels: each of them holds for an example or does not, whatever the others do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from stages.metrics.labels import ExactMatch, MacroF1
from stages.metrics.metric import Metric
from stages.tasks.classification import Probabilities

THRESHOLD = 0.5
"""Probability above which a label is predicted."""

NEAR_TIE = 0.05
"""Distance of a model's probability from the threshold within which either answer is its own, at most."""

ROWS_OF_STRATUM = 20
"""Examples with the label by which splits are cut, and without it, at least."""


@dataclass(frozen=True)
class MultiLabel(Probabilities):
    """Labels, int32 [b, k] of 0 and 1; of mixed examples the part of each, float32.

    label_smoothing: part of a target that is replaced by one half. class_weights: of each label where it holds.
    """

    kind: ClassVar[str] = "multi_label"
    primary: ClassVar[str] = "macro_f1"
    named: ClassVar[str] = "labels"

    def check(self, where: str, targets: np.ndarray) -> None:
        """See `Task`."""
        self.check_matrix(where, targets, "0 or 1", np.int32)

    def strata(self, targets: np.ndarray) -> np.ndarray | None:
        """Returns the rarest label of which there are enough examples, int32 [N]."""
        rarer = np.minimum(targets.sum(axis=0), len(targets) - targets.sum(axis=0))
        if rarer.max() < ROWS_OF_STRATUM:
            return None
        return targets[:, int(np.argmin(np.where(rarer < ROWS_OF_STRATUM, len(targets), rarer)))]

    def support(self, targets: np.ndarray) -> np.ndarray:
        """See `Task`."""
        return np.asarray(targets, np.int64).sum(axis=0)

    def groups(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        """See `Task`."""
        return {name: np.flatnonzero(holds) for name, holds in zip(self.names, targets.T, strict=True)}

    def title(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Returns the labels that hold."""
        return ", ".join(name for name, value in zip(names, target, strict=True) if value > THRESHOLD) or "none"

    def balanced(self, targets: np.ndarray) -> list[float]:
        """See `Probabilities`."""
        positives = self.support(targets)
        return [float(value) for value in (len(targets) - positives) / np.maximum(positives, 1)]

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the cross-entropy of each example, [b]: the mean over its labels."""
        wanted = tf.cast(targets, outputs.dtype)
        values = self.binary_losses(wanted, outputs)
        if self.class_weights is not None:
            values *= 1 + wanted * (tf.constant(self.class_weights, outputs.dtype) - 1)
        return tf.reduce_mean(values, axis=-1)

    @property
    def standard_metrics(self) -> tuple[Metric, ...]:
        """See `Task`."""
        return MacroF1(), ExactMatch()

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Task`; a mixed example has the labels with the greater part."""
        soft, answers = self.soften(targets), self.answers(outputs)
        holds, predicted = (tf.cast(part > THRESHOLD, tf.int32) for part in (soft, answers))
        columns = {"target": holds, "predicted": predicted, "probabilities": answers}
        return {**columns, "y_true": soft, "y_pred": answers}

    def answers(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the probability of each label, float32 [b, k]."""
        wide = tf.cast(outputs, tf.float32)
        return tf.sigmoid(wide) if self.given == "logits" else wide

    def with_answers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Task`."""
        if self.given == "probabilities":
            return outputs
        return keras.layers.Activation("sigmoid", dtype=outputs.dtype, name=self.answer)(outputs)

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `Task`."""
        return {"predicted": (rows > THRESHOLD).astype(np.int32), self.answer: rows}

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray]:
        """See `Task`."""
        return self.columns(np.stack([model.probabilities(part, 2)[:, 1] for part in targets.T], axis=1))

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Task`: examples agree whose labels are all the same, up to those near our threshold."""
        is_near = np.abs(ours - THRESHOLD) <= min(allowed, NEAR_TIE)
        agrees = is_near | ((ours > THRESHOLD) == (theirs > THRESHOLD))
        return float(np.max(np.abs(theirs - ours))), float(np.mean(agrees.all(axis=1)))
