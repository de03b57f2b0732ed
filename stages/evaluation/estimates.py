"""Metrics of predictions as estimates: a value, and the influence of each example on it.

They need NumPy alone, so that runs are compared in pairs without what draws and reports them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

Estimate = tuple[float, np.ndarray]
"""A metric, and the influence of each example on it, float64 [n], up to a constant; [1] if it cannot be estimated."""

Columns = Mapping[str, np.ndarray]
"""Columns of a file of predictions, by name; `weight` if examples have weights, `group` if they belong to groups."""

ERRORS = ("log_loss", "rmse", "mae")
"""Metrics, also of single targets, of which less is better; they have no largest value."""

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
    """Returns the weights of examples with a mean of 1, float64 [n]."""
    return np.ones(count) if weights is None else np.asarray(weights, np.float64) / weights.mean()


def mean_estimate(values: np.ndarray, parts: np.ndarray) -> Estimate:
    """Returns the weighted mean of the examples' values, and the influence of each on it."""
    mean = float((parts * values).mean())
    return mean, parts * (values - mean)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Returns the mean of several metrics of the same examples."""
    values, influences = zip(*estimates, strict=True)
    return float(np.mean(values)), np.mean(influences, axis=0)


def macro_f1(targets: np.ndarray, predicted: np.ndarray, parts: np.ndarray) -> Estimate:
    """Returns the mean of the labels' F1, of 0 and 1 [n, k]; 0 for one that never holds and is never predicted."""
    hits, holds = parts[:, None] * (targets & predicted), parts[:, None] * (targets + predicted)
    below = holds.mean(axis=0)
    scale = np.divide(1.0, below, out=np.zeros(len(below)), where=below > 0)
    f1 = 2 * hits.mean(axis=0) * scale
    return float(f1.mean()), ((2 * hits - f1 * holds) * scale).mean(axis=1)


def rarest_label(targets: np.ndarray, parts: np.ndarray) -> int:
    """Return the number of examples of the rarest label that weigh something. targets: of 0 and 1, [n, k]."""
    return int(targets[parts > 0].sum(axis=0).min(initial=len(targets)))


def number_estimates(targets: np.ndarray, answers: np.ndarray, parts: np.ndarray) -> dict[str, Estimate]:
    """Returns RMSE, MAE and R² of one target, [n] each."""
    targets, answers = (np.asarray(values, np.float64) for values in (targets, answers))
    error = answers - targets
    mse, squares = mean_estimate(np.square(error), parts)
    rmse = math.sqrt(mse)
    spread, apart = mean_estimate(np.square(targets - np.average(targets, weights=parts)), parts)
    if np.ptp(targets[parts != 0]) == 0:  # as scikit-learn has it
        r2, spread = float(mse == 0), math.inf
    else:
        r2 = 1 - mse / spread
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "rmse": (rmse, squares / (2 * rmse) if rmse else squares),
            "mae": mean_estimate(np.abs(error), parts),
            "r2": (r2, ((1 - r2) * apart - squares) / spread),
        }


def _of_numbers(metric: str, columns: Columns, parts: np.ndarray) -> Estimate:
    pairs = zip(columns["target"].T, columns["prediction"].T, strict=True)
    return mean_of([number_estimates(target, answer, parts)[metric] for target, answer in pairs])


LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
"""Smallest probability in a log loss, 1.2e-07: scikit-learn clips smaller ones to it."""


def log_losses(columns: Columns) -> np.ndarray:
    """Returns the cross-entropy of each example, float64 [n]; of labels the mean over them."""
    given = np.asarray(columns["probabilities"])
    if "label" in columns:
        given = given[np.arange(len(given)), columns["label"]][:, np.newaxis]
    else:
        given = np.where(columns["target"] > 0, given, 1 - given)
    wide = given.astype(np.float64).clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return np.asarray(-np.log(wide).mean(axis=1))


ESTIMATES: Mapping[str, Callable[[Columns, np.ndarray], Estimate]] = {
    "accuracy": lambda columns, parts: mean_estimate(columns["label"] == columns["predicted"], parts),
    "macro_f1": lambda columns, parts: macro_f1(columns["target"], columns["predicted"], parts),
    "exact_match": lambda columns, parts: mean_estimate((columns["target"] == columns["predicted"]).all(axis=1), parts),
    **{metric: partial(_of_numbers, metric) for metric in ("rmse", "mae", "r2")},
    "log_loss": lambda columns, parts: mean_estimate(log_losses(columns), parts),
}
"""The metrics by which two models are compared in pairs, from the columns of their predictions."""


def by_example(metric: str, columns: Columns) -> np.ndarray:
    """Return a value of each independent example, whose mean is the metric; only the metric, [1], if a label is rare.

    bool [n] for the accuracy of independent examples that count alike; else float64, the metric plus the influence on
    it of each example, [n], or of each group of examples, [groups].
    """
    if metric == "accuracy" and not {"weight", "group"} & columns.keys():
        return np.asarray(columns["label"] == columns["predicted"])
    sample = Sample.of(columns)
    value, influences = ESTIMATES[metric](columns, sample.parts)
    if metric == "macro_f1" and rarest_label(columns["target"], sample.parts) < LEAST_OF_CLASS:
        return np.array([value])
    return value + sample.summed(influences - influences.mean())
