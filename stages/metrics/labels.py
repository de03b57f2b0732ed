"""Metrics of predicted labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stages.metrics.estimates import LEAST_OF_CLASS, Columns, Estimate, Sample
from stages.metrics.intervals import Result, fractions_of, mean_interval
from stages.metrics.metric import Fraction, Metric


class ExactMatch(Fraction):
    """The fraction of the examples whose labels are all predicted correctly."""

    name = "exact_match"

    def values(self, columns: Mapping[str, Any], xp: Any) -> Any:
        """See `MeanMetric`."""
        return xp.all(xp.equal(columns["target"], columns["predicted"]), axis=-1)


class MacroF1(Metric):
    """The mean of the labels' F1; 0 for a label that never holds and is never predicted."""

    name = "macro_f1"
    span = 1.0

    def of_each(self, columns: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        """Return true positives, positives and predicted positives of each label."""
        holds, predicted = (columns[name] > 0 for name in ("target", "predicted"))
        return {"hits": holds & predicted, "positives": holds, "predicted": predicted}

    def value(self, sums: Mapping[str, Any]) -> float:
        """See `Metric`."""
        below = np.asarray(sums["positives"] + sums["predicted"])
        f1 = np.divide(2 * np.asarray(sums["hits"]), below, out=np.zeros(below.shape), where=below > 0)
        return float(f1.mean())

    def estimate(self, columns: Columns, parts: np.ndarray) -> Estimate:
        """See `Metric`."""
        targets, predicted = columns["target"], columns["predicted"]
        hits, holds = parts[:, None] * (targets & predicted), parts[:, None] * (targets + predicted)
        below = holds.mean(axis=0)
        scale = np.divide(1.0, below, out=np.zeros(len(below)), where=below > 0)
        f1 = 2 * hits.mean(axis=0) * scale
        return float(f1.mean()), ((2 * hits - f1 * holds) * scale).mean(axis=1)

    def interval(self, columns: Columns, confidence: float) -> Result:
        """See `Metric`."""
        sample, targets, predicted = Sample.of(columns), columns["target"], columns["predicted"]
        if rarest_label(targets, sample.parts) < LEAST_OF_CLASS:
            return f"a label has fewer than {LEAST_OF_CLASS} test examples"
        hits, unions = ((targets & predicted).T, (targets | predicted).T)
        parts = sample.parts
        fractions = fractions_of(hits @ parts, unions @ parts, unions @ parts**2, are_overlaps=True)
        return mean_interval(self.estimate(columns, parts), fractions, sample, confidence)

    def by_example(self, columns: Columns) -> np.ndarray:
        """See `Metric`: only the metric if a label is rare."""
        parts = Sample.of(columns).parts
        if rarest_label(columns["target"], parts) < LEAST_OF_CLASS:
            return np.array([self.estimate(columns, parts)[0]])
        return super().by_example(columns)

    def of_slice(self, columns: Columns, rows: np.ndarray) -> Columns:
        """See `Metric`: without the labels that no example of the slice has or is predicted to have."""
        known = {name: columns[name] for name in ("target", "predicted")}
        is_there = np.logical_or(*(values[rows] for values in known.values())).any(axis=0)
        if not is_there.any():
            return super().of_slice(columns, rows)
        return super().of_slice({**columns, **{name: values[:, is_there] for name, values in known.items()}}, rows)


def rarest_label(targets: np.ndarray, parts: np.ndarray) -> int:
    """Return the number of examples of the rarest label that weigh something. targets: of 0 and 1, [n, k]."""
    return int(targets[parts > 0].sum(axis=0).min(initial=len(targets)))
