"""Regression: one or several numbers, standardized for the network, and predicted in their own units."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from stages.data.columns import Column, held
from stages.data.split import Split
from stages.metrics.estimates import Columns, Sample
from stages.metrics.intervals import Result, reported
from stages.metrics.metric import Metric
from stages.metrics.numbers import R2, Mae, Rmse
from stages.metrics.report import Measured, means_of, some
from stages.plots.charts import plot_numbers
from stages.tasks.multi_label import one_target
from stages.tasks.parts import Head, Loss, Predict, Targets, Trivial, View
from stages.tasks.task import Task

if TYPE_CHECKING:
    from stages.results import Dataset
    from stages.settings.results import EvaluateSettings

STRATA = 10
"""Maximum number of quantiles of the first target. Each split gets the same part of each quantile."""

ROWS_OF_STRATUM = 20
"""Minimum number of examples of each of them."""

DRAWN = 4
"""Maximum number of targets whose predictions are drawn."""


@dataclass(frozen=True)
class NumberTargets(Targets):
    """Numbers, float32 [b, k]."""

    mean: tuple[float, ...] = ()
    """The mean of each target in the training split."""

    std: tuple[float, ...] = ()
    """The standard deviation of each; the network returns the target minus the mean, divided by it."""

    @classmethod
    def of(cls, names: tuple[str, ...], targets: np.ndarray) -> Self:
        """Return the targets, standardized by those of the training split, [N, k]."""
        wide = np.asarray(targets, np.float64)
        std = np.where(wide.std(axis=0) > 0, wide.std(axis=0), 1.0)
        return cls(names, tuple(map(float, wide.mean(axis=0))), tuple(map(float, std)))

    @property
    def learnt(self) -> dict[str, tuple[Any, ...]]:
        """See `Targets`."""
        return {**super().learnt, "mean": self.mean, "std": self.std}

    def task(self) -> Task:
        """See `Targets`."""
        head = NumberHead(self)
        metrics = (Rmse(self.std), Mae(self.std), R2(self.std))
        return Task(self, SquaredError(head), metrics, head, NumberView(), "Regression", "regression")

    def check(self, where: str, targets: Column) -> None:
        """See `Targets`."""
        targets = held(targets)
        self.check_matrix(where, targets, "finite numbers", np.float32)

    def strata(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the quantile that each example's first target is in, int32 [N]; fewer if there are few examples."""
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
            if held >= ROWS_OF_STRATUM:  # if many values are equal, a stratum may have fewer: it goes with the next
                number, held = number + 1, 0
        return np.minimum(numbers, max(number - 1, 0))[strata].astype(np.int32)

    def groups(self, targets: Column) -> dict[str, np.ndarray]:
        """Return quantiles of the first target, by their ends."""
        targets = held(targets)
        strata = self.strata(targets)
        quantiles = np.zeros(len(targets), np.int32) if strata is None else strata
        rows = [np.flatnonzero(quantiles == place) for place in range(quantiles.max() + 1)]
        return {f"{targets[part, 0].min():.4g} to {targets[part, 0].max():.4g}": part for part in rows}

    def standardized(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Return targets, [b, k], as the network returns them."""
        mean, std = (tf.constant(values, dtype) for values in (self.mean, self.std))
        return (tf.cast(targets, dtype) - mean) / std


@dataclass(frozen=True)
class NumberHead(Head):
    """One output per target: the standardized target."""

    targets: NumberTargets

    answer: ClassVar[str] = "prediction"

    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the targets in their own units, float32 [b, k]."""
        mean, std = (tf.constant(values, tf.float32) for values in (self.targets.mean, self.targets.std))
        return tf.cast(outputs, tf.float32) * std + mean

    def as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """See `Head`."""
        mean, std = [*self.targets.mean], [*self.targets.std]
        return keras.layers.Rescaling(std, mean, dtype=outputs.dtype, name=self.answer)(outputs)

    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`; numbers also as the network returns them, standardized, in float64."""
        wanted, answers = self.targets.soften(targets), self.predictions(outputs)
        standardized = {
            "standardized_target": self.targets.standardized(targets, tf.float64),
            "standardized_prediction": tf.cast(outputs, tf.float64),
        }
        return {"target": wanted, self.answer: answers, **standardized, "y_true": wanted, "y_pred": answers}

    def for_keras_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Head`: standardized, so a loss has the same scale in any units."""
        return self.targets.standardized(targets, outputs.dtype), outputs

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray] | None:
        """See `Head`."""
        return {self.answer: np.stack([model.numbers(part) for part in targets.T], axis=1)}

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """See `Head`; differences are in standard deviations of the targets."""
        difference = (np.abs(ours - theirs) / np.array(self.targets.std)).max(axis=1)
        return float(difference.max()), float(np.mean(difference <= allowed))


@dataclass(frozen=True)
class SquaredError(Loss):
    """The squared error of each example: the mean over its standardized targets."""

    head: NumberHead

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`."""
        values = tf.square(outputs - self.head.targets.standardized(targets, outputs.dtype))
        return tf.reduce_mean(values, axis=-1)


@dataclass(frozen=True)
class NumberView(View):
    """Predicted numbers as people see them."""

    def report(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> Measured:
        """See `View`."""
        return report_numbers(columns, names, confidence, metrics)

    def draw(
        self, columns: Columns, dataset: "Dataset", settings: "EvaluateSettings", folder: Path, predict: Predict
    ) -> list[Path]:
        """See `View`: predictions against the first targets."""
        pairs = zip(dataset.task.names[:DRAWN], columns["target"].T, columns["prediction"].T, strict=False)
        return [plot_numbers(list(pairs), folder / "plots" / "predicted.png")]

    def trivial(self, task: Task, train: Split) -> Trivial:
        """Return the mean of each target."""
        model = f"the mean baseline (always the mean of {some(task.names)} in"
        return Trivial(model, means_of(train.target_values, train.weights, len(task.names)), task.comparable)

    def not_beaten(self, names: Sequence[str], ours: Columns, trivial: Columns) -> list[str]:
        """Return the targets whose R² is not above 0."""
        r2 = [float(R2().by_example(one_target(ours, place)).mean()) for place in range(len(names))]
        return [name for name, value in zip(names, r2, strict=True) if value <= 0]

    def explained_variance(self, columns: Columns) -> float:
        """See `View`."""
        return float(R2().by_example(columns).mean())


def regression(names: Sequence[str], mean: Sequence[float] = (), std: Sequence[float] = ()) -> Task:
    """Return the task of predicting numbers, with the mean and the standard deviation of each target."""
    return NumberTargets(tuple(names), tuple(mean), tuple(std)).task()


def report_numbers(
    columns: Columns, names: Sequence[str], confidence: float, metrics: Sequence[Metric] = (Rmse(), Mae(), R2())
) -> Measured:
    """Return the metrics of targets and predictions; for several targets their means, and those of each.

    Args:
        columns: `target` and `prediction`, float32 [n, k] each, and `weight`, if any.
        metrics: Those of the task.
    """
    from sklearn.metrics import median_absolute_error  # some tenths of a second

    targets, answers = (np.asarray(columns[name], np.float64) for name in ("target", "prediction"))
    weights = columns.get("weight")
    several = len(names) > 1
    values: dict[str, float] = {}
    results: dict[str, Result] = {}
    for metric in metrics:
        of_targets = {f"{metric.name}/{name}": one_target(columns, place) for place, name in enumerate(names)}
        for name, part in {metric.name: columns, **(of_targets if several else {})}.items():
            values[name] = metric.estimate(part, Sample.of(part).parts)[0]
            results[name] = metric.interval(part, confidence)
    if weights is None or weights.any():
        medians = median_absolute_error(targets, answers, sample_weight=weights, multioutput="raw_values")
        for name, error in zip(names, medians, strict=True):
            values["median_error" + f"/{name}" * several] = float(error)
    intervals, reasons = reported(results)
    return Measured(values=values, intervals=intervals, notes=reasons)
