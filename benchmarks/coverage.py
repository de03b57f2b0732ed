"""`python -m benchmarks.coverage [docs/reference/metrics.md]`: how often intervals hold the truth and slices err.

Test splits are drawn from populations of 100,000 examples, whose metrics are the truth, and given to the project's own
functions. Five minutes.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.page import markdown, put
from stages.evaluation.paired_tests import metric_difference
from stages.evaluation.slice_tests import slice_tests
from stages.metrics.estimates import Columns, parts_of
from stages.metrics.intervals import reported
from stages.metrics.known import KNOWN
from stages.tasks.class_report import Predicted, estimates_of, intervals_of
from stages.tasks.classification import ClassView
from stages.tasks.regression import NumberView, report_numbers

SIZE = 100_000
SIZES = (20, 100, 500, 2000)

Values = Mapping[str, float]
Intervals = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Population:
    """Predictions of a model for all examples that there could be.

    make: returns its columns, and those of the model that it is compared with. differs: the metric of the comparison;
    None: there is none. weighted: whether examples have weights. group: the number of examples of a group.
    """

    make: Callable[[np.random.Generator], tuple[dict[str, np.ndarray], ...]]
    differs: str | None = None
    weighted: bool = False
    group: int = 1

    @cached_property
    def columns(self) -> tuple[dict[str, np.ndarray], ...]:
        """The columns of each model."""
        random = np.random.default_rng(0)
        made = self.make(random)
        count = len(next(iter(made[0].values())))
        more: dict[str, np.ndarray] = {"weight": random.exponential(size=count)} if self.weighted else {}
        if self.group > 1:
            more["group"] = np.arange(count) // self.group
        return tuple({**columns, **more} for columns in made)

    @cached_property
    def truth(self) -> Values:
        """The metrics of all examples."""
        if self.differs is not None:
            first, second = (_value(self.differs, columns) for columns in self.columns)
            return {f"difference of {self.differs}": second - first}
        return _values(self.columns[0])

    def draw(self, examples: int, random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
        """Return the columns of each model for a test split. Its groups are all different."""
        groups = random.integers(len(next(iter(self.columns[0].values()))) // self.group, size=examples // self.group)
        rows = (groups[:, np.newaxis] * self.group + np.arange(self.group)).ravel()
        drawn = [{name: column[rows] for name, column in columns.items()} for columns in self.columns]
        if self.group > 1:
            drawn = [{**columns, "group": np.repeat(np.arange(len(groups)), self.group)} for columns in drawn]
        return tuple(drawn)

    def intervals(self, drawn: tuple[dict[str, np.ndarray], ...], confidence: float) -> Intervals:
        """Return the intervals that the project reports."""
        if self.differs is None:
            return _intervals(drawn[0], confidence)
        first, second = (KNOWN[self.differs].by_example(columns)[np.newaxis] for columns in drawn)
        found = metric_difference(first, second, True, level=confidence, metric=KNOWN[self.differs])
        return {} if np.isnan(found.low) else {f"difference of {self.differs}": (found.low, found.high)}


def classes(
    count: int, gap: float, sureness: float, skew: float, size: int = SIZE
) -> Callable[[np.random.Generator], tuple[dict[str, np.ndarray], ...]]:
    """Return what makes predictions of classes.

    Args:
        gap: by how much the label's logit is larger. sureness: the factor by which the model is too sure.
        skew: the fraction of the examples that belong to the first class by itself.
    """

    def make(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
        centers = np.where(random.random(size) < skew, 0, random.integers(count, size=size))
        logits = random.normal(size=(size, count))
        logits[np.arange(size), centers] += gap
        truth, values = (_softmax(1.5 * logits * factor) for factor in (1.0, sureness))
        labels = (truth.cumsum(axis=1) > random.random((size, 1))).argmax(axis=1)
        return (_of_classes(labels, values),)

    return make


def _of_classes(labels: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    predicted = values.argmax(axis=1).astype(np.int32)
    return {"label": labels.astype(np.int32), "predicted": predicted, "probabilities": values.astype(np.float32)}


def _alike(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
    """Return two models that differ on one example in 200."""
    (first,) = classes(3, 3.0, 1.0, 0.0)(random)
    predicted = np.where(random.random(SIZE) < 0.005, random.integers(3, size=SIZE), first["predicted"])
    return first, {**first, "predicted": predicted.astype(np.int32)}


def _grouped_classes(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
    """Return predictions of two classes, for groups of ten that are easy or hard."""
    labels = random.integers(2, size=SIZE)
    hard = np.repeat(random.normal(size=SIZE // 10), 10)
    logits = (2 * labels - 1) * (1.5 + 1.5 * hard + random.normal(size=SIZE))
    return (_of_classes(labels, np.stack([1 / (1 + np.exp(logits)), 1 / (1 + np.exp(-logits))], axis=1)),)


def _labels(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
    targets = (random.random((SIZE, 3)) < [0.5, 0.2, 0.1]).astype(np.int32)
    probabilities = 1 / (1 + np.exp(-random.normal(size=targets.shape) - 4 * targets + 2.5))
    predicted = (probabilities > 0.5).astype(np.int32)
    return ({"target": targets, "predicted": predicted, "probabilities": probabilities.astype(np.float32)},)


def numbers(
    draw: Callable[[np.random.Generator], np.ndarray],
) -> Callable[[np.random.Generator], tuple[dict[str, np.ndarray], ...]]:
    """Return what makes predictions of normal numbers, with the errors that `draw` returns."""

    def make(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
        targets = 2 * random.normal(size=SIZE)
        return (_of_numbers(targets, targets + draw(random)),)

    return make


def _of_numbers(targets: np.ndarray, answers: np.ndarray) -> dict[str, np.ndarray]:
    return {"target": targets[:, np.newaxis], "prediction": answers[:, np.newaxis]}


def _outliers(random: np.random.Generator) -> np.ndarray:
    return random.normal(size=SIZE) * np.where(random.random(SIZE) < 0.01, 10, 1)


def _prices(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
    """Return the prices that two models predict, whose errors grow with the price."""
    price, common = random.lognormal(0, 1, SIZE), random.normal(size=SIZE)
    own = random.normal(size=(2, SIZE))
    errors = (np.exp(scale * (0.8 * common + 0.6 * part)) for scale, part in zip((0.35, 0.3), own, strict=True))
    return tuple(_of_numbers(price, price * error) for error in errors)


def _constant(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
    """Return a model that predicts worse than the mean does."""
    targets = random.normal(size=SIZE)
    return (_of_numbers(targets, np.full(SIZE, 0.3)),)


def _grouped_numbers(random: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
    """Return predictions for groups of ten, whose errors are alike."""
    targets = random.normal(size=SIZE)
    errors = np.repeat(random.normal(size=SIZE // 10), 10) + random.normal(size=SIZE)
    return _of_numbers(targets, targets + errors), _of_numbers(targets, targets + 1.05 * errors)


POPULATIONS = {
    "2 classes, 79% and 21%": Population(classes(2, 1.5, 1.0, 0.6)),
    "2 classes, 95% and 5%": Population(classes(2, 3.0, 1.0, 0.95)),
    "3 classes": Population(classes(3, 1.5, 1.0, 0.0)),
    "10 classes, overconfident": Population(classes(10, 2.0, 2.0, 0.0)),
    "10 classes, calibrated": Population(classes(10, 3.0, 1.0, 0.0)),
    "10 classes, few errors": Population(classes(10, 5.0, 1.0, 0.0)),
    "3 classes, few errors, overconfident": Population(classes(3, 5.0, 3.0, 0.0)),
    "3 classes, weights": Population(classes(3, 1.5, 1.0, 0.0), weighted=True),
    "2 classes, groups": Population(_grouped_classes, group=10),
    "several labels": Population(_labels),
    "several labels, weights": Population(_labels, weighted=True),
    "regression, normal errors": Population(numbers(lambda random: random.normal(size=SIZE))),
    "regression, normal errors, weights": Population(numbers(lambda random: random.normal(size=SIZE)), weighted=True),
    "regression, skewed errors": Population(numbers(lambda random: random.lognormal(size=SIZE))),
    "regression, heavy-tailed errors": Population(numbers(lambda random: random.standard_t(3, size=SIZE))),
    "regression, 1% outliers": Population(numbers(_outliers)),
    "regression, prices": Population(_prices),
    "regression, worse than the mean": Population(_constant),
    "regression, groups": Population(_grouped_numbers, group=10),
    "two similar models": Population(_alike, "accuracy"),
    "two models, prices": Population(_prices, "rmse"),
    "two models, groups": Population(_grouped_numbers, "rmse", group=10),
}


def coverage(name: str, examples: int, repeats: int, confidence: float = 0.95) -> dict[str, tuple[float, float]]:
    """Return for each metric how often its interval holds the truth, and how often it has one."""
    population, random = POPULATIONS[name], np.random.default_rng(1)
    held: dict[str, list[bool]] = defaultdict(list)
    for _ in range(repeats):
        drawn = population.draw(examples, random)
        for metric, (low, high) in population.intervals(drawn, confidence).items():
            held[metric].append(low <= population.truth[metric] <= high)
    return {metric: (float(np.mean(found)), len(found) / repeats) for metric, found in held.items()}


def table(repeats: int) -> str:
    """Return coverage in percent by population and number of examples: the least and the largest of its metrics."""
    rows = []
    for name in POPULATIONS:
        cells = []
        for examples in SIZES:
            found = coverage(name, examples, repeats)
            held = [100 * part for part, printed in found.values() if printed >= 0.1]  # else too few
            cells.append("none" if not held else f"{min(held):.0f} to {max(held):.0f}")
        metrics = [*POPULATIONS[name].truth]
        rows.append((name, ", ".join(metrics) if len(metrics) < 4 else "all of classification", *cells))
    return markdown(["population", "metrics", *(f"{size:,} examples" for size in SIZES)], rows)


SLICES = {
    "10 of 30": [30] * 10,
    "5 of 200": [200] * 5,
}
"""Sizes of the slices of a column."""


def _correct(accuracy: float) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    return lambda is_bad, random: random.random(len(is_bad)) < np.where(is_bad, 2 * accuracy - 1, accuracy)


def _error(draw: str) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    return lambda is_bad, random: getattr(random, draw)(size=len(is_bad)) * np.where(is_bad, 2.0, 1.0)


MODELS: Mapping[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    **{f"accuracy {accuracy:g}": _correct(accuracy) for accuracy in (0.5, 0.9, 0.99)},
    "accuracy 0.9, weights": _correct(0.9),
    "RMSE, normal errors": _error("normal"),
    "RMSE, skewed errors": _error("lognormal"),
}
"""What a model has for each example: whether it is correct, or its error; twice as bad where it is told to be."""


def slice_errors(sizes: list[int], model: str, repeats: int, worse: bool = False) -> float:
    """Return how often a slice is called better or worse; with `worse`, how often the one that is worse is called so.

    Two columns cut the test split into slices of `sizes`.
    """
    random, count, found = np.random.default_rng(2), sum(sizes), 0
    for _ in range(repeats):
        codes = [random.permutation(np.repeat(np.arange(len(sizes)), sizes)) for _ in range(2)]
        values = MODELS[model]((codes[0] == 0) & worse, random)
        is_counted, weights = values.dtype == bool, random.exponential(size=count)
        correct: Columns = {"label": np.ones(count, np.int32), "predicted": values.astype(np.int32)}
        columns = correct if is_counted else _of_numbers(np.zeros(count), values)
        columns = {**columns, "weight": weights} if "weights" in model else columns
        metric, least = ("accuracy", ClassView.least) if is_counted else ("rmse", NumberView.least)
        signs = slice_tests(KNOWN[metric], columns, codes, least, 0.95)
        bad = signs[0][0] == (-1 if is_counted else 1)
        found += bool(bad if worse else np.concatenate(signs).any())
    return found / repeats


def slice_table(repeats: int) -> str:
    """Return in percent how often alike slices are called better or worse, and how often a worse one is found."""
    rows = []
    for name, sizes in SLICES.items():
        for model in MODELS:
            wrong = slice_errors(sizes, model, repeats)
            found = slice_errors(sizes, model, repeats // 4, worse=True)
            rows.append((name, model, f"{100 * wrong:.1f}", f"{100 * found:.0f}"))
    return markdown(["slices of two columns", "model", "any called, all alike", "one twice as bad, found"], rows)


def _value(metric: str, columns: Columns) -> float:
    parts = parts_of(len(next(iter(columns.values()))), columns.get("weight"))
    return KNOWN[metric].estimate(columns, parts)[0]


def _values(columns: Columns) -> Values:
    if "label" in columns:
        predicted = Predicted.of(columns)
        fractions = {"accuracy": predicted.correct, "top5_accuracy": predicted.is_in_top}
        means = {name: float((predicted.parts * is_hit).mean()) for name, is_hit in fractions.items()}
        return means | {name: value for name, (value, _) in estimates_of(predicted).items()}
    names = ("macro_f1", "exact_match") if "predicted" in columns else ("rmse", "mae", "r2")
    return {name: _value(name, columns) for name in names}


def _intervals(columns: Columns, confidence: float) -> Intervals:
    if "label" in columns:
        return intervals_of(Predicted.of(columns), confidence)
    if "predicted" in columns:
        return reported({name: KNOWN[name].interval(columns, confidence) for name in ("macro_f1", "exact_match")})[0]
    return report_numbers(columns, ("y",), confidence).intervals


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def main() -> None:
    """Print the tables, or write them into the pages that are named: that of coverage, and that of slices."""
    tables = ("coverage", table(repeats=200)), ("slices", slice_table(repeats=100))
    for place, (name, text) in enumerate(tables):
        if place + 1 < len(sys.argv):
            put(Path(sys.argv[place + 1]), name, text)
        else:
            print(f"{text}\n")


if __name__ == "__main__":
    main()
