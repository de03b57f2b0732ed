"""Predicted classes: their metrics, by scikit-learn wherever it has the metric, the metrics' intervals, and plots.

Fractions of examples have the exact binomial interval, means over classes one from Wilson's of each class. Others have
one by the influence of each example: the derivative of the metric by the example's weight (Hampel, JASA 69, 1974), for
ROC-AUC DeLong's estimate (Biometrics 44, 1988); see `stages.metrics.intervals`.

The expected calibration error has none: it is biased upward by about its own spread, and so is every resample of it.
`python -m benchmarks.coverage` measures how often each interval holds the truth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.metrics.classes import Accuracy, LogLoss
from stages.metrics.estimates import LEAST_OF_CLASS, Columns, Estimate, Sample, mean_estimate, parts_of
from stages.metrics.intervals import (
    Ends,
    Fractions,
    Result,
    fraction_interval,
    fractions_of,
    influence_interval,
    mean_interval,
    reported,
)
from stages.metrics.metric import Metric
from stages.metrics.report import Measured, blank_where_nan, some
from stages.plots.charts import drawable, plot_confusion, plot_reliability
from stages.plots.galleries import plot_batch
from stages.reporter import safe_place

if TYPE_CHECKING:
    from stages.results import Dataset
    from stages.settings.results import EvaluateSettings

TOP = 5


@dataclass(frozen=True)
class Predicted:
    """Predictions of n examples of a split: labels and predicted classes, int32 [n]; probabilities, float32 [classes,
    n], a row a class; weights, float64 [n], None where all are alike; groups, int64 [n], None where there are none."""

    labels: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    @classmethod
    def of(cls, columns: Columns) -> "Predicted":
        """Return the predictions in the columns of a file."""
        probabilities = np.ascontiguousarray(columns["probabilities"].T)
        return cls(columns["label"], columns["predicted"], probabilities, columns.get("weight"), columns.get("group"))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.probabilities)

    @cached_property
    def support(self) -> np.ndarray:
        """Examples of each class that weigh something, int64 [classes]."""
        return np.bincount(self.labels[self.parts > 0], minlength=self.num_classes)

    @property
    def confusion(self) -> np.ndarray:
        """Sums of weights, [classes, classes]: rows are true classes, columns predicted ones."""
        places = self.labels.astype(np.int64) * self.num_classes + self.predicted
        return np.bincount(places, self.weights, self.num_classes**2).reshape(self.num_classes, -1)

    @cached_property
    def is_ranked(self) -> np.ndarray:
        """Whether a class can be ranked against the rest, bool [classes]: some examples have it, others not."""
        return (self.support > 0) & (self.support < self.support.sum())

    @property
    def averaged(self) -> np.ndarray:
        """Classes that a one-vs-rest mean is of: the ranked ones; of two the second, as scikit-learn has it."""
        classes = np.flatnonzero(self.is_ranked)
        return classes[classes == 1] if self.num_classes == 2 else classes

    @cached_property
    def parts(self) -> np.ndarray:
        """Weights with a mean of 1, float64 [n]."""
        return parts_of(len(self), self.weights)

    @cached_property
    def of_label(self) -> np.ndarray:
        """Probabilities of the labels, float32 [n]."""
        return self.probabilities[self.labels, np.arange(len(self))]

    @cached_property
    def of_predicted(self) -> np.ndarray:
        """Probabilities of the predicted classes, float32 [n]."""
        return self.probabilities[self.predicted, np.arange(len(self))]

    @cached_property
    def is_in_top(self) -> np.ndarray:
        """Whether fewer than five classes come before the label, bool [n]; of equal ones the later class does."""
        before = np.zeros(len(self), np.int64)
        for number, values in enumerate(self.probabilities):
            before += (values > self.of_label) | ((values == self.of_label) & (number > self.labels))
        return before < TOP

    @property
    def correct(self) -> np.ndarray:
        return self.labels == self.predicted


@dataclass(frozen=True)
class AveragePrecision(Metric):
    """The average precision of one class against the rest.

    Ranking needs all examples at once, so it is not a function of sums, and training cannot use it.
    """

    number: int
    """The class."""

    class_name: str

    span = 1.0

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the metric, with the class."""
        return f"average_precision/{self.class_name}"

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """Raise TypeError."""
        raise TypeError(f"{self.name} is not a function of sums")

    def value(self, sums: Mapping[str, Any]) -> float:
        """Raise TypeError."""
        raise TypeError(f"{self.name} is not a function of sums")

    def estimate(self, columns: Columns, parts: np.ndarray) -> Estimate:
        """See `Metric`. Both are nan if fewer than LEAST_OF_CLASS examples are of the class, or of all others."""
        is_positive = columns["label"] == self.number
        positives = int(is_positive[parts > 0].sum())
        if min(positives, int((parts > 0).sum()) - positives) < LEAST_OF_CLASS:
            return np.nan, np.full(len(parts), np.nan)
        values, influences = _of_ranking(is_positive, columns["probabilities"][:, self.number], parts)
        return float(values[1]), influences[1]


def report_classes(
    columns: Columns, names: Sequence[str], confidence: float, bins: int, metrics: Sequence[Metric] = (Accuracy(),)
) -> Measured:
    """Return the metrics of predicted classes.

    Args:
        columns: `label` and `predicted`, int32 [n], `probabilities`, float32 [n, classes], and `weight`, if any.
        metrics: Those of the task.
    """
    predicted = Predicted.of(columns)
    more, by_class = metrics_of(predicted, bins)
    values = {metric.name: metric.estimate(columns, predicted.parts)[0] for metric in metrics}
    results = {metric.name: metric.interval(columns, confidence) for metric in metrics}
    absent = [name for name, examples in zip(names, predicted.support, strict=True) if not examples]
    notes = [
        f"the test split has no example of {len(absent)} of {len(names)} classes ({some(absent)}), so ROC-AUC and "
        "average precision do not include these classes"
    ]
    rows = zip(names, *map(blank_where_nan, by_class.values()), map(int, predicted.support), strict=True)
    table = [("class", *by_class, "examples"), *rows]
    intervals, reasons = reported({**results_of(predicted, confidence), **results})
    notes = [*(notes if absent else []), *reasons]
    return Measured(values={**more, **values}, intervals=intervals, notes=notes, tables={"by_class": table})


def metrics_of(predicted: Predicted, bins: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the metrics that the predictions define, and those of each class, float64 [classes], nan where undefined.

    Macro means are scikit-learn's: precision, recall and F1 over the classes that are labels or predictions, a class
    without a denominator counting 0; ROC-AUC and average precision one-vs-rest, over the classes that some examples
    have and others have not. Of two classes these are of the second, as scikit-learn has it.

    Args:
        bins: of the calibration error.
    """
    from sklearn import metrics as sk  # some tenths of a second, which no other stage need wait for

    labels, classes, weights = predicted.labels, predicted.predicted, predicted.weights
    scores = sk.precision_recall_fscore_support(
        labels, classes, labels=range(predicted.num_classes), zero_division=0, sample_weight=weights
    )
    by_class = dict(zip(("precision", "recall", "f1"), scores, strict=False))
    is_there = np.union1d(labels, classes)
    # The log loss depends on the label's probability alone, so the label is one of two classes here: all classes' would
    # have to be in memory, several times.
    ones = np.ones(len(predicted), np.int32)
    values = {
        "accuracy": float(sk.accuracy_score(labels, classes, sample_weight=weights)),
        **{f"macro_{name}": float(part[is_there].mean()) for name, part in by_class.items()},
        "log_loss": float(sk.log_loss(ones, predicted.of_label, labels=[0, 1], sample_weight=weights)),
        "ece": calibration_error(predicted, bins),
    }
    if predicted.num_classes > TOP:
        values["top5_accuracy"] = float(np.average(predicted.is_in_top, weights=weights))
    for name, score in (("roc_auc", sk.roc_auc_score), ("average_precision", sk.average_precision_score)):
        by_class[name] = _one_vs_rest(score, predicted)
        if len(predicted.averaged):
            values[name] = float(np.mean(by_class[name][predicted.averaged]))
    return values, by_class


def _one_vs_rest(score: Callable[..., float], predicted: Predicted) -> np.ndarray:
    """Return the score of each class against the rest, float64 [classes]; nan where it is not defined."""
    by_class = np.full(predicted.num_classes, np.nan)
    for number in np.flatnonzero(predicted.is_ranked):
        is_class, probabilities = predicted.labels == number, predicted.probabilities[number]
        by_class[number] = score(is_class, probabilities, sample_weight=predicted.weights)
        safe_place()
    return by_class


def calibration_error(predicted: Predicted, bins: int) -> float:
    """Return the expected calibration error (Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3).

    The mean over the examples of |accuracy - mean confidence| of the bin that each is in; confidence is the probability
    of the predicted class, and bins are equally wide.
    """
    gaps = predicted.parts * (predicted.correct - predicted.of_predicted.astype(np.float64))
    return float(np.abs(np.bincount(bins_of(predicted, bins), gaps, bins)).sum() / len(predicted))


def bins_of(predicted: Predicted, bins: int) -> np.ndarray:
    """Return the bin of each example's confidence, from 0; borders belong to the lower bin, as in scikit-learn."""
    return np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], predicted.of_predicted)


def intervals_of(predicted: Predicted, confidence: float) -> dict[str, Ends]:
    """Return the lower and upper end of the interval of each metric that has one."""
    return reported(results_of(predicted, confidence))[0]


def results_of(predicted: Predicted, confidence: float) -> dict[str, Result]:
    """Return the interval of each metric, or the reason why it has none."""
    sample = Sample(predicted.parts, predicted.groups)
    rare = f"a class has fewer than {LEAST_OF_CLASS} test examples"
    is_rare = (predicted.support < LEAST_OF_CLASS).any()  # a mean without a class is a mean of something else
    results: dict[str, Result] = {
        name: rare if is_rare else mean_interval(estimate, fractions, sample, confidence)
        for name, (estimate, fractions) in _of_classes(predicted).items()
    }
    for name, estimate in estimates_of(predicted).items():
        if name in ("accuracy", "top5_accuracy"):
            results[name] = fraction_interval(estimate, sample, confidence)
        elif name == "log_loss":
            results[name] = LogLoss().ends(estimate, sample, confidence)
        elif name not in results:
            results[name] = influence_interval(estimate, sample, confidence)
    if "roc_auc" not in results and len(predicted.averaged):
        results |= dict.fromkeys(("roc_auc", "average_precision"), f"{rare}, or of all other classes")
    return results


def estimates_of(predicted: Predicted) -> dict[str, Estimate]:
    """Return the metrics with the influences of the examples on them; rankings only of classes that are not rare."""
    fractions = {"accuracy": predicted.correct}
    if predicted.num_classes > TOP:
        fractions["top5_accuracy"] = predicted.is_in_top
    found = {name: mean_estimate(is_hit, predicted.parts) for name, is_hit in fractions.items()}
    found |= {name: estimate for name, (estimate, _) in _of_classes(predicted).items()}
    columns = {"label": np.zeros(len(predicted), np.int64), "probabilities": predicted.of_label[:, np.newaxis]}
    return found | _of_rankings(predicted) | {"log_loss": LogLoss().estimate(columns, predicted.parts)}


def _of_classes(predicted: Predicted) -> dict[str, tuple[Estimate, Fractions]]:
    """Return the macro means, and the fractions that each is the mean of."""
    size, count = predicted.num_classes, len(predicted)
    labels, classes, parts, correct = predicted.labels, predicted.predicted, predicted.parts, predicted.correct
    is_there = np.zeros(size, bool)
    for numbers in (labels, classes):
        is_there[numbers[parts > 0]] = True

    def sums(weights: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return for each class the sums of the weights of its correct examples, of its own, and of those predicted."""
        hits = np.bincount(labels[correct], weights[correct], size)
        return hits, np.bincount(labels, weights, size), np.bincount(classes, weights, size)

    (hits, support, chosen), (squared_hits, squared_support, squared_chosen) = sums(parts), sums(parts**2)

    def ratio(factor: int, of_support: int, of_chosen: int) -> tuple[Estimate, Fractions]:
        """Return the mean over classes of factor · hits / (of_support · support + of_chosen · chosen)."""
        both = of_support * of_chosen
        below = (of_support * support + of_chosen * chosen) / count
        scale = np.divide(1.0, below, out=np.zeros(size), where=below > 0)
        values = factor * hits / count * scale
        lost = of_support * (values * scale)[labels] + of_chosen * (values * scale)[classes]
        influences = parts * (factor * correct * scale[labels] - lost)
        totals = of_support * support + of_chosen * chosen - both * hits
        squares = of_support * squared_support + of_chosen * squared_chosen - both * squared_hits
        fractions = fractions_of(hits[is_there], totals[is_there], squares[is_there], are_overlaps=bool(both))
        return (float(values[is_there].mean()), influences / is_there.sum()), fractions

    return {"macro_precision": ratio(1, 0, 1), "macro_recall": ratio(1, 1, 0), "macro_f1": ratio(2, 1, 1)}


def _of_rankings(predicted: Predicted) -> dict[str, Estimate]:
    """Return ROC-AUC and average precision, one-vs-rest; none where a class has too few examples."""
    chosen = predicted.averaged
    fewest = np.minimum(predicted.support, predicted.support.sum() - predicted.support)[chosen]
    if not len(chosen) or fewest.min() < LEAST_OF_CLASS or predicted.support.min() < LEAST_OF_CLASS:
        return {}
    values, influences = np.zeros(2), np.zeros((2, len(predicted)))
    for number in chosen:
        is_positive, scores = predicted.labels == number, predicted.probabilities[number]
        of_one, by_example = _of_ranking(is_positive, scores, predicted.parts)
        values += of_one / len(chosen)
        influences += by_example / len(chosen)
        safe_place()
    names = ("roc_auc", "average_precision")
    return {name: (float(values[place]), influences[place]) for place, name in enumerate(names)}


def _of_ranking(is_positive: np.ndarray, scores: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ROC-AUC and average precision of one class, float64 [2], and the influences on them, float64 [2, n].

    On the area it is the fraction of the other kind that the example is ranked correctly against. The average precision
    is the mean over the positives of T / N, the positives among the examples with at least their score: an example
    changes T / N of all positives that are not above it by (1 - T / N) / N where it is positive, by -T / N² where not.
    Examples count by their `parts`, their weights.
    """
    count, positives = len(scores), float(parts[is_positive].sum())
    levels, level = np.unique(scores, return_inverse=True)
    of_positives = np.bincount(level[is_positive], parts[is_positive], len(levels))
    of_all = np.bincount(level, parts, len(levels))
    of_negatives = of_all - of_positives
    below = np.cumsum(of_negatives) - of_negatives / 2
    above = positives - np.cumsum(of_positives) + of_positives / 2
    area = np.where(is_positive, below[level], above[level])
    area /= np.where(is_positive, count - positives, positives)
    value = np.average(area[is_positive], weights=parts[is_positive])
    area -= value
    area *= count / np.where(is_positive, positives, count - positives)
    true, ranked = (np.cumsum(part[::-1])[::-1] for part in (of_positives, of_all))
    precision = true / ranked
    mean = (of_positives * precision).sum() / positives
    gained = np.cumsum(of_positives / ranked)
    lost = np.cumsum(of_positives * precision / ranked)
    average = is_positive * (precision[level] - mean + gained[level]) - lost[level]
    return np.array([value, mean]), parts * np.stack([area, average * (count / positives)])


def draw_classes(predicted: Predicted, dataset: "Dataset", settings: "EvaluateSettings", folder: Path) -> list[Path]:
    """Draw the confusion matrix, the reliability diagram and the hardest mistakes, as far as there are any.

    Args:
        folder: the run's; a plot of earlier mistakes is removed.
    """
    place = folder / "plots"
    drawn = [
        plot_confusion(predicted.confusion, dataset.task.names, place / "confusion.png"),
        _draw_reliability(predicted, settings.calibration_bins, place / "reliability.png"),
    ]
    path = place / "mistakes.png"
    path.unlink(missing_ok=True)
    images = dataset.images
    wrong = np.flatnonzero(~predicted.correct)
    hardest = wrong[np.argsort(predicted.of_label[wrong], kind="stable")][: settings.mistakes]
    if len(hardest) and images is not None:
        names = drawable(dataset.task.names)
        titles = [
            f"{names[predicted.labels[row]]} ({predicted.of_label[row]:.0%}) → "
            f"{names[predicted.predicted[row]]} ({predicted.of_predicted[row]:.0%})"
            for row in hardest
        ]
        title = f"The worst {len(hardest)} of {len(wrong):,} mistakes: true class → predicted class (probabilities)"
        drawn.append(plot_batch(dataset.test.images[hardest], titles, images.ends, title, path))
    return drawn


def _draw_reliability(predicted: Predicted, bins: int, path: Path) -> Path:
    places = bins_of(predicted, bins)
    values = (np.ones(len(predicted)), predicted.correct, predicted.of_predicted)
    counts, correct, sure = (np.bincount(places, predicted.parts * part, bins) for part in values)
    return plot_reliability(counts, correct, sure, calibration_error(predicted, bins), path)
