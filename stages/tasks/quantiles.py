"""Quantiles of forecasts: several outputs for each target, trained by the pinball loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from stages.errors import UserError
from stages.metrics.forecasts import Pinball
from stages.tasks.forecast import ForecastHead, ForecastTargets
from stages.tasks.parts import Loss
from stages.tasks.task import Task

MEDIAN = 0.5


@dataclass(frozen=True)
class QuantileHead(ForecastHead):
    """Outputs [b, targets * quantiles], the quantiles of the first target first; predictions are in ascending order."""

    quantiles: tuple[float, ...]

    answer: ClassVar[str] = "quantiles"

    @property
    def units(self) -> int:
        """See `Head`."""
        return len(self.targets.names) * len(self.quantiles)

    @property
    def saved(self) -> dict[str, Any]:
        """See `Head`."""
        return {"quantiles": list(self.quantiles)}

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the quantiles of each target in its own units, float32 [b, targets, quantiles]."""
        by_target = tf.reshape(tf.cast(outputs, tf.float32), [-1, len(self.targets.names), len(self.quantiles)])
        mean, std = (tf.constant(values, tf.float32)[:, tf.newaxis] for values in (self.targets.mean, self.targets.std))
        return tf.sort(by_target, axis=-1) * std + mean

    def as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Head`."""
        by_target = ops.reshape(outputs, (-1, len(self.targets.names), len(self.quantiles)))
        columns = (np.array(values, np.float32)[:, np.newaxis] for values in (self.targets.std, self.targets.mean))
        std, mean = (values.tolist() for values in columns)
        return keras.layers.Rescaling(std, mean, dtype=outputs.dtype, name=self.answer)(ops.sort(by_target, axis=-1))

    def derived(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`: the median."""
        return {"prediction": predictions[:, :, self.quantiles.index(MEDIAN)]}

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`: what a head of medians knows, and the quantiles, float32 [b, targets * quantiles]."""
        by_target = tf.reshape(outputs, [-1, len(self.targets.names), len(self.quantiles)])
        medians = tf.sort(by_target, axis=-1)[:, :, self.quantiles.index(MEDIAN)]
        known = ForecastHead(self.targets).known(targets, medians)
        return {"prediction": known.pop(ForecastHead.answer), **known, self.answer: self.rows(targets, outputs)}

    def for_keras_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Head`: each target once for each quantile."""
        return tf.repeat(self.targets.standardized(targets, outputs.dtype), len(self.quantiles), axis=1), outputs

    def rows(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Head`: the predictions of all targets, joined."""
        return tf.reshape(self.predictions(outputs), [-1, self.units])

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """See `Head`: the medians, and all quantiles; trivial predictions have medians only."""
        if rows.shape[1] != self.units:
            return {"prediction": rows}
        return {"prediction": rows[:, self.quantiles.index(MEDIAN) :: len(self.quantiles)], self.answer: rows}

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Head`; differences are in standard deviations of the targets."""
        difference = (np.abs(ours - theirs) / np.array(self.targets.std)[:, np.newaxis]).max(axis=(1, 2))
        return float(difference.max()), float(np.mean(difference <= allowed))

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray] | None:
        """See `Head`."""
        return {"prediction": model.forecasts(targets)}


@dataclass(frozen=True)
class PinballLoss(Loss):
    """The pinball loss of each example: the mean over its standardized targets and their quantiles.

    Source: Koenker and Bassett, Regression Quantiles, Econometrica 46, 1978.
    """

    head: QuantileHead

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`."""
        by_target = tf.reshape(outputs, [-1, len(self.head.targets.names), len(self.head.quantiles)])
        errors = self.head.targets.standardized(targets, outputs.dtype)[:, :, tf.newaxis] - by_target
        levels = tf.constant(self.head.quantiles, outputs.dtype)
        return tf.reduce_mean(tf.maximum(levels * errors, (levels - 1) * errors), axis=[1, 2])


def with_quantiles(task: Task, quantiles: Sequence[float]) -> Task:
    """Return the task of predicting quantiles of the same targets, with the median as the forecast.

    Raises:
        UserError: If the targets are not next values.
    """
    if not isinstance(task.targets, ForecastTargets):
        raise UserError(f"task.quantiles does not fit the target, which needs task={task.kind}", "data=series")
    head = QuantileHead(task.targets, tuple(quantiles))
    metrics = (*task.metrics, Pinball(tuple(quantiles)))
    shown = replace(task.view, shown=(*task.view.shown, Pinball.name))
    return replace(task, head=head, loss=PinballLoss(head), metrics=metrics, view=shown)
