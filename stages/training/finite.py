"""Weights that are finite: a loss can stay finite over others, as a ReLU makes 0 of a nan."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class FiniteWeights:
    """Looks for values that are not finite in `weights`, on their devices, in one compiled function."""

    def __init__(self, weights: Sequence[keras.Variable]) -> None:
        chosen = [weight for weight in weights if "float" in weight.dtype]
        self._names = [weight.path for weight in chosen]
        values = [weight.value for weight in chosen]

        @tf.function(autograph=False)
        def compiled() -> tf.Tensor:
            return tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values])

        self._compiled = compiled

    def invalid(self) -> str | None:
        """Returns the path of the first weight with a nan or an inf; None where all are finite."""
        finite = self._compiled().numpy() if self._names else []
        return next((name for name, holds in zip(self._names, finite, strict=True) if not holds), None)
