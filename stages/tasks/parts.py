"""The parts of a task: targets, loss, head and view, each with what a task may leave to the default."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column
from stages.errors import UserError
from stages.metrics.estimates import Columns
from stages.metrics.metric import Metric
from stages.metrics.report import Measured

if TYPE_CHECKING:
    from pathlib import Path

    import keras
    import tensorflow as tf

    from stages.data.split import Split
    from stages.results import Dataset
    from stages.settings.results import EvaluateSettings
    from stages.settings.train import TrainSettings
    from stages.tasks.task import Task


@dataclass(frozen=True)
class Targets(ABC):
    """The targets of a data set: all that is known before there is a network."""

    names: tuple[str, ...]
    """Names of the classes, labels or targets."""

    plural: ClassVar[str] = "targets"
    """The plural of what `names` name, such as `classes`."""

    singular: ClassVar[str] = "target"

    @property
    def learnt(self) -> dict[str, tuple[Any, ...]]:
        """Fields that depend on the training split, by name. A trained network keeps them for other data."""
        return {"names": self.names}

    @abstractmethod
    def task(self) -> Task:
        """Return the task that these targets need by default."""

    @abstractmethod
    def check(self, where: str, targets: Column) -> None:
        """Raise UserError for targets of the wrong dtype, shape or range.

        Args:
            where: The data set and its split, as the message begins.
            targets: Those of a split, [N, ...].
        """

    def check_matrix(self, where: str, targets: np.ndarray, expected: str, dtype: type) -> None:
        """Raise UserError for targets that are not `expected`, finite, and [N, names] of `dtype`."""
        expected = f"{expected}, as {dtype.__name__} of shape [N, {len(self.names)}]"
        if targets.ndim != 2 or targets.shape[1] != len(self.names) or targets.dtype != dtype:
            raise UserError(f"{where} targets are {targets.dtype} of shape {targets.shape}", expected)
        is_wrong = ~np.isin(targets, (0, 1)) if dtype is np.int32 else ~np.isfinite(targets)
        if is_wrong.any():
            row, place = np.argwhere(is_wrong)[0]
            raise UserError(f"{where} target {self.names[place]} is {targets[row, place]} in row {row}", expected)

    @property
    def ignored_pixel(self) -> int | None:
        """The value of pixels that do not count, if targets are masks of the images, [N, H, W]; else None."""
        return None

    def soften(self, targets: tf.Tensor) -> tf.Tensor:
        """Return targets that can be mixed, float32 [b, names]."""
        import tensorflow as tf

        return tf.cast(targets, tf.float32)

    def blank(self) -> tf.Tensor:
        """Return targets of one example that can stand for any, as `soften` makes them."""
        import tensorflow as tf

        return tf.zeros((1, len(self.names)))

    def strata(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the stratum of each example, int32 [N]. Each split gets the same part of each. None: no strata."""
        return None

    def support(self, targets: Column) -> np.ndarray | None:
        """Return how many examples have each class or label, int64 [names]; None for other targets."""
        return None

    def groups(self, targets: Column) -> dict[str, np.ndarray]:
        """Return rows of examples that a gallery shows together, int64 [n], by what they have in common."""
        return {"all": np.arange(targets.shape[0])}

    def title(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Return a target, which may be mixed, in a few words. names: As they can be drawn."""
        return " ".join(f"{value:.4g}" for value in target)

    def drawn_on(self, images: np.ndarray, targets: np.ndarray, pixel_range: tuple[float, float]) -> np.ndarray:
        """Return images with their targets drawn on them, if these are places in the images.

        Args:
            images: uint8 or float32 [n, H, W, C].
            targets: Their targets, [n, ...].
            pixel_range: The values drawn black and white, also in the result.
        """
        return images


@dataclass(frozen=True)
class Head(ABC):
    """The meaning of a network's outputs: float32 [b, *shape], or wider, as its last layer returns them."""

    targets: Targets

    answer: ClassVar[str]
    """Name of the first output of an exported model, float32 [N, ...]."""

    @property
    def units(self) -> int:
        """Units of the network's last layer."""
        return len(self.targets.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the network's outputs for an example."""
        return (self.units,)

    @property
    def saved(self) -> dict[str, Any]:
        """Facts about the predictions, as JSON, that are saved with exported models."""
        return {}

    def of_targets(self, targets: Column) -> Self:
        """Return the head for the targets of a data set. It matters to heads whose shape depends on them."""
        return self

    def of_network(self, outputs: str) -> Self:
        """Return the head of a network that returns what `model.outputs` says, `logits` or `probabilities`."""
        return self

    def check(self, outputs: np.ndarray) -> None:
        """Raise UserError for outputs, [b, units], that a network with the right last layer does not return."""
        return

    @abstractmethod
    def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return what an exported model returns, float32 [b, units], such as probabilities."""

    def merged(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return outputs, [b, ...], whose predictions are the mean of those of several members, [b, members, ...]."""
        import tensorflow as tf

        return tf.reduce_mean(outputs, axis=1)

    def as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return `predictions` computed by layers of Keras, for a `.keras` file."""
        return outputs

    def merged_as_layers(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the mean of the members' `predictions` computed by layers of Keras, for outputs [b, members, ...]."""
        from keras import ops

        return self.as_layers(ops.mean(outputs, axis=1))

    @abstractmethod
    def known(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the columns from which metrics are computed, by name, [b] or [b, k]; see `Metric`.

        `y_true` and `y_pred` are what a metric of Keras receives, float32 [b, k]; without them it is refused.
        """

    def for_keras_loss(self, targets: tf.Tensor, outputs: tf.Tensor, as_logits: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return targets and outputs for a loss like those of Keras, [b, k] each, of the outputs' dtype.

        Args:
            targets: Of the batch.
            outputs: Of the network.
            as_logits: Whether the loss expects what the network returns.
        """
        import tensorflow as tf

        return tf.cast(targets, outputs.dtype), outputs

    def rows(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return a row of numbers per example, float32 [b, width], from which `columns` makes columns.

        They are the predictions, or for large ones what metrics need of them, such as counts of pixels.
        """
        return self.predictions(outputs)

    @property
    def width(self) -> int:
        """Numbers per example that `rows` returns."""
        return self.units

    def columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of `predictions.parquet`, [n] or [n, k], by name. rows: As `rows` returns them."""
        return {self.answer: rows}

    def derived(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return further outputs of an exported model, [b, ...], by name, each with fewer axes than `predictions`."""
        return {}

    def explained(self, predictions: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return further outputs of a SavedModel, which may be texts, [b, ...], by name. names: string [names]."""
        return self.derived(predictions)

    def differ(self, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> tuple[float, float]:
        """Return the largest difference between two models' predictions and the fraction of examples that agree.

        Args:
            ours: The predictions of the model, [N, ...].
            theirs: Those of its exported file.
            allowed: The largest difference that is not a disagreement.
        """
        difference = np.abs(ours - theirs)
        return float(difference.max()), float(np.mean(difference.max(axis=1) <= allowed))

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return `columns` of the test examples as a standard model predicts them; None if it cannot.

        Args:
            model: Has `probabilities(targets, classes)` for int targets [n], float32 [N, classes], and
                `numbers(targets)` for others [n], float64 [N].
            targets: Of the training split.
        """
        return None


@dataclass(frozen=True)
class Loss(ABC):
    """The loss of each example. The training step weighs, adds, and divides by the sum of the weights."""

    head: Head
    """Of the task: it says what the outputs are."""

    @abstractmethod
    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, [b]. targets: As in the data set, or mixed, as `soften` makes them."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """`_target_` and arguments of a loss that `task.loss` names; empty for any other."""
        return {}

    def weights(self, targets: tf.Tensor, dtype: tf.DType) -> tf.Tensor | None:
        """Return the weight of each example in training by its target, [b] of `dtype`; None: 1."""
        return None

    def with_head(self, head: Head) -> Self:
        """Return the loss for a network with different outputs."""
        return replace(self, head=head)

    def for_training(self, settings: TrainSettings, targets: Column) -> Self:
        """Return the loss with the settings of a training. targets: Of the training split.

        Raises:
            UserError: For settings that need classes or labels.
        """
        _refuse_settings_of_classes(settings)
        return self


def _refuse_settings_of_classes(settings: TrainSettings) -> None:
    for name, default in {"label_smoothing": "0", "class_weights": "null"}.items():
        if getattr(settings, name):
            problem = f"train.{name} requires classes or labels, but the target is a number"
            raise UserError(problem, "", f"train.{name}={default}")


Predict = Callable[[np.ndarray], np.ndarray]
"""From rows of the test split, int64 [n], to the predictions for them, [n, ...]."""


@dataclass(frozen=True)
class Trivial:
    """The same prediction for every example: the mean of the targets, or the majority."""

    model: str
    """It in words, up to the number of training examples, which closes its brackets."""

    row: np.ndarray
    """The prediction, as `Head.rows` returns one, float64 [width]."""

    metrics: Sequence[Metric]
    """The metrics to report of it."""

    further: Sequence[Metric] = ()
    """More metrics to compare, because the primary one can hardly tell models apart."""

    def rows(self, columns: Columns) -> np.ndarray:
        """Return the prediction for each of n examples, as `Head.rows` returns them, float32 [n, width].

        Args:
            columns: Those of the network's predictions, of which those of the targets may be used.
        """
        count = len(next(iter(columns.values())))
        return np.broadcast_to(self.row.astype(np.float32), (count, len(self.row)))


@dataclass(frozen=True)
class View:
    """Predictions as people see them: the line of an epoch, the report of a test with its plots, trivial baselines."""

    shown: tuple[str, ...] = ()
    """Metrics in the line of an epoch, in addition to the primary one."""

    column: ClassVar[str] = "target"
    """Name of the column of targets in `predictions.parquet`."""

    least: ClassVar[int] = 100
    """Minimum number of examples to report a difference: fewer may lack rare large errors."""

    def target_columns(self, split: Split) -> dict[str, np.ndarray]:
        """Return the columns of targets in `predictions.parquet`, [n] or [n, k], by name."""
        return {self.column: split.target_values}

    def text(self, metric: str, value: float, higher_is_better: bool) -> str:
        """Return a loss or a metric as the line of an epoch has it: errors with four digits in all."""
        if value != value:
            return "undefined"
        return f"{value:.4f}" if metric.endswith("loss") or higher_is_better else f"{value:.4g}"

    def report(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> Measured:
        """Return the metrics of predictions with their intervals, and tables.

        Args:
            metrics: Those of the task that have influences.
            columns: Those of a file of predictions.
            names: Of the targets.
            confidence: Of the intervals.
            bins: Of the calibration error.
        """
        return Measured.of(metrics, columns, confidence)

    def values(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> dict[str, float]:
        """Return the metrics of `report` by name, without what takes long."""
        return {**self.report(metrics, columns, names, confidence, bins).values}

    def draw(
        self, columns: Columns, dataset: Dataset, settings: EvaluateSettings, folder: Path, predict: Predict
    ) -> list[Path]:
        """Draw plots of predictions, and return their paths.

        Args:
            columns: Those of a file of predictions.
            dataset: The data set with the test examples.
            settings: The settings of the evaluation.
            folder: The folder of the run.
            predict: Returns `Head.predictions` of some test examples, by their rows, int64 [n].
        """
        return []

    def further(self, names: Sequence[str], train: Split) -> tuple[Metric, ...]:
        """Return more metrics by which models are compared, because the primary one can hardly tell them apart.

        The accuracy hardly can if one class has most of the training examples.
        """
        return ()

    def trivial(self, task: Task, train: Split) -> Trivial | None:
        """Return the trivial prediction, learned from the training split; None if there is none."""
        return None

    def not_beaten(self, names: Sequence[str], ours: Columns, trivial: Columns) -> list[str]:
        """Return the targets, out of several, for which a network does not beat the trivial prediction."""
        return []

    def explained_variance(self, columns: Columns) -> float | None:
        """Return R², which is at most 0 for a network that does not beat the mean; None for other targets."""
        return None
