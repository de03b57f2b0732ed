"""Predictions of two models on the same examples, compared."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.errors import UserError
from stages.evaluation.paired_tests import AccuracyDifference, accuracy_difference, points
from stages.evaluation.predictions import NAME, read_predictions
from stages.evaluation.test_set import EXAMPLES, PIXELS, facts_of, is_same_test_set
from stages.results import Split
from stages.safe_places import safe_place
from stages.settings.places import regular_file

SETTING = "evaluate.against"

CLASSES = "class_names"


@dataclass(frozen=True)
class Against:
    """A model compared with another one, in the folder `other`.

    agreement: fraction of the examples of which both predict the same class. largest_difference, mean_difference: of an
    example's probabilities, by the class whose differ most: the largest of all examples, and their mean.
    accuracy: this model's minus the other's.
    """

    other: str
    agreement: float
    largest_difference: float
    mean_difference: float
    accuracy: AccuracyDifference
    confidence: float

    @property
    def sentence(self) -> str:
        accuracy = self.accuracy
        doubt = "" if accuracy.excludes_zero else ", not distinguishable from zero by these examples"
        return (
            f"against {self.other}: accuracy {self.accuracy_in_points}{doubt}, "
            f"McNemar's p {accuracy.p:.2g}; {100 * self.agreement:.1f} % of {accuracy.examples:,} predictions agree; "
            f"an example's probabilities differ by {self.mean_difference:.2g} on average, "
            f"{self.largest_difference:.2g} at most"
        )

    @property
    def accuracy_in_points(self) -> str:
        """The difference in accuracy with its interval."""
        accuracy = self.accuracy
        difference, low, high = map(points, (accuracy.difference, accuracy.low, accuracy.high))
        return f"{difference} points ({100 * self.confidence:g} %: {low} to {high})"

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "against/agreement": self.agreement,
            "against/largest_difference": self.largest_difference,
            "against/mean_difference": self.mean_difference,
            "against/accuracy_difference": self.accuracy.difference,
            "against/accuracy_difference_low": self.accuracy.low,
            "against/accuracy_difference_high": self.accuracy.high,
            "against/mcnemar_p": self.accuracy.p,
        }

    @property
    def facts(self) -> dict[str, Any]:
        return asdict(self)


def compare_predictions(path: Path, folder: Path, confidence: float) -> Against:
    """Compares the predictions at `path` with those in `folder`, of the same examples in the same order."""
    ours, theirs = read_predictions(path), read_predictions(folder / NAME)
    largest = np.zeros(len(ours), np.float32)
    for row, other in zip(ours.probabilities, theirs.probabilities, strict=True):
        np.maximum(largest, np.abs(row - other), out=largest)
        safe_place()
    accuracy = accuracy_difference(theirs.correct[np.newaxis], ours.correct[np.newaxis], True, level=confidence)
    agreement = float(np.mean(ours.predicted == theirs.predicted))
    return Against(folder.name, agreement, float(largest.max()), float(largest.mean()), accuracy, confidence)


def check_other(folder: Path, text: str) -> dict[str, str]:
    """Returns the metadata of the predictions in `folder`.

    Args:
        text: how the user names the run.

    Raises:
        UserError: where it has no predictions, or their file is damaged.
    """
    try:
        return metadata_of(folder)
    except FileNotFoundError as error:
        raise UserError(
            f"{SETTING}={text} has no {NAME}",
            "a run with evaluate.predictions=true",
            f"{SETTING}=<run>",
        ) from error
    except (OSError, KeyError, pa.ArrowException) as error:
        raise UserError(f"{SETTING}={text}: its {NAME} is damaged", "a whole file", f"{SETTING}=<run>") from error


def metadata_of(folder: Path) -> dict[str, str]:
    """Returns the class names, as JSON, and the facts of the test set that the predictions in `folder` are of."""
    metadata = pq.read_schema(regular_file(folder / NAME)).metadata or {}
    return {name: metadata[name.encode()].decode() for name in (CLASSES, EXAMPLES, PIXELS)}


def check_same_examples(other: dict[str, str], text: str, split: Split, class_names: Sequence[str]) -> None:
    """Raises UserError where predictions with this metadata are of other classes or examples than those of `split`."""
    names = json.loads(other[CLASSES])
    if names != list(class_names):
        ours, theirs = (f"{len(part)} ({', '.join(part[:3])}…)" for part in (list(class_names), names))
        raise UserError(f"{SETTING}={text} has other classes: {theirs}, not {ours}", "a run with the same classes")
    if not is_same_test_set({EXAMPLES: other[EXAMPLES], PIXELS: other[PIXELS]}, facts_of(split)):
        raise UserError(f"{SETTING}={text} was tested on other examples", "a run with the same test split")
