"""Estimates of metrics: a value, and the influence of each example on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Estimate = tuple[float, np.ndarray]
"""A metric, and the influence of each example on it, float64 [n], up to a constant; [1] if it cannot be estimated."""

Columns = Mapping[str, np.ndarray]
"""Columns of a file of predictions, by name; `weight` if examples have weights, `group` if they belong to groups."""

LEAST_OF_CLASS = 5
"""Minimum number of examples of each class, or label, for an interval of a mean over them."""

LEAST_GROUPS = 10
"""Minimum number of groups for an interval."""


@dataclass(frozen=True)
class Sample:
    """The weights and groups of the examples of a test.

    parts: their weights with a mean of 1, float64 [n]. groups: the group of each, int [n]; None: each is its own.
    """

    parts: np.ndarray
    groups: np.ndarray | None = None

    @classmethod
    def of(cls, columns: Columns) -> "Sample":
        """Return the sample that the columns of a file of predictions are."""
        return cls(parts_of(len(next(iter(columns.values()))), columns.get("weight")), columns.get("group"))

    @property
    def effective(self) -> float:
        """Number of equally weighted examples that tell as much (Kish, Survey Sampling, 1965)."""
        squares = float(np.square(self.parts).sum())
        return float(self.parts.sum()) ** 2 / squares if squares else 0.0

    @property
    def units(self) -> float:
        """Number of independent examples: of groups, if examples belong to groups."""
        if self.groups is None:
            return self.effective
        return Sample(np.bincount(np.unique(self.groups, return_inverse=True)[1], self.parts)).effective

    def summed(self, influences: np.ndarray) -> np.ndarray:
        """Return the influence of each independent example: the sum of each group's; the mean stays."""
        if self.groups is None or len(influences) < len(self.parts):
            return influences
        sums = np.bincount(np.unique(self.groups, return_inverse=True)[1], influences)
        return np.asarray(sums * (len(sums) / len(influences)))

    def lacks(self, least: int = 2) -> str:
        """Return why it has too few examples or groups for an interval; an empty text if it has enough."""
        if self.groups is not None and self.units < LEAST_GROUPS - 1e-6:
            return f"at least {LEAST_GROUPS} groups of equal weight are needed"
        if self.effective < least - 1e-6:
            equal = " of equal weight" if np.ptp(self.parts) else ""
            small = " (smaller test sets may lack rare large errors)" * (least > 2)
            return f"at least {least} test examples{equal} are needed{small}"
        return ""


def parts_of(count: int, weights: np.ndarray | None) -> np.ndarray:
    """Return the weights of examples with a mean of 1, float64 [n]."""
    return np.ones(count) if weights is None else np.asarray(weights, np.float64) / weights.mean()


def mean_estimate(values: np.ndarray, parts: np.ndarray) -> Estimate:
    """Return the weighted mean of the examples' values, and the influence of each on it."""
    mean = float((parts * values).mean())
    return mean, parts * (values - mean)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of several metrics of the same examples."""
    values, influences = zip(*estimates, strict=True)
    return float(np.mean(values)), np.mean(influences, axis=0)
