"""The base class of tasks: what a training, an evaluation and an export ask about what is predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.errors import UserError
from stages.metrics.metric import MeanMetric, Metric

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from stages.settings.train import TrainSettings


@dataclass(frozen=True, eq=False)
class OwnLoss:
    """A function of targets and answers, [b, k] each, to the loss of each example, [b].

    settings: `_target_` and arguments. takes_logits: whether its `from_logits` is true, so that answers are what the
    network returns.
    """

    settings: Mapping[str, Any]
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    takes_logits: bool

    @property
    def name(self) -> str:
        return str(self.settings["_target_"]).rpartition(".")[2]


@dataclass(frozen=True)
class Task(ABC):
    """Everything that depends on what is predicted.

    Targets and outputs are tensors of a batch: targets as `Split.targets` has them, or as `soften` makes them; outputs
    as the last layer of a network returns them, float32 [b, outputs] or wider.

    names: of the classes, labels or targets.
    kind: as `task` has it; `auto`: of a task of one's own alone.
    primary: the name of the metric by which models are compared.
    answer: name of what an exported model returns first, float32 [N, outputs].
    target: name of the column of targets in `predictions.parquet`. named: what `names` are of.
    least: examples of which a difference is told from none, at least; of fewer, rare large errors may be missing.
    own_loss, own_metrics: those of the configuration, instead of `losses` and in addition to `standard_metrics`.
    """

    names: tuple[str, ...]
    own_loss: OwnLoss | None = field(default=None, kw_only=True)
    own_metrics: tuple[Metric, ...] = field(default=(), kw_only=True)

    kind: ClassVar[str] = "auto"
    primary: ClassVar[str]
    answer: ClassVar[str]
    target: ClassVar[str] = "target"
    named: ClassVar[str] = "targets"
    least: ClassVar[int] = 100

    @property
    def ignored_pixel(self) -> int | None:
        """The value of pixels that do not count, if targets are masks of the images, [N, H, W]; else None."""
        return None

    @property
    def outputs(self) -> int:
        """Units of the last layer of a network."""
        return len(self.names)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the data set to record, such as the number of classes."""
        return {self.named: len(self.names)}

    @property
    def learnt(self) -> dict[str, tuple[Any, ...]]:
        """Fields that the answers of a trained network depend on, by name; it keeps them on other data."""
        return {"names": self.names}

    @property
    def described(self) -> dict[str, Any]:
        """Facts for `summary.json`, by which runs are compared."""
        return {
            "name": type(self).__name__,
            "primary": self.primary,
            "metrics": list(self.measured),
            "higher_is_better": [name for name in self.measured if self.is_higher_better(name)],
        }

    @property
    @abstractmethod
    def standard_metrics(self) -> tuple[Metric, ...]:
        """The metrics that every training with this task has."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics of an epoch."""
        return (*self.standard_metrics, *self.own_metrics)

    @property
    def primary_metric(self) -> Metric:
        """The metric by which models are compared."""
        return next(metric for metric in self.metrics if metric.name == self.primary)

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of all metrics of an epoch."""
        return tuple(metric.name for metric in self.metrics)

    def is_higher_better(self, metric: str) -> bool:
        """Return whether more of a metric is better, by its name with or without `val_`."""
        name = metric.removeprefix("val_")
        return any(one.higher_is_better for one in self.metrics if one.name == name)

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics in the line of an epoch."""
        return (self.primary, *(own.name for own in self.own_metrics))

    def text(self, metric: str, value: float) -> str:
        """Returns a loss or a metric as the line of an epoch has it: errors with four digits in all."""
        if value != value:
            return "undefined"
        return f"{value:.4f}" if metric.endswith("loss") or self.is_higher_better(metric) else f"{value:.4g}"

    @abstractmethod
    def check(self, where: str, targets: np.ndarray) -> None:
        """Raises UserError for targets of another dtype, shape or range.

        Args:
            where: the data set and its split, as the message begins.
        """

    def check_matrix(self, where: str, targets: np.ndarray, expected: str, dtype: type) -> None:
        """Raises UserError for targets that are not `expected`, finite, and [N, outputs] of `dtype`."""
        expected = f"{expected}, as {dtype.__name__} of shape [N, {len(self.names)}]"
        if targets.ndim != 2 or targets.shape[1] != len(self.names) or targets.dtype != dtype:
            raise UserError(f"{where} targets are {targets.dtype} of shape {targets.shape}", expected)
        is_wrong = ~np.isin(targets, (0, 1)) if dtype is np.int32 else ~np.isfinite(targets)
        if is_wrong.any():
            row, place = np.argwhere(is_wrong)[0]
            raise UserError(f"{where} target {self.names[place]} is {targets[row, place]} in row {row}", expected)

    def strata(self, targets: np.ndarray) -> np.ndarray | None:
        """Returns the stratum of each example, int [N], of which each split gets the same part; None: no strata."""
        return None

    def support(self, targets: np.ndarray) -> np.ndarray | None:
        """Returns how many examples have each class or label, int64 [outputs]; None: targets are neither."""
        return None

    def groups(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the rows, int64 [n], of examples that a plot shows beside each other, by what they have in common."""
        return {"all": np.arange(len(targets))}

    def title(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Returns the target of an example, maybe a mixed one, in a few words. names: as they can be drawn."""
        return " ".join(f"{value:.4g}" for value in target)

    def for_training(self, settings: TrainSettings, targets: np.ndarray) -> Self:
        """Returns the task as `settings` have its loss. targets: of the training split."""
        if self.own_loss is not None and settings.label_smoothing:
            raise UserError(
                f"train.label_smoothing={settings.label_smoothing} has no effect with a custom loss (task.loss)",
                "only one of the two settings",
                "train.label_smoothing=0",
            )
        return self

    def of_network(self, outputs: str) -> Self:
        """Returns the task of a network whose last layer returns what `model.outputs` says."""
        return self

    def check_outputs(self, outputs: np.ndarray) -> None:
        """Raises UserError for outputs, [b, outputs], that a network with the right last layer does not return."""
        return

    @abstractmethod
    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, [b]: the step weighs, adds, and divides by the sum of the weights."""

    def loss_of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, [b]: of the configuration, else the task's."""
        if self.own_loss is None:
            return self.losses(targets, outputs)
        return self.own_loss.function(*self.of_own_loss(targets, outputs, self.own_loss.takes_logits))

    def of_own_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns targets and answers for a loss of the configuration, [b, k] each, of the outputs' dtype.

        Args:
            as_logits: whether answers are to be what the network returns.
        """
        raise NotImplementedError

    def weights(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor | None:
        """Returns the weight of each example in training by its target, [b] of `dtype`; None: 1."""
        return None

    def soften(self, targets: tf.Tensor) -> tf.Tensor:
        """Returns targets that can be mixed, float32 [b, outputs]."""
        import tensorflow as tf

        return tf.cast(targets, tf.float32)

    @abstractmethod
    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the columns from which metrics are computed, by name, [b] or [b, k]; see `Metric`.

        `y_true` and `y_pred` are what a metric of Keras receives, float32 [b, k].
        """

    @property
    def all_sums(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what `add_all` returns, by name."""
        import tensorflow as tf

        columns = self.known(tf.zeros((1, len(self.names))), tf.zeros((1, self.outputs)))
        return {name: shape for metric in self.metrics for name, shape in metric.shapes(columns).items()}

    def add_all(self, targets: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what a batch adds to the sums of all metrics. weights: of the examples, [b]."""
        columns = self.known(targets, outputs)
        return {name: part for metric in self.metrics for name, part in metric.sums(columns, weights).items()}

    def all_scores(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of an epoch. sums: those of `add_all`, and `examples`, the sum of the weights."""
        return {metric.name: metric.value(sums) for metric in self.metrics}

    def metric_functions(self) -> dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
        """Return metrics for Keras' `fit`: functions of targets and outputs to a value per example, [b], by name."""
        means = [metric for metric in self.metrics if isinstance(metric, MeanMetric)]
        return {metric.name: partial(self._value_of_each, metric) for metric in means}

    def _value_of_each(self, metric: MeanMetric, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf
        from tensorflow.experimental import numpy as xp

        return tf.cast(metric.values(self.known(targets, outputs), xp), outputs.dtype)

    @abstractmethod
    def answers(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns what an exported model answers, float32 [b, outputs], such as probabilities."""

    def with_answers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """Returns `answers` as Keras' layers make them, for a `.keras` file."""
        return outputs

    def predict(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns a row of numbers for each example, float32 [b, width], of which `columns` makes columns."""
        return self.answers(outputs)

    @property
    def width(self) -> int:
        """Numbers that `predict` returns for an example."""
        return self.outputs

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the columns of `predictions.parquet` by name, [n] or [n, k]. rows: of `predict`."""
        return {self.answer: rows}

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of `predictions.parquet`: of the target, and of `columns`."""
        return (self.target, *self.columns(np.zeros((1, self.width), np.float32)))

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Returns `columns` of the test examples as a standard model predicts them. targets: of the training split.

        Args:
            model: has `probabilities(targets, classes)` for int targets [n], float32 [N, classes], and
                `numbers(targets)` for others [n], float64 [N].
        """
        raise NotImplementedError

    def explained(self, answers: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns further answers of a SavedModel by name, [b, ...]. names: string [outputs]."""
        return {}

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """Returns the largest difference between two models' answers, [N, outputs], and the part of the examples that
        agree. allowed: a difference that is no disagreement.
        """
        difference = np.abs(ours - theirs)
        return float(difference.max()), float(np.mean(difference.max(axis=1) <= allowed))
