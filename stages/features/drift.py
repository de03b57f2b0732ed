"""Drift: what a network was trained on, in shares of bins, and how far from it lies what comes in later.

One measure for all kinds: the population stability index, the sum over bins of (q - p) ln(q / p) of the shares p in
training and q now (Siddiqi, Credit Risk Scorecards, 2006, chapter 6, from which `MOVED` is, too). It needs NumPy alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stages.data.columns import Column, evenly_spread
from stages.features.kinds import TRAINED_ON, Feature

MOVED = 0.25
"""Index above which a column has moved."""

LEAST = 200
"""Rows from which that is told: the index of fewer is large by chance."""

ROWS = 10_000
"""Rows, evenly spread, that shares are of, at most; of images and vectors IMAGES."""

IMAGES = 500

BLOCK = 50
"""Images, or vectors, that are read at once."""

TOP, KNOWN = 10, 1_000
"""Most frequent values of a category that have a bin each, and that have one at all; the rest are unknown."""

SHOWN = 5
"""Columns that are named in a line, at most."""

Bins = dict[str, Any]


def with_bins(features: Mapping[str, Feature], columns: Mapping[str, Column]) -> dict[str, Feature]:
    """Returns the features with `TRAINED_ON` among their facts. columns: of the training split."""
    return {
        name: replace(feature, facts={**feature.facts, TRAINED_ON: _bins_of(name, feature, columns[name])})
        for name, feature in features.items()
    }


def trained_on(features: Mapping[str, Feature]) -> str:
    """Returns what is known of the training split of all features, as JSON."""
    return json.dumps({name: one.facts[TRAINED_ON] for name, one in features.items() if TRAINED_ON in one.facts})


def _bins_of(name: str, feature: Feature, column: Column) -> Bins:
    bins: Bins = {"kind": feature.kind, "column": feature.facts.get("column", name)}
    if feature.kind == "image":
        bins |= {"range": list(feature.facts["range"]), "shape": feature.shape, "resize": feature.facts["resize"]}
    measured = _measured(bins, column)
    if feature.kind == "category":
        bins["values"] = list(feature.facts["values"][:KNOWN])
    else:
        present = measured[~np.isnan(measured)]
        ends = np.quantile(present, np.linspace(0, 1, 11), method="lower") if len(present) else present
        bins["borders"] = np.unique(ends).tolist()
    counts = _counts(bins, measured)
    return {**bins, "shares": (counts / counts.sum()).tolist()}


def _measured(bins: Bins, column: Column) -> np.ndarray:
    """Returns what is binned of some rows: values, how many words texts have, means of vectors and pixels."""
    is_wide = bins["kind"] in ("image", "vector")
    rows = evenly_spread(column.shape[0], IMAGES if is_wide else ROWS)
    if is_wide:
        low, high = bins.get("range", (0.0, 1.0))
        blocks = (column[rows[start : start + BLOCK]] for start in range(0, len(rows), BLOCK))
        means = [np.mean(block, axis=tuple(range(1, block.ndim)), dtype=np.float64) for block in blocks]
        return (np.concatenate(means) - low) / (high - low)
    values = np.asarray(column[rows])
    if bins["kind"] == "text":
        return np.array([len(text.split()) for text in values], np.float64)
    return values if bins["kind"] == "category" else values.astype(np.float64)


def _counts(bins: Bins, measured: np.ndarray) -> np.ndarray:
    """Returns how many values are in each bin, those that are missing or unknown in the last."""
    if bins["kind"] == "category":
        places = {value: min(place, TOP) for place, value in enumerate(bins["values"])}
        numbers = np.array([places.get(value, TOP + 1) for value in measured.tolist()])
        return np.bincount(numbers, minlength=TOP + 2)
    last = len(bins["borders"]) + 1
    numbers = np.where(np.isnan(measured), last, np.searchsorted(bins["borders"], measured))
    return np.bincount(numbers, minlength=last + 1)


class Drift:
    """Counts rows that come in by the bins of the training split."""

    def __init__(self, known: str, decoder: Callable[..., Any] | None = None) -> None:
        """known: of `trained_on`. decoder: `stages.data.decode.Decoder`, for encoded images."""
        self._decoder = decoder
        self._bins: dict[str, Bins] = json.loads(known)
        self._counts: dict[str, np.ndarray] = {}
        self.rows = 0

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the table by the names of features."""
        return {name: bins["column"] for name, bins in self._bins.items()}

    def add(self, columns: Mapping[str, Any]) -> None:
        """Counts rows, evenly spread ones of many. columns: by the names of features; others are not counted."""
        for name, bins in self._bins.items():
            if name in columns and columns[name].shape[0]:
                self._count(name, _measured(bins, columns[name]))

    def _count(self, name: str, measured: np.ndarray) -> None:
        self._counts[name] = self._counts.get(name, 0) + _counts(self._bins[name], measured)
        self.rows = max(self.rows, int(self._counts[name].sum()))

    def add_encoded(self, images: Sequence[bytes]) -> None:
        """Counts encoded images as training decodes them; those that cannot be decoded are not counted."""
        for name, bins in self._bins.items():
            if self._decoder and "resize" in bins and self.rows < ROWS:  # which models of earlier versions lack
                decoded = self._decoder(tuple(bins["shape"]), bins["resize"])(images)
                self._count(name, np.array([one.mean() / 255 for one in decoded if isinstance(one, np.ndarray)]))

    def moved(self) -> dict[str, float]:
        """Returns the columns that have moved, the farthest first, with their indices."""
        found = {
            self._bins[name]["column"]: _index(np.array(self._bins[name]["shares"]), counts)
            for name, counts in self._counts.items()
            if counts.sum() >= LEAST
        }
        return {name: value for name, value in sorted(found.items(), key=lambda one: -one[1]) if value > MOVED}

    def sentences(self, what: str) -> list[str]:
        """Returns a line that names the columns that have moved, where there are any. what: the rows."""
        moved = [f"{name} {value:.2f}" for name, value in self.moved().items()]
        more = f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
        shown = f"{', '.join(moved[:SHOWN])}{more}"
        return [f"{what} differ from the training data in {shown} (population stability index)"] if moved else []


def _index(shares: np.ndarray, counts: np.ndarray) -> float:
    now = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))  # an empty bin is no reason for an infinite index
    before = (shares * ROWS + 0.5) / (ROWS + 0.5 * len(shares))
    return float(np.sum((now - before) * np.log(now / before)))
