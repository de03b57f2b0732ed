"""The metrics that predictions in a file are compared by, by their names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stages.metrics.classes import Accuracy, LogLoss
from stages.metrics.estimates import Columns, Estimate
from stages.metrics.labels import ExactMatch, MacroF1
from stages.metrics.metric import Metric
from stages.metrics.numbers import R2, Mae, Rmse
from stages.metrics.segmentation import Dice, MeanIou, PixelAccuracy

KNOWN: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *(Accuracy(), MacroF1(), ExactMatch(), Rmse(), Mae(), R2(), LogLoss()),
        *(MeanIou(), Dice(), PixelAccuracy()),
    )
}


INFLUENCE = "influence"
"""Name of the column with a custom metric plus the influence of each example on it."""


class Recorded(Metric):
    """A custom metric whose influences are in a column of the file, so a comparison does not need its code."""

    def __init__(self, name: str, higher_is_better: bool) -> None:
        self.name, self.higher_is_better = name, higher_is_better

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """See `Metric`."""
        return {self.name: columns[INFLUENCE]}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`."""
        return float(sums[self.name] / sums["examples"])

    def estimate(self, columns: Columns, parts: np.ndarray) -> Estimate:
        """See `Metric`."""
        value = float(columns[INFLUENCE].mean())
        return value, columns[INFLUENCE] - value


def known_metric(name: str, higher_is_better: bool = True) -> Metric:
    """Return the project's metric of this name, or a custom one as files of predictions record it."""
    return KNOWN.get(name) or Recorded(name, higher_is_better)


def recorded(metric: Metric, columns: Columns, parts: np.ndarray) -> dict[str, np.ndarray]:
    """Return the column that a file of predictions needs for comparisons by a custom metric; none for other metrics."""
    if metric.name in KNOWN:
        return {}
    value, influences = metric.estimate(columns, parts)
    return {INFLUENCE: value + influences - influences.mean()}
