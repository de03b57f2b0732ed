"""A baseline beside the result of a table: scikit-learn's gradient boosting on the same split and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.split import Split
from stages.evaluation.labels import label_estimates, read_labels, report_labels
from stages.evaluation.metrics import metrics_of
from stages.evaluation.numbers import read_numbers, report_numbers, rmse_estimate
from stages.evaluation.paired_tests import Interval, accuracy_difference, mean_difference
from stages.evaluation.predictions import Predicted, read_predictions
from stages.features.kinds import Feature
from stages.results import Dataset
from stages.safe_places import safe_place
from stages.tasks.classification import Classification
from stages.tasks.multi_label import THRESHOLD, MultiLabel

MODEL = "scikit-learn's histogram gradient boosting"

MOST_ROWS = 100_000
"""Training rows, evenly spread, that it is fitted to where there are more."""

MOST_CATEGORIES = 254
"""Values of a category that it can tell apart: the most frequent; it takes all others for missing."""

LEAST = 30
"""Test examples of which a difference is told from none, at least."""


@dataclass(frozen=True)
class Baseline:
    """values: the baseline's metrics by name; metric: by which both are compared.

    difference: the network's minus the baseline's. higher: whether more is better. rows: that it was fitted to.
    """

    values: Mapping[str, float]
    metric: str
    difference: Interval
    higher: bool
    rows: int
    examples: int
    confidence: float

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics to record, by their full names."""
        ends = {"": self.difference.difference, "_low": self.difference.low, "_high": self.difference.high}
        return {
            **{f"baseline/{name}": value for name, value in self.values.items()},
            **{f"baseline/{self.metric}_difference{end}": value for end, value in ends.items()},
        }

    @property
    def verdict(self) -> str:
        """Answer of the test examples: whether the network is better."""
        if not self.difference.excludes_zero or self.examples < LEAST:
            return "not distinguishable from"
        return "better than" if (self.difference.difference > 0) == self.higher else "worse than"

    @property
    def sentence(self) -> str:
        """The verdict, with the difference and its interval."""
        part = self.difference
        return (
            f"the network is {self.verdict} the baseline ({MODEL} on {self.rows:,} training rows: {self.metric} "
            f"{self.values[self.metric]:.4g}): {part.difference:+.4g} ({100 * self.confidence:g} %: {part.low:+.4g} to "
            f"{part.high:+.4g}, {self.examples:,} test examples)"
        )


def baseline_of(path: Path, dataset: Dataset, confidence: float, bins: int) -> Baseline | None:
    """Returns the baseline, compared with the predictions at `path`; None where no column is one it can take.

    Its first metric of the task is compared by the influences of the test examples on the difference, paired; accuracy
    as two models' is.

    Args:
        bins: of the calibration error.
    """
    columns = {name: feature for name, feature in dataset.features.items() if feature.kind in ("number", "category")}
    if not columns:
        return None
    rows = np.unique(np.linspace(0, len(dataset.train) - 1, min(MOST_ROWS, len(dataset.train))).astype(np.int64))
    train, test = _encoded(dataset.train, rows, dataset.test, columns)
    kinds = [feature.kind == "category" for feature in columns.values()]
    weights = None if dataset.train.weights is None else dataset.train.weights[rows]
    fit = _Fit(train, test, kinds, weights)
    values, difference = _compared(path, dataset, fit, np.asarray(dataset.train.targets)[rows], confidence, bins)
    task = dataset.task
    higher = task.is_higher_better(task.primary)
    return Baseline(values, task.primary, difference, higher, len(rows), len(dataset.test), confidence)


@dataclass(frozen=True)
class _Fit:
    train: np.ndarray
    test: np.ndarray
    categories: Sequence[bool]
    weights: np.ndarray | None

    def probabilities(self, targets: np.ndarray, classes: int) -> np.ndarray:
        """Returns those of the test rows for int targets, float32 [n, classes]."""
        from sklearn.ensemble import HistGradientBoostingClassifier  # half a second, which no other stage need wait for

        found = np.zeros((len(self.test), classes), np.float32)
        present = np.unique(targets)
        if len(present) == 1:
            found[:, present[0]] = 1
            return found
        model = HistGradientBoostingClassifier(categorical_features=self.categories, random_state=0)
        found[:, present] = model.fit(self.train, targets, self.weights).predict_proba(self.test)
        safe_place()
        return found

    def numbers(self, targets: np.ndarray) -> np.ndarray:
        """Returns predictions for the test rows, float64 [n]."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(categorical_features=self.categories, random_state=0)
        found: np.ndarray = model.fit(self.train, targets, self.weights).predict(self.test)
        safe_place()
        return found


def _compared(
    path: Path, dataset: Dataset, fit: _Fit, targets: np.ndarray, confidence: float, bins: int
) -> tuple[dict[str, float], Interval]:
    """Returns the baseline's metrics, and the difference of the task's first one."""
    names, weights = dataset.task.names, dataset.test.weights
    if isinstance(dataset.task, Classification):
        ours = read_predictions(path)
        answers = fit.probabilities(targets, len(names))
        theirs = Predicted(ours.labels, answers.argmax(axis=1).astype(np.int32), np.ascontiguousarray(answers.T))
        difference = accuracy_difference(theirs.correct[np.newaxis], ours.correct[np.newaxis], True, level=confidence)
        return metrics_of(theirs, bins).values, difference
    if isinstance(dataset.task, MultiLabel):
        labels, predicted, _ = read_labels(path)
        answers = np.stack([fit.probabilities(part, 2)[:, 1] for part in targets.T], axis=1)
        others = (answers > THRESHOLD).astype(np.int32)
        report: Any = report_labels(labels, others, answers, names, confidence, weights)
        estimates = [label_estimates(labels, part, weights)["macro_f1"] for part in (others, predicted)]
    else:
        wanted, numbers = read_numbers(path)
        answers = np.stack([fit.numbers(part) for part in targets.T], axis=1)
        report = report_numbers((wanted, answers), 0.0, names, confidence, weights)
        estimates = [rmse_estimate(wanted, part, weights) for part in (answers, numbers)]
    (their_value, theirs_by), (our_value, ours_by) = estimates
    first, second = (np.nan_to_num(part - part.mean()) for part in (theirs_by, ours_by))
    found = mean_difference(first, second, True, None, confidence)
    value = our_value - their_value
    difference_of = (
        Interval(value, value, value)
        if found is None
        else Interval(value, value + found.low - found.difference, value + found.high - found.difference)
    )
    values = {name.removeprefix("test/"): value for name, value in report.values.items() if name != "test/loss"}
    return values, difference_of


def _encoded(
    train: Split, rows: np.ndarray, test: Split, columns: Mapping[str, Feature]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns both splits' columns, float64 [n, columns]: numbers as they are, categories by their frequency."""
    found = []
    for name, feature in columns.items():
        parts = [np.asarray(split.features[name][chosen]) for split, chosen in ((train, rows), (test, slice(None)))]
        if feature.kind == "category":
            values, counts = np.unique(parts[0].astype(str), return_counts=True)
            most = values[np.argsort(-counts, kind="stable")][:MOST_CATEGORIES]
            codes = {value: float(code) for code, value in enumerate(most)}
            parts = [np.array([codes.get(value, np.nan) for value in part.astype(str)]) for part in parts]
        found.append([part.astype(np.float64) for part in parts])
        safe_place()
    of_train, of_test = zip(*found, strict=True)
    return np.stack(of_train, axis=1), np.stack(of_test, axis=1)
