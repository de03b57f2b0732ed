"""Statistics of the columns of a table by split, rows that occur more than once, columns that should be left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.columns import evenly_spread
from stages.data.split import Split
from stages.data.split_statistics import Duplicates
from stages.features.kinds import Feature
from stages.reporter import Reporter
from stages.results import Dataset
from stages.storage.atomic import write_csv

SAMPLE = 5_000
"""Rows, evenly spread, that statistics are of where a split has more."""

GIVES_AWAY = 0.99
"""Accuracy, or R², of a single column from which it seems to hold the target itself."""

NEARLY_ALL = 0.95
"""Share of different values, of the rows that are looked at, from which a category is an identifier."""

LEAST = 20
"""Rows of which that is told, at least."""

LEAVES = 32
"""Of the tree that predicts the target from one column."""

BLOCK = 2**16
"""Rows that are read at once."""


@dataclass(frozen=True)
class ColumnStatistics:
    """rows: of `statistics.csv`, its header first. giving_away: how well a column alone predicts the target.

    constant: columns with one value alone in training; identifiers: categories whose values nearly all differ there.
    """

    rows: Sequence[Sequence[object]]
    duplicates: Duplicates
    giving_away: Mapping[str, float]
    constant: Sequence[str]
    identifiers: Sequence[str]

    def params(self, dataset: Dataset) -> dict[str, object]:
        """Parameters to record."""
        return {name: ", ".join(getattr(self, name)) for name in ("giving_away", "constant", "identifiers")}


def statistics(dataset: Dataset) -> ColumnStatistics:
    """Returns the statistics of a data set without images."""
    rows: list[Sequence[object]] = [
        ("split", "feature", "kind", "missing", "mean", "std", "min", "max", "different", "most frequent")
    ]
    for name, split in dataset.splits.items():
        sampled = _sampled(split)
        for key, feature in dataset.features.items():
            values = split.features[key][sampled]
            rows.append((name, feature.facts.get("column", key), feature.kind, *_of(feature.kind, values)))
    constant = [name for name in dataset.features if _is_constant(dataset.train, name)]
    identifiers = [name for name, feature in dataset.features.items() if _is_identifier(dataset.train, name, feature)]
    return ColumnStatistics(rows, Duplicates.of(dataset), giving_away(dataset), constant, identifiers)


def _is_constant(split: Split, name: str) -> bool:
    """Returns whether all values of a column are equal, or missing; reads all of it only where a sample's are."""
    column, first = split.features[name], split.features[name][:1]

    def are_equal(values: np.ndarray) -> bool:
        is_missing = values != values  # NaN
        return bool(np.all((values == first) | (is_missing & (first != first))))

    starts = range(0, len(split), BLOCK)
    return are_equal(column[_sampled(split)]) and all(are_equal(column[start : start + BLOCK]) for start in starts)


def _is_identifier(split: Split, name: str, feature: Feature) -> bool:
    values = split.features[name][_sampled(split)]
    return feature.kind == "category" and len(values) >= LEAST and len(np.unique(values)) > NEARLY_ALL * len(values)


def _sampled(split: Split) -> np.ndarray:
    return evenly_spread(len(split), SAMPLE)


def _of(kind: str, values: np.ndarray) -> tuple[object, ...]:
    """Returns statistics of values; of texts those of their lengths, in words."""
    if kind == "text":
        lengths = np.array([len(text.split()) for text in values], np.float64)
        return (float(np.mean(lengths == 0)), *_of_numbers(lengths)[1:5], len(np.unique(values)), "")
    return _of_numbers(values.ravel()) if kind in ("number", "vector") else _of_category(values)


def _of_numbers(values: np.ndarray) -> tuple[object, ...]:
    present = values[~np.isnan(values)]
    if not len(present):
        return (1.0, "", "", "", "", "", "")
    numbers = (present.mean(), present.std(), present.min(), present.max())
    return (1 - len(present) / len(values), *(f"{number:.6g}" for number in numbers), "", "")


def _of_category(values: np.ndarray) -> tuple[object, ...]:
    different, counts = np.unique(values, return_counts=True)
    most = sorted(zip(-counts, different, strict=True))[:3]
    shown = ", ".join(f"{value} ({-count})" for count, value in most)
    return (float(np.mean(values == "")) if values.dtype == object else 0.0, "", "", "", "", len(different), shown)


def giving_away(dataset: Dataset) -> dict[str, float]:
    """Returns the features that alone predict the target almost always, with the accuracy, or R², of a small tree.

    It is fitted to half of some training rows, and scored on the others.
    """
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor  # some tenths of a second

    sampled = _sampled(dataset.train)
    targets = dataset.train.targets[sampled]
    is_class = targets.ndim == 1
    tree: Any = (DecisionTreeClassifier if is_class else DecisionTreeRegressor)(max_leaf_nodes=LEAVES, random_state=0)
    half = len(sampled) // 2
    chosen = np.random.default_rng(0).permutation(len(sampled))
    fitted, scored = chosen[:half], chosen[half:]
    if half < 10 or (is_class and np.bincount(targets).max() > GIVES_AWAY * len(targets)):
        return {}
    found = {}
    for name, feature in dataset.features.items():
        if feature.kind in ("text", "vector"):
            continue
        values = dataset.train.features[name][sampled]
        if feature.kind != "number":
            values = np.unique(values, return_inverse=True)[1]
        column = np.nan_to_num(np.asarray(values, np.float64))[:, np.newaxis]
        score = tree.fit(column[fitted], targets[fitted]).score(column[scored], targets[scored])
        if score > GIVES_AWAY:
            found[name] = float(score)
    return found


def log(statistics: ColumnStatistics, dataset: Dataset, reporter: Reporter) -> None:
    """Prints the sizes of the splits, and warns of what would make scores worth less."""
    repeated = {
        name: f" ({count:,} repeated)" if count else "" for name, count in statistics.duplicates.repeated.items()
    }
    sizes = (f"{len(split):,} {name}{repeated[name]}" for name, split in dataset.splits.items())
    reporter.log(f"{dataset.name}: {', '.join(sizes)} rows, {len(dataset.features)} features")
    for (earlier, later), count in statistics.duplicates.shared.items():
        if count:
            reporter.warn(f"{count:,} of {len(dataset.splits[later]):,} {later} rows are in {earlier}, target aside")
    found = {
        **dict.fromkeys(statistics.constant, "has one value alone in training: nothing can be learnt of it"),
        **dict.fromkeys(statistics.identifiers, "differs in nearly all training rows: new ones have new values"),
    }
    found |= {
        name: f"alone predicts the target ({score:.1%}), as what is known only after it does"
        for name, score in statistics.giving_away.items()
    }
    for name, why in found.items():
        column = dataset.features[name].facts.get("column", name)
        reporter.warn(f"{column} {why}; to leave it out: 'data.features={{{column}: leave_out}}'")


def write(statistics: ColumnStatistics, dataset: Dataset, folder: Path) -> list[Path]:
    """Writes `statistics.csv`, a row for each split and feature; returns it."""
    write_csv(folder / "statistics.csv", statistics.rows)
    return [folder / "statistics.csv"]
