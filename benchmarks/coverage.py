"""`python -m benchmarks.coverage [docs/reference/metrics.md]`: how often each interval of a test holds the truth.

Predictions are drawn from populations of 200,000, whose metrics are the truth, and given to the project's own
functions. Two minutes.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.page import markdown, put
from stages.evaluation.classes import Predicted, estimates_of, intervals_of

POPULATIONS = {
    "2 classes, 79 : 21": (2, 1.5, 1.0, 0.6),
    "3 classes": (3, 1.5, 1.0, 0.0),
    "10, too sure": (10, 2.0, 2.0, 0.0),
    "10, calibrated": (10, 3.0, 1.0, 0.0),
    "10, few mistakes": (10, 5.0, 1.0, 0.0),
}
"""Classes, by how much the label's logit is larger, by what factor the model is too sure, and how skewed labels are."""

SIZES = (20, 100, 400, 2000)


def population(classes: int, gap: float, sureness: float, skew: float, size: int = 200_000) -> tuple[np.ndarray, ...]:
    """Return labels, int32 [size], and what a model predicts, float32 [size, classes], calibrated but for sureness."""
    random = np.random.default_rng(0)
    centers = np.where(random.random(size) < skew, 0, random.integers(classes, size=size))
    logits = random.normal(size=(size, classes))
    logits[np.arange(size), centers] += gap
    truth, values = (_softmax(1.5 * logits * factor) for factor in (1.0, sureness))
    labels = (truth.cumsum(axis=1) > random.random((size, 1))).argmax(axis=1)
    return labels.astype(np.int32), values.astype(np.float32)


def predictions(labels: np.ndarray, values: np.ndarray) -> Predicted:
    """Return the predictions as an evaluation reads them from its file."""
    return Predicted(labels, values.argmax(axis=1).astype(np.int32), np.ascontiguousarray(values.T))


def coverage(name: str, examples: int, repeats: int, confidence: float = 0.95) -> dict[str, tuple[float, float]]:
    """Return for each metric how often its interval holds the truth, and how often it has one."""
    labels, values = population(*POPULATIONS[name])
    truth = _values(predictions(labels, values))
    random = np.random.default_rng(1)
    held: dict[str, list[bool]] = defaultdict(list)
    for _ in range(repeats):
        rows = random.integers(len(labels), size=examples)
        drawn = predictions(labels[rows], values[rows])
        for metric, (low, high) in intervals_of(drawn, confidence).items():
            held[metric].append(low <= truth[metric] <= high)
    return {metric: (float(np.mean(found)), len(found) / repeats) for metric, found in held.items()}


def table(repeats: int) -> str:
    """Return coverage in percent by metric and number of examples: the least and the largest of the populations."""
    cells: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name in POPULATIONS:
        for examples in SIZES:
            for metric, (held, printed) in coverage(name, examples, repeats).items():
                if printed >= 0.1:  # of fewer samples nothing can be told
                    cells[metric][examples].append(100 * held)
    rows = [
        (metric, *(f"{min(by[size]):.0f} to {max(by[size]):.0f}" if by[size] else "none" for size in SIZES))
        for metric, by in cells.items()
    ]
    return markdown(["%, of", *(f"{size:,} examples" for size in SIZES)], rows)


def _values(predicted: Predicted) -> dict[str, float]:
    fractions = {"accuracy": predicted.correct, "top5_accuracy": predicted.is_in_top}
    found = {name: float(is_hit.mean()) for name, is_hit in fractions.items()}
    return found | {name: value for name, (value, _) in estimates_of(predicted).items()}


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def main() -> None:
    """Print the table, or write it into the page that is named."""
    made = table(repeats=400)
    if len(sys.argv) > 1:
        put(Path(sys.argv[1]), "coverage", made)
    else:
        print(made)


if __name__ == "__main__":
    main()
