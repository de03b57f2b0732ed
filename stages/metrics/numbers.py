"""Metrics of predicted numbers, each the mean over the targets.

Training adds up the errors of standardized targets in float64, and tests use the targets in their own units.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.metrics.estimates import Columns, Estimate, Sample, mean_estimate, mean_of
from stages.metrics.intervals import Result, error_interval, r2_interval, root_interval
from stages.metrics.metric import Metric


@dataclass(frozen=True)
class OfNumbers(Metric):
    """A metric of several targets, the mean of that of each. A subclass defines `of_target`."""

    std: tuple[float, ...] = ()
    """The standard deviation of each target in the training split, in which errors are measured in training."""

    @abstractmethod
    def of_target(self, targets: np.ndarray, answers: np.ndarray, parts: np.ndarray) -> Estimate:
        """Return the metric of one target, [n] each in float64, and the influences on it."""

    def estimate(self, columns: Columns, parts: np.ndarray) -> Estimate:
        """See `Metric`."""
        wide = (np.asarray(columns[name], np.float64) for name in ("target", "prediction"))
        pairs = zip(*(values.T for values in wide), strict=True)
        return mean_of([self.of_target(target, answer, parts) for target, answer in pairs])


def _error(columns: Mapping[str, Any]) -> Any:
    return columns["standardized_prediction"] - columns["standardized_target"]


class Rmse(OfNumbers):
    """The root mean squared error, in the units of the targets."""

    name = "rmse"
    higher_is_better = False

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """See `Metric`."""
        return {"squared": xp.square(_error(columns))}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`."""
        return float(np.mean(np.array(self.std) * np.sqrt(sums["squared"] / sums["examples"])))

    def of_target(self, targets: np.ndarray, answers: np.ndarray, parts: np.ndarray) -> Estimate:
        """See `OfNumbers`."""
        mse, squares = mean_estimate(np.square(answers - targets), parts)
        rmse = math.sqrt(mse)
        with np.errstate(divide="ignore", invalid="ignore"):
            return rmse, squares / (2 * rmse) if rmse else squares

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`."""
        return root_interval(estimate, sample, confidence)


class Mae(OfNumbers):
    """The mean absolute error, in the units of the targets."""

    name = "mae"
    higher_is_better = False

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """See `Metric`."""
        return {"absolute": xp.abs(_error(columns))}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`."""
        return float(np.mean(np.array(self.std) * sums["absolute"] / sums["examples"]))

    def of_target(self, targets: np.ndarray, answers: np.ndarray, parts: np.ndarray) -> Estimate:
        """See `OfNumbers`."""
        return mean_estimate(np.abs(answers - targets), parts)

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`."""
        return error_interval(estimate, sample, confidence)


class R2(OfNumbers):
    """The coefficient of determination: 1 for perfect predictions, 0 for the mean of the targets."""

    name = "r2"

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """See `Metric`."""
        target = columns["standardized_target"]
        return {"squared": xp.square(_error(columns)), "target": target, "target_squared": xp.square(target)}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`."""
        spread = sums["target_squared"] - np.square(sums["target"]) / sums["examples"]
        is_constant = spread <= 1e-6 * sums["target_squared"]  # sums of batches are of float32; as scikit-learn has it
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.mean(np.where(is_constant, sums["squared"] == 0, 1 - sums["squared"] / spread)))

    def of_target(self, targets: np.ndarray, answers: np.ndarray, parts: np.ndarray) -> Estimate:
        """See `OfNumbers`."""
        mse, squares = mean_estimate(np.square(answers - targets), parts)
        spread, apart = mean_estimate(np.square(targets - np.average(targets, weights=parts)), parts)
        if np.ptp(targets[parts != 0]) == 0:  # as scikit-learn has it
            r2, spread = float(mse == 0), math.inf
        else:
            r2 = 1 - mse / spread
        with np.errstate(divide="ignore", invalid="ignore"):
            return r2, ((1 - r2) * apart - squares) / spread

    def ends(self, estimate: Estimate, sample: Sample, confidence: float) -> Result:
        """See `Metric`."""
        return r2_interval(estimate, sample, confidence)
