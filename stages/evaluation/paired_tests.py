"""Differences between settings, with intervals: in a metric of the same test examples, and in any figure of runs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stages.metrics.classes import Accuracy
from stages.metrics.intervals import difference_reach
from stages.metrics.metric import Metric

MINUS = "\N{MINUS SIGN}"

LEVEL = 0.95

ACCURACY = Accuracy()


class Part(NamedTuple):
    """A part of an estimated variance, and the degrees of freedom of its estimate."""

    variance: float
    degrees: float


@dataclass(frozen=True)
class Interval:
    """A difference, that of the second setting minus that of the first, and the ends of its interval."""

    difference: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0; one without ends, of nan, does not."""
        return self.low > 0 or self.high < 0

    def metrics(self, name: str) -> dict[str, float]:
        """Metrics to record of a difference in the metric `name`: it, and its ends where it has any."""
        values = {"": self.difference, "_low": self.low, "_high": self.high}
        return {f"{name}_difference{end}": value for end, value in values.items() if not math.isnan(value)}


@dataclass(frozen=True)
class MetricDifference(Interval):
    """A difference in a metric of the test split, such as the accuracy, as a fraction.

    p: McNemar's, of the accuracy; None of other metrics. seeds: how many of each setting, the smaller number.
    of_settings: whether the interval knows how seeds vary; False: it is about the trained models alone.
    is_same: whether runs of the same seeds do equally well on every single example. level: of the interval.
    higher_is_better: of the metric.
    """

    p: float | None
    seeds: int
    examples: int
    of_settings: bool
    is_same: bool
    metric: str
    level: float
    higher_is_better: bool

    @property
    def is_better(self) -> bool:
        """Whether the second setting is better, by however little."""
        return self.difference > 0 if self.higher_is_better else self.difference < 0

    @property
    def reason(self) -> str:
        """The reason why there is no interval, if there is none."""
        if self.difference == 0:
            return f"equal on all {self.examples:,} examples"
        return "too few independent test examples, or too few of a class"

    @property
    def change(self) -> str:
        """The difference, with its interval."""
        value, low, high = (changed(self.metric, part) for part in (self.difference, self.low, self.high))
        ends = f"no interval: {self.reason}" if math.isnan(self.low) else f"{100 * self.level:g}% CI {low} to {high}"
        better = "" if self.higher_is_better else "; lower is better"
        return f"{value}{unit_of(self.metric)} ({ends}{better})"


def changed(metric: str, value: float) -> str:
    """Return a change of a metric with its sign: of an accuracy in points, `−0.28`, of others in the metric's units.

    `0.00` where that is what is left of it.
    """
    text = f"{100 * value:+.2f}" if metric.endswith("accuracy") else f"{value:+.4g}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", MINUS)


def unit_of(metric: str) -> str:
    """Return the unit of `changed`, with a space before it; none for metrics in units of their own."""
    return " points" if metric.endswith("accuracy") else ""


def metric_difference(
    first: np.ndarray,
    second: np.ndarray,
    paired: bool,
    pooled: Sequence[Part] | None = None,
    level: float = LEVEL,
    metric: Metric = ACCURACY,
) -> MetricDifference:
    """Compare two settings on the same test examples.

    The variance of the difference is that of the examples' mean differences, and with several seeds also that between
    seeds, beyond what differing on single examples gives it: the variance of a two-way layout of seeds and examples,
    both random (Searle, Casella and McCulloch, Variance Components, 1992, chapter 4).

    The part of the examples is not nearer than `difference_reach` of `stages.metrics.intervals` has it: few of them
    may decide, and models that agree on all have no variance.

    The interval of an accuracy includes 0 wherever the test of no difference does not reject: the examples that differ
    may be too few for a variance.

    Args:
        first: a value of each test example for each run of the first setting, [runs, n], the metric is their mean:
            bool, whether it is correct, or as `Metric.by_example` returns it; of a single
            float the interval has no ends.
        second: the same of the second setting.
        paired: whether the runs of both are of the same seeds, in the same order, so that what a seed does to both
            settings falls away.
        pooled: what `pooled_between_seeds` returns for the settings that have several runs; a setting with a single
            run takes it.
        level: of the interval. metric: their metric.
    """
    by_example = second.mean(axis=0) - first.mean(axis=0)
    freedom = max(len(by_example) - 1, 1)
    is_counted = first.dtype == second.dtype == bool
    signed = np.int8 if is_counted else np.float64
    layouts = [second.astype(signed) - first.astype(signed)] if paired else [first, second]
    several = [layout for layout in layouts if len(layout) > 1]
    singles = 2 * (len(layouts) - len(several)) if paired else len(layouts) - len(several)
    parts = [Part(float(by_example.var()) / freedom, freedom)]
    for layout in several:
        parts += _scaled(pooled_between_seeds([layout]) or (), 1 / len(layout))
    parts += _scaled(pooled or (), singles)
    difference = float(by_example.mean())
    low = high = math.nan
    if is_counted or (len(by_example) > 1 and (by_example.any() or len(parts) > 1)):
        seeds = min(len(first), len(second)) if by_example.any() else 1
        down, up = difference_reach(by_example - difference, level, 1 / seeds if is_counted else None)
        low, high = _ends(difference, parts, level)
        low, high = min(low, difference - down), max(high, difference + up)
    p = mcnemar_p(first, second) if is_counted else None
    if p is not None and max(p, _least_p(first, second)) > 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high = max(low, -metric.span), min(high, metric.span)
    return MetricDifference(
        difference,
        low,
        high,
        p,
        min(len(first), len(second)),
        len(by_example),
        of_settings=not singles or pooled is not None,
        is_same=paired and bool(np.array_equal(first, second)),
        metric=metric.name,
        level=level,
        higher_is_better=metric.higher_is_better,
    )


def pooled_between_seeds(layouts: Iterable[np.ndarray]) -> tuple[Part, ...] | None:
    """Return the variance of a run's metric between seeds beyond that of single examples, over several settings.

    Args:
        layouts: a setting each, [runs, n], on the same examples; those of a single run say nothing.

    Returns:
        its parts, none where examples explain all of it; None where no setting has several runs.
    """
    several = [layout for layout in layouts if len(layout) > 1]
    of_means = pooled_variance([layout.mean(axis=1) for layout in several])
    if of_means is None:
        return None
    examples = several[0].shape[1]
    by_setting = [(len(layout) - 1) * float(np.var(layout, axis=0, ddof=1).mean()) for layout in several]
    of_examples = Part(-sum(by_setting) / of_means.degrees / examples, of_means.degrees * max(examples - 1, 1))
    return (of_means, of_examples) if of_means.variance + of_examples.variance > 0 else ()


def pooled_variance(samples: Iterable[Sequence[float] | np.ndarray]) -> Part | None:
    """Return the variance within samples, pooled over those of several values; None where there are none."""
    several = [np.asarray(sample, float) for sample in samples if len(sample) > 1]
    degrees = sum(len(sample) - 1 for sample in several)
    if not degrees:
        return None
    return Part(sum(float(np.var(sample)) * len(sample) for sample in several) / degrees, degrees)


def mean_difference(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    paired: bool,
    pooled: Part | None,
    level: float = LEVEL,
) -> Interval | None:
    """Compare two settings by a figure of their runs, with Welch's t or that of pairs.

    Args:
        first, second: a value for each run of the settings. paired: whether they are of the same seeds, in order.
        pooled: variance of the settings that have several runs; a setting with a single run takes it.

    Returns:
        the difference of the means; None where a setting has a single run and nothing is pooled.
    """
    difference = float(np.mean(second) - np.mean(first))
    samples = [np.subtract(second, first)] if paired else [np.asarray(first), np.asarray(second)]
    several = [sample for sample in samples if len(sample) > 1]
    singles = 2 * (len(samples) - len(several)) if paired else len(samples) - len(several)
    if singles and pooled is None:
        return None
    parts = [Part(float(np.var(sample, ddof=1)) / len(sample), len(sample) - 1) for sample in several]
    parts += _scaled((pooled,) if pooled is not None else (), singles)
    return Interval(difference, *_ends(difference, parts, level))


def _scaled(parts: Iterable[Part], factor: float) -> list[Part]:
    return [Part(part.variance * factor, part.degrees) for part in parts] if factor else []


def _ends(difference: float, parts: Sequence[Part], level: float) -> tuple[float, float]:
    """Return an interval by Student's t, with the degrees of freedom of Satterthwaite (Biometrics Bulletin 2, 1946)."""
    from scipy import special

    variance = sum(part.variance for part in parts)
    if variance <= 0:
        return difference, difference
    degrees = variance**2 / sum(part.variance**2 / part.degrees for part in parts)
    degrees = max(degrees, min(part.degrees for part in parts))
    half = float(special.stdtrit(degrees, (1 + level) / 2)) * math.sqrt(variance)
    return difference - half, difference + half


def _least_p(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p of the sign test where all examples that differ do so in one direction: its least."""
    differing = np.count_nonzero(first.sum(axis=0) * len(second) != second.sum(axis=0) * len(first))
    return min(1.0, 2.0 ** (1 - differing))


def mcnemar_p(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p of McNemar's test that both settings are correct equally often.

    Of one run each: exact, the binomial test of the examples on which they disagree (McNemar, Psychometrika 12, 1947).
    Of several: the examples are clusters, the test that of Durkalski et al. (Analysis of clustered matched-pair data,
    Statistics in Medicine 22, 2003), which is McNemar's without correction for one run each. Both ask whether these
    trained models differ; they know nothing of other seeds.
    """
    if len(first) == len(second) == 1:
        from scipy import special

        only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
        few = min(only_first, only_second)
        both = only_first + only_second
        return min(1.0, 2 * float(special.bdtr(few, both, 0.5))) if both else 1.0
    differences = second.mean(axis=0) - first.mean(axis=0)
    squares = float((differences**2).sum())
    return math.erfc(abs(float(differences.sum())) / math.sqrt(2 * squares)) if squares else 1.0  # chi-squared's tail
