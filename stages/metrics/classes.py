"""Metrics of predicted classes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stages.metrics.metric import Fraction, NonNegativeMean

LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
"""Smallest probability in a log loss, 1.2e-07: scikit-learn clips smaller ones to it."""


class Accuracy(Fraction):
    """The fraction of the examples whose class is predicted; a mixed example has the class of its greatest part."""

    name = "accuracy"

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        """See `MeanMetric`."""
        return xp.equal(columns["label"], columns["predicted"])


class LogLoss(NonNegativeMean):
    """The mean cross-entropy of the examples; for labels that of each, averaged over the labels."""

    name = "log_loss"

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        """See `MeanMetric`."""
        given = columns["probabilities"]
        if "label" in columns:
            given = xp.take_along_axis(given, columns["label"][:, None], axis=1)
        else:
            given = xp.where(columns["target"] > 0, given, 1 - given)
        wide = xp.clip(xp.asarray(given, xp.float64), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        return -xp.mean(xp.log(wide), axis=1)
