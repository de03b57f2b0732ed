"""Importance of columns: how much worse a trained network answers where the values of a column are permuted."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from stages.data.columns import evenly_spread
from stages.data.examples import network_dtype, network_input
from stages.evaluation.estimates import by_example
from stages.evaluation.paired_tests import Interval, mean_difference
from stages.evaluation.report import Section
from stages.networks.complexity import scoring_batch
from stages.results import Dataset, Model
from stages.safe_places import safe_place

ROWS = 2_000
"""Test examples, evenly spread, at most."""

REPEATS = 3
"""Permutations of each column."""

MOST_COLUMNS = 100
"""Columns of a table of which it is told unasked: seconds, where none is a text."""


def is_quick(dataset: Dataset) -> bool:
    """Returns whether it takes seconds: few columns, and none a text, whose networks compute much."""
    kinds = [feature.kind for feature in dataset.features.values()]
    return 1 < len(kinds) <= MOST_COLUMNS and "text" not in kinds


def importance_of(model: Model, dataset: Dataset, confidence: float) -> Section:
    """Returns a row for each column: by how much `task.primary` is worse with it permuted, with the interval.

    Source: Breiman, Random Forests, Machine Learning 45, 2001; the permutations are always the same.
    """
    task, test = dataset.task, dataset.test
    rows = evenly_spread(len(test), ROWS)
    known = {task.target: np.asarray(test.targets)[rows]}
    known |= {"weight": test.weights[rows]} if test.weights is not None else {}
    columns = {name: tf.constant(column[rows]) for name, column in test.features.items()}
    predict = _predicting(model, dataset)

    def of_examples(permuted: dict[str, tf.Tensor]) -> np.ndarray:
        answers = task.columns(predict({**columns, **permuted}))
        safe_place()
        return by_example(task.primary, {**known, **answers}).astype(np.float64)

    base, sign = of_examples({}), -1 if task.is_higher_better(task.primary) else 1
    random = np.random.default_rng(0)
    orders = [random.permutation(len(rows)) for _ in range(REPEATS)]
    found: list[tuple[str, Interval]] = []
    for name, feature in dataset.features.items():
        permuted = np.mean([of_examples({name: tf.gather(columns[name], order)}) for order in orders], axis=0)
        worse = mean_difference(sign * base, sign * permuted, True, None, confidence)
        found.append((str(feature.facts.get("column", name)), worse or Interval(0.0, 0.0, 0.0)))
    found.sort(key=lambda part: -part[1].difference)
    note = (
        f"by how much {task.primary} is worse with the values of a column permuted: {REPEATS} times, on {len(rows):,} "
        f"test examples. low, high: {100 * confidence:g} % interval. Columns that say the same share their importance."
    )
    change = "loss" if task.is_higher_better(task.primary) else "rise"
    header = ("column", f"{change} of {task.primary}", "low", "high")
    table = [(name, part.difference, part.low, part.high) for name, part in found]
    return Section("importance", "Importance of columns", note, [header, *table])


def _predicting(model: Model, dataset: Dataset) -> Callable[[dict[str, tf.Tensor]], np.ndarray]:
    """Returns a function from columns, [n] each, to what the task predicts, float32 [n, width]."""
    network, encoder = model.on_one_device().network, dataset.encoder

    @tf.function(reduce_retracing=True, autograph=False)
    def predict(columns: dict[str, tf.Tensor]) -> tf.Tensor:
        inputs = columns if encoder is None else encoder(columns, training=False)
        given = {name: tf.cast(value, network_dtype(value.dtype)) for name, value in inputs.items()}
        return model.task.predict(network(network_input(given), training=False))

    def all_of(columns: dict[str, tf.Tensor]) -> np.ndarray:
        batch = min(ROWS, scoring_batch(network))
        count = len(next(iter(columns.values())))
        parts = [
            predict({name: column[start : start + batch] for name, column in columns.items()}).numpy()
            for start in range(0, count, batch)
        ]
        return np.concatenate(parts)

    return all_of
