"""A task: its targets, loss and metrics, the meaning of the network's outputs, and predictions as people see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.data.columns import Column
from stages.metrics.metric import MeanMetric, Metric
from stages.tasks.parts import Head, Loss, Targets, View

if TYPE_CHECKING:
    import tensorflow as tf

    from stages.settings.train import TrainSettings


@dataclass(frozen=True)
class Task:
    """Everything that depends on what is predicted.

    A custom task is a task of the project with some parts replaced: `replace(task, loss=MyLoss(task.head))`.
    """

    targets: Targets
    """The targets of the data set."""

    loss: Loss

    metrics: tuple[Metric, ...]
    """Metrics of each epoch and of the test. Models are compared by the first one."""

    head: Head
    """The meaning of the network's outputs."""

    view: View
    """Predictions as people see them."""

    name: str = "Task"

    kind: str = "auto"
    """The value of the setting `task`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, labels or targets."""
        return self.targets.names

    @property
    def primary(self) -> str:
        """The name of the metric by which models are compared."""
        return self.metrics[0].name

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of all metrics."""
        return tuple(metric.name for metric in self.metrics)

    @property
    def comparable(self) -> tuple[Metric, ...]:
        """Metrics that have influences, and so an interval; the first one compares predictions."""
        return tuple(metric for metric in self.metrics if metric.has_estimate)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of `predictions.parquet`: those of the target and of the predictions."""
        predictions = self.head.columns(np.zeros((1, self.head.width), np.float32))
        return tuple(dict.fromkeys((self.view.column, *predictions)))

    @property
    def described(self) -> dict[str, Any]:
        """Facts for `summary.json`, by which runs are compared."""
        return {
            "name": self.name,
            "primary": self.primary,
            "metrics": list(self.measured),
            "higher_is_better": [metric.name for metric in self.metrics if metric.higher_is_better],
        }

    def is_higher_better(self, metric: str) -> bool:
        """Return whether more of a metric is better, by its name with or without `val_`."""
        name = metric.removeprefix("val_")
        return any(one.higher_is_better for one in self.metrics if one.name == name)

    def with_metrics(self, *metrics: Metric) -> Task:
        """Return the task with more metrics, which the line of an epoch shows."""
        shown = (*self.view.shown, *(metric.name for metric in metrics))
        return replace(self, metrics=(*self.metrics, *metrics), view=replace(self.view, shown=shown))

    def for_training(self, settings: TrainSettings, targets: Column) -> Task:
        """Return the task with the loss that settings describe. targets: Of the training split."""
        return replace(self, loss=self.loss.for_training(settings, targets))

    def of_targets(self, targets: Column) -> Task:
        """Return the task for the targets of a data set, such as masks of one size."""
        head = self.head.of_targets(targets)
        return self if head is self.head else replace(self, head=head, loss=self.loss.with_head(head))

    def of_network(self, outputs: str) -> Task:
        """Return the task of a network that returns what `model.outputs` says."""
        head = self.head.of_network(outputs)
        return replace(self, head=head, loss=self.loss.with_head(head))

    @property
    def all_sums(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what `add_all` returns, by name."""
        import tensorflow as tf

        columns = self.head.known(self.targets.blank(), tf.zeros((1, *self.head.shape)))
        return {name: shape for metric in self.metrics for name, shape in metric.shapes(columns).items()}

    def add_all(self, targets: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what a batch adds to the sums of all metrics. weights: Of the examples, [b]."""
        columns = self.head.known(targets, outputs)
        return {name: part for metric in self.metrics for name, part in metric.sums(columns, weights).items()}

    def all_scores(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of an epoch. sums: Those of `add_all`, and `examples`, the sum of the weights."""
        return {metric.name: metric.value(sums) for metric in self.metrics}

    def metric_functions(self) -> dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
        """Return metrics for Keras' `fit`: functions of targets and outputs to a value per example, [b], by name."""
        means = [metric for metric in self.metrics if isinstance(metric, MeanMetric)]
        return {metric.name: partial(_value_of_each, self.head, metric) for metric in means}


def _value_of_each(head: Head, metric: MeanMetric, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf
    from tensorflow.experimental import numpy as xp

    return tf.cast(metric.values(head.known(targets, outputs), xp), outputs.dtype)
