"""A metric of Keras as a metric of a task."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.metrics.metric import Metric

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "mape", "perplexity", "divergence", "entropy")
"""Endings of the names of metrics that are better when lower, for metrics without a direction."""


class KerasMetric(Metric):
    """A metric of Keras whose state is made of sums that start at 0.

    It receives the columns `y_true` and `y_pred`. Keras does not define what single examples contribute, so the metric
    has no interval.
    """

    has_estimate = False

    def __init__(self, metric: "keras.metrics.Metric") -> None:
        import keras

        self.metric = metric
        self.name = str(metric.name)
        direction = getattr(metric, "_direction", None)  # Keras' own, which its counts lack
        is_of_mistakes = isinstance(metric, (keras.metrics.FalsePositives, keras.metrics.FalseNegatives))
        is_low = is_of_mistakes or self.name.endswith(LOWER_IS_BETTER)
        self.higher_is_better = direction == "up" if direction else not is_low

    def _sum(self, index: int) -> str:
        return f"own_{self.name}_{index}"

    def starts_at_zero(self, columns: Mapping[str, "tf.Tensor"], weights: "tf.Tensor") -> bool:
        """Return whether the initial state is 0. Some metrics create it only when they first receive examples."""
        import keras

        self.metric.update_state(columns["y_true"], columns["y_pred"], sample_weight=weights)
        self.metric.reset_state()
        return all(not np.any(keras.ops.convert_to_numpy(one)) for one in self.metric.variables)

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """Keras adds up batches, not examples."""
        raise NotImplementedError

    def shapes(self, columns: Mapping[str, "tf.Tensor"]) -> dict[str, tuple[int, ...]]:
        """See `Metric`."""
        return {self._sum(index): tuple(one.shape) for index, one in enumerate(self.metric.variables)}

    def sums(self, columns: Mapping[str, "tf.Tensor"], weights: "tf.Tensor") -> dict[str, "tf.Tensor"]:
        """See `Metric`: what a batch adds to the state."""
        import tensorflow as tf

        first = [tf.zeros(one.shape, one.dtype) for one in self.metric.variables]
        given = columns["y_true"], columns["y_pred"]
        state = self.metric.stateless_update_state(first, *given, sample_weight=weights)
        return {self._sum(index): value for index, value in enumerate(state)}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`; nan if it needs examples of both kinds and has only one. Keras' own value is then 0 or 1."""
        import keras
        import tensorflow as tf

        state = [tf.cast(sums[self._sum(index)], one.dtype) for index, one in enumerate(self.metric.variables)]
        at_thresholds = (keras.metrics.SensitivityAtSpecificity, keras.metrics.SpecificityAtSensitivity)
        is_ranking = isinstance(self.metric, keras.metrics.AUC) and self.metric.curve.value == "ROC"
        if is_ranking or isinstance(self.metric, at_thresholds):
            hits, false_hits, true_misses, misses = map(keras.ops.convert_to_numpy, state)
            if not ((hits + misses > 0) & (false_hits + true_misses > 0)).all():
                return float("nan")
        return float(keras.ops.convert_to_numpy(self.metric.stateless_result(state)))
