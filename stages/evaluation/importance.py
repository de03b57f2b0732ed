"""Importance of columns: how much worse a trained network answers where the values of a column are permuted."""

import numpy as np
import tensorflow as tf

from stages.data.columns import evenly_spread
from stages.evaluation.paired_tests import Interval, mean_difference
from stages.evaluation.report import Section
from stages.evaluation.scored import by_example, columns_of, scoring
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
    task, test = model.task, dataset.test.take(evenly_spread(len(dataset.test), ROWS))
    columns = columns_of(test)
    score = scoring(model, dataset, test)

    def of_examples(permuted: dict[str, tf.Tensor]) -> np.ndarray:
        values = by_example(task, score({**columns, **permuted}))
        safe_place()
        return values.astype(np.float64)

    base, sign = of_examples({}), -1 if task.is_higher_better(task.primary) else 1
    random = np.random.default_rng(0)
    orders = [random.permutation(len(test)) for _ in range(REPEATS)]
    found: list[tuple[str, Interval]] = []
    for name, feature in dataset.features.items():
        permuted = np.mean([of_examples({name: tf.gather(columns[name], order)}) for order in orders], axis=0)
        worse = mean_difference(sign * base, sign * permuted, True, None, confidence)
        found.append((str(feature.facts.get("column", name)), worse or Interval(0.0, 0.0, 0.0)))
    found.sort(key=lambda part: -part[1].difference)
    note = (
        f"by how much {task.primary} is worse with the values of a column permuted: {REPEATS} times, on {len(test):,} "
        f"test examples. low, high: {100 * confidence:g} % interval. Columns that say the same share their importance."
    )
    change = "loss" if task.is_higher_better(task.primary) else "rise"
    header = ("column", f"{change} of {task.primary}", "low", "high")
    table = [(name, part.difference, part.low, part.high) for name, part in found]
    return Section("importance", "Importance of columns", note, [header, *table])
