"""Metrics of forecasts. Their intervals are by blocks of time, because errors of neighboring windows are alike."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.metrics.estimates import Columns, Estimate, Sample, mean_estimate
from stages.metrics.intervals import Result
from stages.metrics.metric import MeanMetric
from stages.metrics.numbers import Mae, Rmse

BLOCKS = 15
"""Maximum number of blocks of a test split."""

LEAST_BLOCKS = 5
"""Minimum number of blocks for an interval."""

HORIZONS = 3
"""Minimum length of a block, in horizons."""


def blocks_of(places: np.ndarray, horizon: int) -> np.ndarray:
    """Return the number of the block of each window, int64 [N]: nearly equal parts of the time of a split.

    There are at most BLOCKS, none shorter than HORIZONS horizons, and at least one.

    Args:
        places: The steps from the beginning of the series at which the windows' targets begin, int64 [N].
        horizon: The number of predicted steps.
    """
    first = places.min()
    span = int(places.max() - first) + 1
    count = max(min(BLOCKS, span // (HORIZONS * horizon)), 1)
    return (places - first) * count // span


def block_interval(estimate: Estimate, sample: Sample, confidence: float, is_positive: bool = True) -> Result:
    """Return the interval of a mean by the means of blocks of time (batch means), with Student's t.

    Source: Law, Simulation Modeling and Analysis, 5th edition, 2015, section 9.5.3. Blocks must be so long that their
    means are nearly independent.

    Args:
        estimate: The metric and the influences of the examples.
        sample: The blocks of the examples as groups.
        confidence: The confidence of the interval.
        is_positive: Whether the metric is never negative.
    """
    from scipy.special import stdtrit

    value, influences = estimate
    if sample.groups is None or len(np.unique(sample.groups)) < LEAST_BLOCKS:
        return f"at least {LEAST_BLOCKS} blocks of {HORIZONS} horizons are needed"
    units = sample.summed(influences - influences.mean())
    count = len(units)
    error = math.sqrt(float(np.square(units).sum()) / (count * (count - 1)))
    half = float(stdtrit(count - 1, (1 + confidence) / 2)) * error
    return max(value - half, 0.0) if is_positive else value - half, value + half


class ForecastMae(Mae):
    """The mean absolute error over all steps, in the units of the targets."""

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`."""
        return block_interval(estimate, sample, confidence)


class ForecastRmse(Rmse):
    """The root mean squared error, in the units of the targets: the mean over the steps of that of each."""

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`."""
        return block_interval(estimate, sample, confidence)


@dataclass(frozen=True)
class Mase(ForecastMae):
    """The mean absolute error, divided by that of the seasonal naive forecast one step ahead in the training split.

    Source: Hyndman and Koehler, International Journal of Forecasting 22, 2006.
    """

    name = "mase"

    naive: tuple[float, ...] = ()
    """The mean absolute error of the seasonal naive forecast of each target and step."""

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`."""
        return float(np.mean(np.array(self.std) / np.array(self.naive) * sums["absolute"] / sums["examples"]))

    def estimate(self, columns: Columns, parts: np.ndarray) -> Estimate:
        """See `Metric`."""
        errors = np.abs(np.asarray(columns["prediction"], np.float64) - columns["target"]) / np.array(self.naive)
        return mean_estimate(errors.mean(axis=1), parts)


@dataclass(frozen=True)
class Pinball(MeanMetric):
    """The mean pinball loss of quantiles over all steps, in the units of the targets."""

    name = "pinball"
    higher_is_better = False

    quantiles: tuple[float, ...] = ()

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        """See `MeanMetric`."""
        targets = columns["target"]
        by_target = xp.reshape(columns["quantiles"], (-1, targets.shape[1], len(self.quantiles)))
        errors = targets[:, :, None] - by_target
        levels = np.array(self.quantiles, np.float32)
        return xp.mean(xp.maximum(levels * errors, (levels - 1) * errors), axis=(1, 2))

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`."""
        return block_interval(estimate, sample, confidence)
