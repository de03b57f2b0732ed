"""Metrics of predictions, by scikit-learn wherever it has the metric."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stages.evaluation.estimates import parts_of
from stages.evaluation.predictions import TOP, Predicted
from stages.safe_places import safe_place

ACCURACY = "accuracy"
LOG_LOSS = "log_loss"
TOP_ACCURACY = "top5_accuracy"
CALIBRATION = "ece"
ROC_AUC = "roc_auc"
AVERAGE_PRECISION = "average_precision"
MACRO = {"precision": "macro_precision", "recall": "macro_recall", "f1": "macro_f1"}

LEAST = np.finfo(np.float32).eps
"""Smallest probability of a label in the log loss, 1.2e-07: scikit-learn clips smaller ones to it."""


@dataclass(frozen=True)
class Metrics:
    """values: by name, those that the predictions define; by_class: float64 [classes] each, nan where undefined.

    support: examples of each class, int64 [classes].
    """

    values: dict[str, float]
    by_class: dict[str, np.ndarray]
    support: np.ndarray


def metrics_of(predicted: Predicted, bins: int) -> Metrics:
    """Returns the metrics of predictions.

    Macro means are scikit-learn's: precision, recall and F1 over the classes that are labels or predictions, a class
    without a denominator counting 0; ROC-AUC and average precision one-vs-rest, over the classes that some examples
    have and others have not. Of two classes these are of the second, as scikit-learn has it.

    Args:
        bins: of the calibration error.
    """
    from sklearn import metrics as sk  # some tenths of a second, which no other stage need wait for

    labels, classes, weights = predicted.labels, predicted.predicted, predicted.weights
    of_classes = sk.precision_recall_fscore_support(
        labels, classes, labels=range(predicted.num_classes), zero_division=0, sample_weight=weights
    )
    of_all = sk.precision_recall_fscore_support(
        labels, classes, average="macro", zero_division=0, sample_weight=weights
    )
    values = {ACCURACY: float(sk.accuracy_score(labels, classes, sample_weight=weights))}
    values |= {MACRO[name]: float(value) for name, value in zip(MACRO, of_all[:3], strict=True)}
    by_class = dict(zip(MACRO, of_classes[:3], strict=True))
    if predicted.is_finite:
        values |= {LOG_LOSS: log_loss(predicted), CALIBRATION: calibration_error(predicted, bins)}
        if predicted.num_classes > TOP:
            values[TOP_ACCURACY] = float(np.average(predicted.is_in_top, weights=weights))
        for name, score in ((ROC_AUC, sk.roc_auc_score), (AVERAGE_PRECISION, sk.average_precision_score)):
            by_class[name] = _one_vs_rest(score, predicted)
            chosen = averaged(by_class[name])
            if not np.isnan(chosen).all():
                values[name] = float(np.mean(chosen[~np.isnan(chosen)]))
    return Metrics(values, by_class, np.bincount(labels, minlength=predicted.num_classes))


def _one_vs_rest(score: Callable[..., float], predicted: Predicted) -> np.ndarray:
    """Returns the score of each class against the rest, float64 [classes]; nan where it is not defined."""
    by_class = np.full(predicted.num_classes, np.nan)
    for number in np.flatnonzero(ranked_classes(predicted)):
        is_class, probabilities = predicted.labels == number, predicted.probabilities[number]
        by_class[number] = score(is_class, probabilities, sample_weight=predicted.weights)
        safe_place()
    return by_class


def ranked_classes(predicted: Predicted) -> np.ndarray:
    """Returns which classes can be ranked against the rest, bool [classes]: some examples have them, others not."""
    support = np.bincount(predicted.labels, minlength=predicted.num_classes)
    return (support > 0) & (support < len(predicted))


def averaged(by_class: np.ndarray) -> np.ndarray:
    """Returns the classes that a one-vs-rest mean is of, of [classes, …]: of two the second, as scikit-learn has it."""
    return by_class[1:] if len(by_class) == 2 else by_class


def log_loss(predicted: Predicted) -> float:
    """Returns scikit-learn's log loss of the predictions.

    It depends on the probability of the label alone. That of all classes would have to be in memory, several times; so
    the label is one of two classes here, which gives the same number to the last digit.
    """
    from sklearn import metrics as sk

    ones = np.ones(len(predicted), np.int32)
    return float(sk.log_loss(ones, predicted.of_label, labels=[0, 1], sample_weight=predicted.weights))


def losses(predicted: Predicted) -> np.ndarray:
    """Returns the log loss of each example, float64 [n], of probabilities clipped as scikit-learn clips them."""
    return -np.log(np.clip(predicted.of_label, LEAST, 1 - LEAST).astype(np.float64))


def calibration_error(predicted: Predicted, bins: int) -> float:
    """Returns the expected calibration error (Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3).

    The mean over the examples of |accuracy - mean confidence| of the bin that each is in; confidence is the probability
    of the predicted class, and bins are equally wide.
    """
    parts = parts_of(len(predicted), predicted.weights)
    gaps = parts * (predicted.correct - predicted.of_predicted.astype(np.float64))
    return float(np.abs(np.bincount(bins_of(predicted, bins), gaps, bins)).sum() / len(predicted))


def bins_of(predicted: Predicted, bins: int) -> np.ndarray:
    """Returns the bin of each example's confidence, from 0; borders belong to the lower bin, as in scikit-learn."""
    return np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], predicted.of_predicted)
