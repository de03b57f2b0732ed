"""Regression: one or several numbers, standardized for the network, and answered in their own units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from stages.errors import UserError
from stages.metrics.metric import Metric
from stages.metrics.numbers import R2, Mae, Rmse
from stages.tasks.task import Task

if TYPE_CHECKING:
    from stages.settings.train import TrainSettings

STRATA = 10
"""Quantiles of the first target of which each split has its part, at most."""

ROWS_OF_STRATUM = 20
"""Examples of each of them, at least."""


@dataclass(frozen=True)
class Regression(Task):
    """Numbers, float32 [b, k].

    mean, std: of each target in the training split: the network is to answer with the target minus the mean, over std.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    kind: ClassVar[str] = "regression"
    primary: ClassVar[str] = "rmse"
    answer: ClassVar[str] = "prediction"

    @classmethod
    def of(cls, names: tuple[str, ...], targets: np.ndarray) -> Self:
        """Returns the task whose outputs are standardized by the `targets` of the training split, [N, k]."""
        wide = np.asarray(targets, np.float64)
        std = np.where(wide.std(axis=0) > 0, wide.std(axis=0), 1.0)
        return cls(names, tuple(map(float, wide.mean(axis=0))), tuple(map(float, std)))

    @property
    def learnt(self) -> dict[str, tuple[Any, ...]]:
        """See `Task`."""
        return {**super().learnt, "mean": self.mean, "std": self.std}

    def check(self, where: str, targets: np.ndarray) -> None:
        """See `Task`."""
        self.check_matrix(where, targets, "finite numbers", np.float32)

    def strata(self, targets: np.ndarray) -> np.ndarray | None:
        """Returns the quantile that each example's first target is in, int32 [N]; fewer where examples are few."""
        values = targets[:, 0]
        count = min(STRATA, len(values) // ROWS_OF_STRATUM)
        if count < 2:
            return None
        borders = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
        strata = np.searchsorted(borders, values, side="right")
        numbers, number, held = [], 0, 0
        for rows in np.bincount(strata, minlength=len(borders) + 1):
            numbers.append(number)
            held += rows
            if held >= ROWS_OF_STRATUM:  # where many values are equal, a stratum may have fewer: it goes with the next
                number, held = number + 1, 0
        return np.minimum(numbers, max(number - 1, 0))[strata].astype(np.int32)

    def groups(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Returns quantiles of the first target, by their ends."""
        strata = self.strata(targets)
        quantiles = np.zeros(len(targets), np.int32) if strata is None else strata
        rows = [np.flatnonzero(quantiles == place) for place in range(quantiles.max() + 1)]
        return {f"{targets[part, 0].min():.4g} to {targets[part, 0].max():.4g}": part for part in rows}

    def for_training(self, settings: TrainSettings, targets: np.ndarray) -> Self:
        """See `Task`.

        Raises:
            UserError: for settings that only classes have.
        """
        super().for_training(settings, targets)
        for name, default in {"label_smoothing": "0", "class_weights": "null"}.items():
            if getattr(settings, name):
                problem = f"train.{name} requires classes or labels, but the target is a number"
                raise UserError(problem, "", f"train.{name}={default}")
        return self

    def standardized(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns targets, [b, k], as the network is to answer them."""
        mean, std = (tf.constant(values, dtype) for values in (self.mean, self.std))
        return (tf.cast(targets, dtype) - mean) / std

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the squared error of each example, [b]: the mean over its standardized targets."""
        values = tf.square(outputs - self.standardized(targets, outputs.dtype))
        return tf.reduce_mean(values, axis=-1)

    def of_own_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Task`: standardized, so that a loss has the same scale whatever the units."""
        return self.standardized(targets, outputs.dtype), outputs

    @property
    def standard_metrics(self) -> tuple[Metric, ...]:
        """See `Task`."""
        return Rmse(self.std), Mae(self.std), R2(self.std)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Task`; numbers also as the network has them, standardized, in float64."""
        wanted, answers = self.soften(targets), self.answers(outputs)
        standardized = {
            "standardized_target": self.standardized(targets, tf.float64),
            "standardized_prediction": tf.cast(outputs, tf.float64),
        }
        return {"target": wanted, "prediction": answers, **standardized, "y_true": wanted, "y_pred": answers}

    def answers(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the targets in their own units, float32 [b, k]."""
        mean, std = (tf.constant(values, tf.float32) for values in (self.mean, self.std))
        return tf.cast(outputs, tf.float32) * std + mean

    def with_answers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Task`."""
        return keras.layers.Rescaling([*self.std], [*self.mean], dtype=outputs.dtype, name=self.answer)(outputs)

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray]:
        """See `Task`."""
        return {"prediction": np.stack([model.numbers(part) for part in targets.T], axis=1)}

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Task`; differences are in stds of the targets."""
        difference = (np.abs(ours - theirs) / np.array(self.std)).max(axis=1)
        return float(difference.max()), float(np.mean(difference <= allowed))
