"""Metrics of masks, from three counts per class: its pixels, the pixels predicted to be of it, and those that are both.

Pixels that do not count, of `Targets.ignored_pixel`, are in none of the counts.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from stages.metrics.estimates import Columns, Sample
from stages.metrics.intervals import Result
from stages.metrics.metric import Metric

COUNTS = ("pixels", "predicted_pixels", "intersection")
"""The columns of counts, [n, classes] each."""

LEAST_OF_MASKS = 20
"""Minimum number of examples in which each class that occurs must do so, for an interval of a mean over classes."""


class OfAreas(Metric):
    """A mean over the classes that occur in the masks or in the predictions. A subclass defines `of_classes`."""

    span = 1.0

    @abstractmethod
    def of_classes(self, pixels: np.ndarray, predicted: np.ndarray, intersection: np.ndarray) -> np.ndarray:
        """Return the metric of each class, float64 [classes], from its sums; nan for a class that does not occur."""

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """See `Metric`."""
        return {name: columns[name] for name in COUNTS}

    def by_class(self, sums: Mapping[str, Any]) -> np.ndarray:
        """Return the metric of each class, float64 [classes]; nan for a class that does not occur."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.of_classes(*(np.asarray(sums[name], np.float64) for name in COUNTS))

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`; nan if no pixel counts."""
        scores = self.by_class(sums)
        occurs = ~np.isnan(scores)
        return float(scores[occurs].mean()) if occurs.any() else float("nan")

    def interval(self, columns: Columns, confidence: float) -> Result:
        """See `Metric`."""
        if rarest_class(columns) < LEAST_OF_MASKS:
            return f"a class occurs in fewer than {LEAST_OF_MASKS} test examples"
        return super().interval(columns, confidence)

    def by_example(self, columns: Columns) -> np.ndarray:
        """See `Metric`: only the metric if a class is rare."""
        if rarest_class(columns) < LEAST_OF_MASKS:
            return np.array([self.estimate(columns, Sample.of(columns).parts)[0]])
        return super().by_example(columns)


class MeanIou(OfAreas):
    """The mean intersection over union (Jaccard index) of the classes, each over the pixels of all examples."""

    name = "mean_iou"

    def of_classes(self, pixels: np.ndarray, predicted: np.ndarray, intersection: np.ndarray) -> np.ndarray:
        """See `OfAreas`."""
        return intersection / (pixels + predicted - intersection)


class Dice(OfAreas):
    """The mean Dice coefficient (F1) of the classes, each over the pixels of all examples."""

    name = "dice"

    def of_classes(self, pixels: np.ndarray, predicted: np.ndarray, intersection: np.ndarray) -> np.ndarray:
        """See `OfAreas`."""
        return 2 * intersection / (pixels + predicted)


class PixelAccuracy(Metric):
    """The fraction of the pixels of all examples whose class is predicted."""

    name = "pixel_accuracy"
    span = 1.0

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """See `Metric`."""
        return {name: columns[name] for name in ("pixels", "intersection")}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`; nan if no pixel counts."""
        pixels = float(np.sum(sums["pixels"]))
        return float(np.sum(sums["intersection"])) / pixels if pixels else float("nan")


def rarest_class(columns: Columns) -> int:
    """Return the number of examples in which the rarest of the classes that occur does, in the mask or predicted."""
    occurs = (np.asarray(columns["pixels"]) + columns["predicted_pixels"])[Sample.of(columns).parts > 0] > 0
    examples = occurs.sum(axis=0)
    return int(examples[examples > 0].min(initial=len(occurs)))
