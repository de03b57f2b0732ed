"""Metrics of predictions by what is predicted: classes, labels (by scikit-learn, macro and micro), numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stages.evaluation.classes import Predicted, metrics_of, report_classes
from stages.evaluation.report import Measured, blank_where_nan, some
from stages.metrics.estimates import Columns, Sample
from stages.metrics.intervals import Result, reported
from stages.metrics.labels import ExactMatch, MacroF1
from stages.metrics.metric import Metric
from stages.metrics.numbers import R2, Mae, Rmse
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


def comparable(task: Task) -> tuple[Metric, ...]:
    """Return the metrics of the task that have an interval, and by which predictions can be compared."""
    return tuple(metric for metric in task.metrics if metric.has_estimate)


def metric_of(task: Task) -> Metric:
    """Return the metric by which predictions are compared: the primary one, or the first one that allows it."""
    return task.primary_metric if task.primary_metric.has_estimate else comparable(task)[0]


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
    return bool(means_of(train.target_values, train.weights, len(task.names)).max() >= IMBALANCED)


def report_of(task: Task, columns: Columns, confidence: float, bins: int) -> Measured:
    """Return the metrics of the columns of a file of predictions, for a task of the project or one that extends it.

    Args:
        bins: of the calibration error.
    """
    metrics = comparable(task)
    if isinstance(task, Classification):
        return report_classes(columns, task.names, confidence, bins, metrics)
    if isinstance(task, MultiLabel):
        return report_labels(columns, task.names, confidence, metrics)
    return report_numbers(columns, task.names, confidence, metrics)


def values_of(task: Task, columns: Columns, confidence: float, bins: int) -> dict[str, float]:
    """Return the metrics of predictions by name, without intervals of classes, which take longest."""
    if isinstance(task, Classification):
        return {**metrics_of(Predicted.of(columns), bins)[0], **values_by_name(comparable(task), columns)}
    return {**report_of(task, columns, confidence, bins).values}


def report_labels(
    columns: Columns, names: Sequence[str], confidence: float, metrics: Sequence[Metric] = (MacroF1(), ExactMatch())
) -> Measured:
    """Return the metrics of predicted labels.

    A label that never holds and is never predicted has an F1 of 0; ROC-AUC and average precision are over the labels
    that some examples have and others have not.

    Args:
        columns: `target` and `predicted`, int32 [n, k], `probabilities`, float32 [n, k], and `weight`, if any.
        metrics: Those of the task.
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
    values = values_by_name(metrics, columns)
    values["micro_f1"] = joint(sk.f1_score, predicted, every, zero_division=0)
    scores = (("roc_auc", sk.roc_auc_score), ("average_precision", sk.average_precision_score))
    for name, score in scores if len(ranked) else ():
        of_labels[name] = np.full(len(names), math.nan)
        for place in ranked:
            of_labels[name][place] = joint(score, probabilities, [place])
        values[f"macro_{name}"] = float(of_labels[name][ranked].mean())
        values[f"micro_{name}"] = joint(score, probabilities, ranked)
    intervals, reasons = reported({metric.name: metric.interval(columns, confidence) for metric in metrics})
    left_out = [name for place, name in enumerate(names) if place not in ranked]
    notes = [
        f"all test examples have the same value of {some(left_out)}, so ROC-AUC and average precision do not include it"
    ]
    notes = [*(notes if left_out else []), *reasons]
    counts = (map(int, part.sum(axis=0)) for part in (targets, predicted))
    rows = zip(names, *map(blank_where_nan, of_labels.values()), *counts, strict=True)
    table = [("label", *of_labels, "examples", "predicted"), *rows]
    return Measured(values=values, intervals=intervals, notes=notes, tables={"by_label": table})


def report_numbers(
    columns: Columns, names: Sequence[str], confidence: float, metrics: Sequence[Metric] = (Rmse(), Mae(), R2())
) -> Measured:
    """Return the metrics of targets and predictions; for several targets their means, and those of each.

    Args:
        columns: `target` and `prediction`, float32 [n, k] each, and `weight`, if any.
        metrics: Those of the task.
    """
    from sklearn.metrics import median_absolute_error  # some tenths of a second

    targets, answers = (np.asarray(columns[name], np.float64) for name in ("target", "prediction"))
    weights = columns.get("weight")
    several = len(names) > 1
    values: dict[str, float] = {}
    results: dict[str, Result] = {}
    for metric in metrics:
        of_targets = {f"{metric.name}/{name}": _of_target(columns, place) for place, name in enumerate(names)}
        for name, part in {metric.name: columns, **(of_targets if several else {})}.items():
            values[name] = metric.estimate(part, Sample.of(part).parts)[0]
            results[name] = metric.interval(part, confidence)
    if weights is None or weights.any():
        medians = median_absolute_error(targets, answers, sample_weight=weights, multioutput="raw_values")
        for name, error in zip(names, medians, strict=True):
            values["median_error" + f"/{name}" * several] = float(error)
    intervals, reasons = reported(results)
    return Measured(values=values, intervals=intervals, notes=reasons)


def _of_target(columns: Columns, place: int) -> Columns:
    """Return the columns of one of several targets."""
    return {name: column if column.ndim == 1 else column[:, [place]] for name, column in columns.items()}


def values_by_name(metrics: Sequence[Metric], columns: Columns) -> dict[str, float]:
    """Return the metrics of columns of predictions."""
    return {metric.name: metric.estimate(columns, Sample.of(columns).parts)[0] for metric in metrics}
