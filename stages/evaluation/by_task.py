"""Metrics of predictions by what is predicted: classes, labels (by scikit-learn, macro and micro), numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stages.evaluation.classes import Predicted, metrics_of, report_classes
from stages.evaluation.estimates import ESTIMATES, Columns, Estimate, Sample, mean_of, number_estimates
from stages.evaluation.intervals import interval_of, metric_interval, reported
from stages.evaluation.report import Measured, blank_where_nan, some
from stages.results import Dataset
from stages.tasks.classification import Classification
from stages.tasks.multi_label import MultiLabel
from stages.tasks.regression import Regression
from stages.tasks.task import Task

STANDARD: Mapping[str, type[Task]] = {task.kind: task for task in (Classification, MultiLabel, Regression)}
"""The project's tasks by their kinds."""


def has_known_columns(task: Task) -> bool:
    """Returns whether predictions have the columns of the project's task that `task` extends."""
    if task.kind not in STANDARD:
        return False
    expected, found = (
        {name: column.shape for name, column in one.columns(np.zeros((1, one.width), np.float32)).items()}
        for one in (STANDARD[task.kind](task.names), task)
    )
    return expected.items() <= found.items() and task.target == STANDARD[task.kind].target


def metric_of(task: Task) -> str:
    """Returns the metric that known columns tell of any examples: the first one of the task, or of its kind."""
    known = STANDARD[task.kind].metrics
    return task.primary if task.primary in known else known[0]


IMBALANCED = 0.7
"""Share of one class from which accuracy says little: answering it always is as accurate."""


def means_of(targets: np.ndarray, weights: np.ndarray | None, classes: int) -> np.ndarray:
    """Returns the means of targets, [n, k], such as shares of labels; of classes, int [n], the share of each."""
    if targets.ndim > 1:
        return np.asarray(np.average(targets, axis=0, weights=weights))
    counts = np.bincount(targets, weights, classes)
    return np.asarray(counts / counts.sum())


def is_imbalanced(dataset: Dataset) -> bool:
    """Returns whether one class has so many of the training examples that accuracy says little."""
    task, train = dataset.task, dataset.train
    if not isinstance(task, Classification):
        return False
    return bool(means_of(train.targets, train.weights, len(task.names)).max() >= IMBALANCED)


def report_of(task: Task, columns: Columns, confidence: float, bins: int) -> Measured:
    """Returns the metrics of the columns of a file of predictions, for a task of the project or one that extends it.

    Args:
        bins: of the calibration error.
    """
    if isinstance(task, Classification):
        return report_classes(columns, task.names, confidence, bins)
    if isinstance(task, MultiLabel):
        return report_labels(columns, task.names, confidence)
    return report_numbers(columns, task.names, confidence)


def values_of(task: Task, columns: Columns, confidence: float, bins: int) -> dict[str, float]:
    """Returns the metrics of predictions by name, without intervals of classes, which take longest."""
    if isinstance(task, Classification):
        return metrics_of(Predicted.of(columns), bins)[0]
    return {**report_of(task, columns, confidence, bins).values}


def report_labels(columns: Columns, names: Sequence[str], confidence: float) -> Measured:
    """Returns the metrics of predicted labels.

    A label that never holds and is never predicted has an F1 of 0; ROC-AUC and average precision are over the labels
    that some examples have and others have not.

    Args:
        columns: `target` and `predicted`, int32 [n, k], `probabilities`, float32 [n, k], and `weight`, if any.
    """
    from sklearn import metrics as sk  # some tenths of a second

    targets, predicted, probabilities = (columns[name] for name in ("target", "predicted", "probabilities"))
    weights = columns.get("weight")
    counted = targets if weights is None else targets[weights > 0]
    ranked = np.flatnonzero(counted.any(axis=0) & ~counted.all(axis=0)).tolist()

    # scikit-learn takes a single column for two classes, so it gets labels one by one, or all as one.
    def joint(score: Callable[..., float], answers: np.ndarray, places: Sequence[int], **more: Any) -> float:
        wide = None if weights is None else np.repeat(weights, len(places))
        return float(score(targets[:, places].ravel(), answers[:, places].ravel(), sample_weight=wide, **more))

    every = range(len(names))
    of_labels = {"f1": np.array([joint(sk.f1_score, predicted, [place], zero_division=0) for place in every])}
    parts = Sample.of(columns).parts
    values = {name: ESTIMATES[name](columns, parts)[0] for name in ("macro_f1", "exact_match")}
    values["micro_f1"] = joint(sk.f1_score, predicted, every, zero_division=0)
    scores = (("roc_auc", sk.roc_auc_score), ("average_precision", sk.average_precision_score))
    for name, score in scores if len(ranked) else ():
        of_labels[name] = np.full(len(names), math.nan)
        for place in ranked:
            of_labels[name][place] = joint(score, probabilities, [place])
        values[f"macro_{name}"] = float(of_labels[name][ranked].mean())
        values[f"micro_{name}"] = joint(score, probabilities, ranked)
    intervals, reasons = reported(
        {name: interval_of(name, columns, confidence) for name in ("macro_f1", "exact_match")}
    )
    left_out = [name for place, name in enumerate(names) if place not in ranked]
    notes = [
        f"all test examples have the same value of {some(left_out)}, so ROC-AUC and average precision do not include it"
    ]
    notes = [*(notes if left_out else []), *reasons]
    counts = (map(int, part.sum(axis=0)) for part in (targets, predicted))
    rows = zip(names, *map(blank_where_nan, of_labels.values()), *counts, strict=True)
    table = [("label", *of_labels, "examples", "predicted"), *rows]
    return Measured(values=values, intervals=intervals, notes=notes, tables={"by_label": table})


def report_numbers(columns: Columns, names: Sequence[str], confidence: float) -> Measured:
    """Returns the metrics of targets and predictions; of several targets their means, and those of each.

    Args:
        columns: `target` and `prediction`, float32 [n, k] each, and `weight`, if any.
    """
    from sklearn.metrics import median_absolute_error  # some tenths of a second

    targets, answers = (np.asarray(columns[name], np.float64) for name in ("target", "prediction"))
    weights = columns.get("weight")
    sample = Sample.of(columns)
    by_target = [number_estimates(targets[:, place], answers[:, place], sample.parts) for place in range(len(names))]
    estimates: dict[str, Estimate] = {}
    several = len(names) > 1
    for metric in ("rmse", "mae", "r2"):
        estimates[metric] = mean_of([part[metric] for part in by_target])
        if several:
            estimates |= {f"{metric}/{name}": part[metric] for name, part in zip(names, by_target, strict=True)}
    values = {name: value for name, (value, _) in estimates.items()}
    if weights is None or weights.any():
        medians = median_absolute_error(targets, answers, sample_weight=weights, multioutput="raw_values")
        for name, error in zip(names, medians, strict=True):
            values["median_error" + f"/{name}" * several] = float(error)
    results = {name: metric_interval(name, estimate, sample, confidence) for name, estimate in estimates.items()}
    intervals, reasons = reported(results)
    return Measured(values=values, intervals=intervals, notes=reasons)
