"""The base classes of metrics: a subclass defines what an example adds, and the value of the sums."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.metrics.estimates import Columns, Estimate, Sample, mean_estimate
from stages.metrics.intervals import (
    Result,
    error_interval,
    fraction_interval,
    influence_interval,
    symmetric_interval,
)

if TYPE_CHECKING:
    import tensorflow as tf

STEP = 1e-5
"""Relative change of a sum for the derivative of a metric by it."""


class Metric(ABC):
    """A metric, defined once for training, validation, tests, intervals, slices and comparisons.

    It is computed from columns: what is known of each example, by name. These are the columns of
    `predictions.parquet`, such as `label`, `predicted` and `probabilities`, as NumPy arrays in a test and as tensors in
    training. A subclass has a `name`, and defines `of_each` and `value`:

        class BalancedAccuracy(Metric):
            name = "balanced_accuracy"
            span = 1.0

            def of_each(self, columns, xp):
                is_class = xp.equal(columns["label"][:, None], xp.arange(columns["probabilities"].shape[1]))
                is_hit = xp.equal(columns["label"], columns["predicted"])[:, None]
                return {"of_class": is_class, "hits_of_class": is_class & is_hit}

            def value(self, sums):
                return float(np.mean(sums["hits_of_class"] / sums["of_class"]))

    Its influences, and so its interval, the test of slices and the paired comparison of runs, follow from these.
    """

    name: str
    """Name in logs, tables and settings: letters, digits and `_`."""

    higher_is_better: bool = True

    span: float = math.inf
    """Largest possible difference between two values: 1 for a metric between 0 and 1."""

    is_fraction: bool = False
    """Whether it is the fraction of the examples for which something holds. `of_each` then returns booleans."""

    has_estimate: bool = True
    """Whether influences can be computed. If not, it has no interval, and no test or comparison uses it."""

    @abstractmethod
    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """Return what each example adds to the sums, by the names of these: [n] or [n, ...].

        Metrics whose sums have the same name share the sum.

        Args:
            columns: What is known of each example, by name.
            xp: The module with the functions of the columns' arrays: `numpy`, or `tf.experimental.numpy` in training.
        """

    @abstractmethod
    def value(self, sums: Mapping[str, Any]) -> float:
        """Return the metric. sums: float64; of what `of_each` returns, and `examples`, the sum of the weights."""

    def sums(self, columns: Mapping[str, tf.Tensor], weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what a batch adds to the sums, of the dtype of `weights`, [b].

        They are added up over replicas and steps in float64. What `of_each` returns in float64 is summed in float64.
        """
        import tensorflow as tf
        from tensorflow.experimental import numpy as xp

        sums = {}
        for name, part in self.of_each(columns, xp).items():
            dtype = tf.float64 if part.dtype == tf.float64 else weights.dtype
            wide = tf.reshape(tf.cast(weights, dtype), [-1] + [1] * (len(part.shape) - 1))
            sums[name] = tf.cast(tf.reduce_sum(tf.cast(part, dtype) * wide, axis=0), weights.dtype)
        return sums

    def shapes(self, columns: Mapping[str, tf.Tensor]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what `sums` returns, by name."""
        from tensorflow.experimental import numpy as xp

        return {name: tuple(part.shape[1:]) for name, part in self.of_each(columns, xp).items()}

    def estimate(self, columns: Columns, parts: np.ndarray) -> Estimate:
        """Return the metric, and the influence of each example on it: its derivative by the example's weight.

        Args:
            columns: Of the test examples.
            parts: The weights of the examples with a mean of 1, float64 [n].
        """
        count = len(parts)
        of_each = {
            name: np.asarray(part, np.float64).reshape(count, -1) for name, part in self.of_each(columns, np).items()
        }
        shapes = {name: np.shape(part)[1:] for name, part in self.of_each(columns, np).items()}
        totals = {name: parts @ part for name, part in of_each.items()}

        def value(examples: float, name: str = "", place: int = 0, change: float = 0.0) -> float:
            sums = {key: total.copy() for key, total in totals.items()}
            if name:
                sums[name][place] += change
            return self.value({key: sums[key].reshape(shapes[key])[()] for key in sums} | {"examples": examples})

        step = STEP * count
        influences = np.full(count, (value(count + step) - value(count - step)) / (2 * step))
        for name, part in of_each.items():
            for place in np.flatnonzero(part.any(axis=0)).tolist():
                step = STEP * max(abs(float(totals[name][place])), 1e-3 * float(np.abs(part[:, place]).sum()))
                slope = (value(count, name, place, step) - value(count, name, place, -step)) / (2 * step)
                influences += slope * part[:, place]
        return value(count), count * parts * influences

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """Return the interval of an estimate by the metric's scale, or the reason why there is none."""
        if self.span <= 1:
            return influence_interval(estimate, sample, confidence)
        return symmetric_interval(estimate, sample, confidence)

    def interval(self, columns: Columns, confidence: float) -> Result:
        """Return the interval of the metric, or the reason why there is none."""
        sample = Sample.of(columns)
        return self.ends(self.estimate(columns, sample.parts), sample, confidence)

    def of_slice(self, columns: Columns, rows: np.ndarray) -> Columns:
        """Return the columns of a slice of the examples. rows: bool [n]."""
        return {name: values[rows] for name, values in columns.items()}

    def by_example(self, columns: Columns) -> np.ndarray:
        """Return a value of each independent example, whose mean is the metric.

        The values are bool [n] for a fraction of independent examples with equal weights. Otherwise they are the metric
        plus the influence on it of each example, float64 [n], or of each group, [groups].

        Returns:
            Only the metric, [1], if its influences are not reliable.
        """
        sample = Sample.of(columns)
        value, influences = self.estimate(columns, sample.parts)
        return value + sample.summed(influences - influences.mean())


class MeanMetric(Metric):
    """A mean over the examples. A subclass defines `values`."""

    @abstractmethod
    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        """Return the value of each example, [n]; see `Metric.of_each`."""

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """See `Metric`."""
        return {self.name: self.values(columns, xp)}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`."""
        return float(sums[self.name] / sums["examples"])

    def estimate(self, columns: Columns, parts: np.ndarray) -> Estimate:
        """See `Metric`."""
        return mean_estimate(self.values(columns, np), parts)


class Fraction(MeanMetric):
    """The fraction of the examples for which something holds. A subclass defines `values`, bool [n]."""

    span = 1.0
    is_fraction = True

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`: exact if examples count alike."""
        return fraction_interval(estimate, sample, confidence)

    def by_example(self, columns: Columns) -> np.ndarray:
        """See `Metric`."""
        if {"weight", "group"} & columns.keys():
            return super().by_example(columns)
        return np.asarray(self.values(columns, np))


class NonNegativeMean(MeanMetric):
    """A mean of errors, which are not negative and have no largest value. A subclass defines `values`."""

    higher_is_better = False

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`."""
        return error_interval(estimate, sample, confidence)
