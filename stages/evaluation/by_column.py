"""A test by its columns: the metrics of each of their values (slices), and how much the network needs them."""

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from stages.data.columns import evenly_spread
from stages.data.examples import network_input
from stages.errors import UserError
from stages.evaluation.paired_tests import Interval, mean_difference
from stages.evaluation.predictions import columns_of
from stages.evaluation.slice_tests import slice_tests
from stages.features.categories import CategoryFeature
from stages.features.encoder import encoding
from stages.features.images import images_of
from stages.features.kinds import Feature, texts_of
from stages.features.numbers import NumberFeature
from stages.metrics.estimates import Columns, Sample
from stages.metrics.intervals import Result
from stages.metrics.report import Section, blank_where_nan
from stages.networks.complexity import scoring_batch
from stages.reporter import safe_place
from stages.results import Dataset, Model
from stages.settings.results import EvaluateSettings
from stages.tasks.task import Task

BINS = 5
"""Quantiles of a number, at most."""

MOST = 20
"""Values of a category, the most frequent; all others are one slice."""


def check_slices(dataset: Dataset, columns: Sequence[str]) -> dict[str, str]:
    """Return the features that `columns` are.

    Raises:
        UserError: where one is no number or category of the data set.
    """
    usable = {name: one for name, one in dataset.features.items() if isinstance(one, NumberFeature | CategoryFeature)}
    names = {one.column_name(name): name for name, one in usable.items()}
    for column in columns:
        if column not in names:
            problem = f"evaluate.slices={column}: {dataset.name} has no number, date or category of this name"
            raise UserError(problem, [*names] or "a data set with such columns", "" if names else "evaluate.slices=[]")
    return {column: names[column] for column in columns}


def check_settings(task: Task, dataset: Dataset, settings: EvaluateSettings) -> None:
    """Raise UserError for slices and importance that the task or the columns do not allow."""
    if (settings.slices or settings.importance) and not task.comparable:
        problem = f"evaluate.slices and evaluate.importance do not support the metrics of {task.name}"
        expected = "a task with a metric that has influences"
        raise UserError(problem, expected, "evaluate.slices=[] evaluate.importance=false")
    if settings.importance and dataset.images is not None:
        problem = "evaluate.importance=true requires several columns, not images alone"
        raise UserError(problem, "", "evaluate.importance=false")
    check_slices(dataset, settings.slices)


def slices_of(predicted: Columns, dataset: Dataset, settings: EvaluateSettings) -> Section:
    """Return a row for each slice of the test split: its examples, its metrics, and whether it differs from the rest.

    See `stages.evaluation.slice_tests`. Slices without a verdict come last.

    Args:
        predicted: known columns of a file of predictions.
    """
    task, metric = dataset.task, dataset.task.comparable[0]
    least = task.view.least
    name, sign = metric.name, 1 if metric.higher_is_better else -1
    of_columns = {
        column: list(_groups(np.asarray(dataset.test.features[feature][:]), dataset.features[feature]))
        for column, feature in check_slices(dataset, settings.slices).items()
    }
    codes = [np.argmax([rows for _, rows in groups], axis=0) for groups in of_columns.values()]
    tests = slice_tests(metric, predicted, codes, least, settings.confidence)
    slices = [
        (f"{column}: {value}", rows, sign * outcome)
        for (column, groups), outcomes in zip(of_columns.items(), tests, strict=True)
        for (value, rows), outcome in zip(groups, outcomes, strict=True)
    ]
    found: list[tuple[tuple[bool, float], list[object], dict[str, float]]] = []
    for label, rows, outcome in slices:
        of_slice = {key: values[rows] for key, values in predicted.items()}
        weighed = rows if "weight" not in predicted else rows & (predicted["weight"] > 0)
        value: object = ""
        ends: Result = ""
        metrics: dict[str, float] = {}
        if weighed.any():
            own = metric.of_slice(predicted, rows)
            value, ends = metric.estimate(own, Sample.of(own).parts)[0], metric.interval(own, settings.confidence)
            given = (of_slice, task.names, settings.confidence, settings.calibration_bins)
            metrics = task.view.values(task.comparable, *given)
        is_told = min(weighed.sum(), len(rows) - weighed.sum()) >= least
        unclear = "no significant difference" if is_told else "too few examples"
        verdict = {1: "better", -1: "worse"}.get(outcome, unclear)
        row = [label, int(rows.sum()), value, *(("", "") if isinstance(ends, str) else ends), verdict]
        found.append(((not is_told, sign * value if isinstance(value, float) else np.inf), row, metrics))
        safe_place()
    found.sort(key=lambda part: part[0])
    others = dict.fromkeys(other for _, _, metrics in found for other in metrics if other != name)
    rows_of = [[*row, *(metrics.get(other, "") for other in others)] for _, row, metrics in found]
    note = (
        f"low and high are the ends of the {100 * settings.confidence:g}% confidence interval of {name}, if there is "
        f"one. vs the rest: whether {name} differs from that of all other test examples. The test accounts for the "
        "number of slices: if no slice differs, the probability that any of them is reported as better or worse is at "
        f"most {100 * (1 - settings.confidence):.3g}%. Slices with fewer than {least} examples are not tested."
    )
    header = ["slice", "examples", name, "low", "high", "vs the rest", *others]
    title = f"{name} by slice of the test split, worst first ({_ends(settings.confidence)})"
    return Section("slices", title, note, [header, *rows_of])


def _ends(confidence: float) -> str:
    return f"low to high: {100 * confidence:g}% CI"


def _groups(values: np.ndarray, feature: Feature) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the slices of a column with their rows, bool [n]: values of a category, quantiles of a number."""
    if isinstance(feature, CategoryFeature):
        texts = texts_of(values)
        different, counts = np.unique(texts, return_counts=True)
        most = different[np.argsort(-counts, kind="stable")][:MOST]
        yield from ((value or "missing", texts == value) for value in most)
        others = ~np.isin(texts, most)
        if others.any():
            yield f"{len(different) - MOST} other values", others
        return
    shown = feature.shown if isinstance(feature, NumberFeature) else str
    is_missing = np.isnan(values)
    present = values[~is_missing]
    if is_missing.any():
        yield "missing", is_missing
    if not len(present):
        return
    borders = np.unique(np.quantile(present, np.arange(1, BINS) / BINS, method="lower"))
    bins = np.where(is_missing, -1, np.searchsorted(borders, values))
    for number in np.unique(bins[~is_missing]):
        rows = bins == number
        low, high = values[rows].min(), values[rows].max()
        yield shown(low) if low == high else f"{shown(low)} to {shown(high)}", rows


ROWS = 2_000
"""Test examples, evenly spread, at most."""

REPEATS = 3
"""Permutations of each column."""

MOST_COLUMNS = 100
"""Maximum number of columns for importance by default, if none is a text or an image: more take longer than seconds."""


def is_quick(dataset: Dataset) -> bool:
    """Return whether it takes seconds: few columns, and no texts or images, whose networks compute much."""
    kinds = [feature.kind for feature in dataset.features.values()]
    return 1 < len(kinds) <= MOST_COLUMNS and not {"text", "image"} & {*kinds}


def importance_of(model: Model, dataset: Dataset, confidence: float) -> Section:
    """Return a row for each column: by how much the first metric is worse with it permuted, with the interval.

    Of classes that are imbalanced it is the log loss: their accuracy hardly changes.

    Source: Breiman, Random Forests, Machine Learning 45, 2001; the permutations are always the same.
    """
    task, network = model.task, model.on_one_device().network
    encode = encoding(dataset.encoder) if dataset.encoder is not None else lambda columns, rows: {}
    images = [*images_of(dataset.features)]
    test = dataset.test.take(evenly_spread(len(dataset.test), ROWS))
    metric = (*task.view.further(task.names, dataset.train), task.comparable[0])[0]
    batch = scoring_batch(network)
    columns, targets = {name: column[:] for name, column in test.features.items()}, test.target_values

    @tf.function(reduce_retracing=True, autograph=False)
    def predict(inputs: dict[str, tf.Tensor], targets: tf.Tensor) -> tf.Tensor:
        return task.head.rows(targets, network(network_input(inputs), training=False))

    def inputs(given: dict[str, np.ndarray], rows: slice) -> dict[str, tf.Tensor]:
        pixels = {name: tf.cast(given[name][rows], tf.float32) for name in images}
        return {**encode(given, rows), **pixels}

    def of_examples(permuted: dict[str, np.ndarray]) -> np.ndarray:
        given = {**columns, **permuted}
        slices = [slice(start, start + batch) for start in range(0, len(test), batch)]
        parts = [predict(inputs(given, rows), tf.constant(targets[rows])) for rows in slices]
        answers = np.concatenate(parts)
        safe_place()
        values = metric.by_example(columns_of(test, task, np.nan_to_num(answers))).astype(np.float64)
        # A class or a label would be predicted all the same.
        return values if np.isfinite(answers).all() else np.full_like(values, np.nan)

    base, sign = of_examples({}), -1 if metric.higher_is_better else 1
    random = np.random.default_rng(0)
    orders = [random.permutation(len(test)) for _ in range(REPEATS)]
    found: list[tuple[str, Interval]] = []
    for name, feature in dataset.features.items():
        permuted = np.mean([of_examples({name: columns[name][order]}) for order in orders], axis=0)
        worse = mean_difference(sign * base, sign * permuted, True, None, confidence)
        rise = sign * float(np.mean(permuted) - np.mean(base))
        found.append((feature.column_name(name), worse or Interval(rise, np.nan, np.nan)))
    found.sort(key=lambda part: -np.nan_to_num(part[1].difference, nan=-np.inf))
    note = (
        f"How much worse {metric.name} becomes if the values of a column are shuffled ({REPEATS} times, {len(test):,} "
        f"test examples). low and high are the ends of the {100 * confidence:g}% confidence interval. Columns with the "
        "same information share their importance."
    )
    change = "decrease" if metric.higher_is_better else "increase"
    header = ("column", f"{metric.name} {change}", "low", "high")
    if any(np.isnan(part.difference) for _, part in found):
        note += " Blank: with this column shuffled, the network's predictions are not finite."
    table = [(name, *blank_where_nan(np.array([part.difference, part.low, part.high]))) for name, part in found]
    title = f"column importance: {change} of {metric.name} if a column is shuffled ({_ends(confidence)})"
    return Section("importance", title, note, [header, *table])
