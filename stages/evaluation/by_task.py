"""Metrics of several labels, by scikit-learn: F1, ROC-AUC and average precision, of each label, macro and micro."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.evaluation.estimates import ESTIMATES, Columns, parts_of
from stages.evaluation.intervals import Ends, interval
from stages.evaluation.numbers import LEAST
from stages.evaluation.report import Measured
from stages.storage.atomic import write_csv

BY_LABEL = "test_by_label.csv"


@dataclass(frozen=True, kw_only=True)
class LabelsReport(Measured):
    """Metrics of all labels; by_label: rows of a table, its header first."""

    by_label: Sequence[Sequence[object]]

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Writes the tables to `folder`; returns their paths."""
        write_csv(folder / BY_LABEL, self.by_label)
        return *super().write(folder), folder / BY_LABEL


def report_labels(columns: Columns, names: Sequence[str], confidence: float) -> LabelsReport:
    """Returns the metrics of predicted labels.

    A label that never holds and is never predicted has an F1 of 0; ROC-AUC and average precision are over the labels
    that some examples have and others have not.

    Args:
        columns: `target` and `predicted`, int32 [n, k], `probabilities`, float32 [n, k], and `weight`, if any.
    """
    from sklearn import metrics as sk  # some tenths of a second

    targets, predicted, probabilities = (columns[name] for name in ("target", "predicted", "probabilities"))
    weights = columns.get("weight")
    f1 = sk.f1_score(targets, predicted, average=None, zero_division=0, sample_weight=weights)
    of_labels = {"f1": np.asarray(f1, np.float64)}
    ranked = np.flatnonzero(targets.any(axis=0) & ~targets.all(axis=0))
    parts = parts_of(len(targets), weights)
    estimates = {name: ESTIMATES[name](columns, parts) for name in ("macro_f1", "exact_match")}
    values = {f"test/{name}": value for name, (value, _) in estimates.items()}
    values["test/micro_f1"] = float(
        sk.f1_score(targets, predicted, average="micro", zero_division=0, sample_weight=weights)
    )
    scores: dict[str, Callable[..., float]] = {
        "roc_auc": sk.roc_auc_score,
        "average_precision": sk.average_precision_score,
    }
    for name, score in scores.items() if np.isfinite(probabilities).all() and len(ranked) else ():
        of_labels[name] = np.full(len(names), math.nan)
        for place in ranked:
            of_labels[name][place] = score(targets[:, place], probabilities[:, place], sample_weight=weights)
        values[f"test/macro_{name}"] = float(of_labels[name][ranked].mean())
        values[f"test/micro_{name}"] = float(
            score(targets[:, ranked], probabilities[:, ranked], average="micro", sample_weight=weights)
        )
    found = {f"test/{name}": interval(*estimate, confidence) for name, estimate in estimates.items()}
    intervals: dict[str, Ends] = {
        name: ends for name, ends in found.items() if ends is not None and len(targets) >= LEAST
    }
    notes = [
        f"{len(targets):,} test examples. exact_match: those of which every label is predicted. low, high: "
        f"{100 * confidence:g} % interval over the test examples, of {LEAST} or more; it does not show how results "
        "vary with the seed."
    ]
    left_out = [name for place, name in enumerate(names) if place not in ranked]
    if left_out:
        notes.append(
            f"all test examples are alike in {', '.join(left_out[:5])}{' …' if left_out[5:] else ''}: ROC-AUC and "
            "average precision leave them out"
        )
    cells = [["" if math.isnan(value) else float(value) for value in column] for column in of_labels.values()]
    rows = zip(names, *cells, map(int, targets.sum(axis=0)), map(int, predicted.sum(axis=0)), strict=True)
    table = [("label", *of_labels, "examples", "predicted"), *rows]
    return LabelsReport(values=values, intervals=intervals, notes=notes, by_label=table)
