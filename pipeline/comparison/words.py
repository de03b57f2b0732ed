"""Names of metrics and formats of numbers for the answer, the tables and the page."""

import math
from collections.abc import Sequence

from stages.evaluation.paired_tests import MINUS

SPLITS = {"val": "validation", "test": "test", "train": "training"}

NAMES = {"rmse": "RMSE", "mae": "MAE", "mse": "MSE", "r2": "R²", "auc": "AUC", "macro_f1": "macro F1"}
"""Names of metrics that are not just the key with spaces instead of underscores."""

MAX_DECIMALS = 8


def metric_label(key: str) -> str:
    """Return the name of a metric in a sentence.

    Example:
        >>> metric_label("val/best_loss"), metric_label("test/macro_f1"), metric_label("my/score")
        ('validation loss', 'test macro F1', 'my/score')
    """
    split, slash, rest = key.partition("/")
    if not slash or split not in SPLITS:
        return key
    name, _, target = rest.removeprefix("best_").partition("/")
    text = f"{SPLITS[split]} {NAMES.get(name, name.replace('_', ' '))}"
    text += f" of {target}" if target else ""
    is_last = split == "val" and not rest.startswith("best_")
    return f"{text} in the last epoch" if is_last else text


def is_percentage(key: str) -> bool:
    """Return whether a metric is shown in percent, and its differences in percentage points."""
    return key.endswith("accuracy")


def value_text(key: str, value: float, decimals: int = 0) -> str:
    """Return the value of a metric with at least three significant digits.

    Args:
        key: The name of the metric.
        value: The value.
        decimals: Minimum number of digits after the point, for example as many as a difference next to it has.
    """
    if is_percentage(key):
        return f"{100 * value:.{max(decimals, 2)}f}%"
    if not math.isfinite(value):
        return str(value)
    digits = max(decimals, 2 - magnitude(value))
    return f"{value:,.{min(max(digits, 0), MAX_DECIMALS)}f}".replace("-", MINUS)


def interval_texts(key: str, values: Sequence[float]) -> tuple[list[str], int]:
    """Return a difference and the ends of its interval in the metric's unit, and their digits after the point.

    All have the same number of digits, which shows two significant digits of the interval's half width. There are more
    if an end other than 0 would be written as 0.

    Args:
        key: The name of the metric.
        values: The difference, and the lower and the upper end of its interval.
    """
    scaled = [100 * value for value in values] if is_percentage(key) else list(values)
    half = (scaled[2] - scaled[1]) / 2
    decimals = max(1 - magnitude(half or scaled[0]), 0)
    while decimals < MAX_DECIMALS and any(value and round(value, decimals) == 0 for value in scaled):
        decimals += 1
    decimals = min(decimals, MAX_DECIMALS)
    return [f"{value:,.{decimals}f}".replace("-", MINUS) for value in scaled], decimals


def magnitude(value: float) -> int:
    """Return the power of ten of the first digit; 0 for 0 and for values that are not finite."""
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 seed`, `2 seeds`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def joined(texts: Sequence[str]) -> str:
    """Join texts for a sentence: `a`, `a and b`, or `a, b and c`."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
