"""Costs of several ways to do the same, measured in turns, and what they say: ratios with their spread, exponents."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Figures = Mapping[str, float]
"""Costs by name, such as seconds or MiB: of all of them, less is better."""

Way = Callable[[], Figures]
"""Does the work once and returns what it cost."""

Samples = dict[str, dict[str, list[float]]]
"""Way → figure → its value in each round."""


class UnavailableError(Exception):
    """A measurement cannot be made on this machine; the message says why."""


def interleave(ways: Mapping[str, Way], rounds: int, warm_up: int = 0) -> Samples:
    """Run every way once a round, in the opposite order every other round, so that what slows the machine down for a
    while slows all of them.

    Args:
        warm_up: rounds before, that do not count.
    """
    samples: Samples = {name: {} for name in ways}
    for number in range(-warm_up, rounds):
        for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
            for figure, value in way().items():
                if number >= 0:
                    samples[name].setdefault(figure, []).append(value)
    return samples


def timed(work: Callable[[], object]) -> Way:
    """Return a way whose cost is the wall time of `work`, in seconds."""

    def way() -> Figures:
        began = time.perf_counter()
        work()
        return {"seconds": time.perf_counter() - began}

    return way


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [a / b for a, b in zip(above, below, strict=True)]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some rounds."""

    low: float
    median: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        return cls(float(low), float(median), float(high), len(values))


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return e of the power law, cost ~ size**e, that fits best (least squares of logarithms); 1: linear growth."""
    return statistics.linear_regression(np.log(sizes), np.log(costs)).slope
