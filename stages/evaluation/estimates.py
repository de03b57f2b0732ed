"""Metrics of predictions as estimates: a value, the influence of each example on it, and the interval that follows.

They need NumPy alone, so that runs are compared in pairs without what draws and reports them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

Estimate = tuple[float, np.ndarray]
"""A metric, and the influence of each example on it, float64 [n], up to a constant; [1] where nobody can tell."""

Columns = Mapping[str, np.ndarray]
"""Columns of a file of predictions, by name; `weight` where examples have weights."""

ERRORS = ("log_loss", "rmse", "mae")
"""Metrics, also of single targets, of which less is better; they have no largest value."""

LEAST_OF_CLASS = 5
"""Examples of each class, or label, for an interval of a mean over them: of fewer one seems to have no variance."""

Ends = tuple[float, float]
"""Of an interval: the lower and the upper one."""


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
    is_told = targets[parts > 0].sum(axis=0).min() >= LEAST_OF_CLASS
    return float(f1.mean()), ((2 * hits - f1 * holds) * scale).mean(axis=1) if is_told else np.zeros(1)


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
    """Returns a value of each example, [n], whose mean is the metric; the metric alone, [1], where nobody can tell.

    bool for the accuracy of examples that count alike; else float64, the metric plus the example's influence on it.
    """
    weights = columns.get("weight")
    if metric == "accuracy" and weights is None:
        return np.asarray(columns["label"] == columns["predicted"])
    count = len(next(iter(columns.values())))
    value, influences = ESTIMATES[metric](columns, parts_of(count, weights))
    return value + influences - influences.mean()


def intervals_by(estimates: Mapping[str, Estimate], confidence: float) -> dict[str, Ends]:
    """Returns the interval of each metric that has one."""
    found = {
        name: interval(*estimate, confidence, math.inf if name.startswith(ERRORS) else 1.0)
        for name, estimate in estimates.items()
    }
    return {name: ends for name, ends in found.items() if ends is not None}


def fraction_interval(hits: int, examples: int, confidence: float) -> Ends:
    """Return the exact interval of a fraction (Clopper and Pearson, Biometrika 26, 1934)."""
    from scipy.stats import binomtest  # some tenths of a second

    ends = binomtest(hits, examples).proportion_ci(confidence, "exact")
    return float(ends.low), float(ends.high)


def interval(value: float, influences: np.ndarray, confidence: float, highest: float = 1.0) -> Ends | None:
    """Return an interval of `value`, symmetric in its logit, or in its logarithm where nothing bounds it.

    The influences' mean square over the number of examples is the variance: the infinitesimal jackknife (Efron, The
    Jackknife, the Bootstrap and Other Resampling Plans, 1982, chapter 6). Student's t has the degrees of freedom by
    which that variance is known (Satterthwaite, Biometrics Bulletin 2, 1946): few, where few examples decide.

    Args:
        influences: of each example, float64 [n], up to a constant.
        highest: the metric's largest value, 1 or inf; its least is 0.

    Returns:
        None where the examples do not differ, as those of a perfect ranking.
    """
    from scipy.special import stdtrit

    count = len(influences)
    squares = (influences - influences.mean()) ** 2
    total = float(squares.sum())
    if count < 2 or total < 1e-18 * count or not 0 < value < highest:
        return None
    error = math.sqrt(total / (count * (count - 1)))
    kurtosis = count * float((squares**2).sum()) / total**2
    degrees = min(count - 1, max(2 * count / (kurtosis - 1), 1.0)) if kurtosis > 1 else count - 1
    half = float(stdtrit(degrees, (1 + confidence) / 2)) * error / value
    if highest == math.inf:
        return value * math.exp(-min(half, 700.0)), value * math.exp(min(half, 700.0))
    odds, factor = value / (1 - value), math.exp(min(half / (1 - value), 700.0))
    return odds / (odds + factor), odds * factor / (1 + odds * factor)
