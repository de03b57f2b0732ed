"""Files of an evaluation: its metrics as CSV and Markdown, a table of the classes, and plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stages.evaluation.estimates import parts_of
from stages.evaluation.metrics import bins_of
from stages.evaluation.predictions import Predicted
from stages.plots.charts import drawable, plot_reliability
from stages.plots.galleries import plot_batch
from stages.results import Dataset
from stages.storage.atomic import atomic_write, write_csv
from stages.tables import markdown

METRICS = "test_metrics.md"
METRICS_TABLE = "test_metrics.csv"


@dataclass(frozen=True)
class Section:
    """A table beside the metrics.

    name: of its file. note: what it is, in a sentence. rows: of texts and numbers, the header first.
    """

    name: str
    title: str
    note: str
    rows: Sequence[Sequence[object]]

    @property
    def shown(self) -> list[list[str]]:
        """The rows as texts."""
        return [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Metrics of the test split, with their intervals.

    values: by their full names; intervals: their lower and upper ends, as far as there are intervals.
    notes: sentences on what the numbers are, and on what is missing. sections: tables beside the metrics.
    tables: further files, by name; rows of each, its header first. number: format of a value in Markdown.
    """

    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    notes: Sequence[str]
    sections: Sequence[Section] = ()
    tables: Mapping[str, Sequence[Sequence[object]]] = field(default_factory=dict)
    number: str = ".6g"

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Writes the tables to `folder`; returns their paths."""
        rows = [(name, value, *self.intervals.get(name, ("", ""))) for name, value in self.values.items()]
        write_csv(folder / METRICS_TABLE, [("metric", "value", "low", "high"), *rows])
        cells = [
            (name, *(part if isinstance(part, str) else format(part, self.number) for part in parts))
            for name, *parts in rows
        ]
        text = f"# Test metrics\n\n{markdown([('metric', 'value', 'low', 'high'), *cells])}\n"
        text += "".join(f"- {note}\n" for note in self.notes)
        text += "".join(f"\n## {part.title}\n\n{markdown(part.shown)}\n- {part.note}\n" for part in self.sections)
        atomic_write(folder / METRICS, text)
        tables = {folder / f"test_{name}.csv": rows for name, rows in self.tables.items()}
        tables |= {folder / f"test_{part.name}.csv": part.rows for part in self.sections}
        for path, table in tables.items():
            write_csv(path, table)
        return folder / METRICS, folder / METRICS_TABLE, *tables


def draw_reliability(predicted: Predicted, bins: int, error: float, folder: Path) -> Path:
    """Draws the reliability diagram; returns its path."""
    places = bins_of(predicted, bins)
    counts = np.bincount(places, minlength=bins)
    parts = parts_of(len(predicted), predicted.weights)
    sums = [np.bincount(places, parts * values, bins) for values in (predicted.correct, predicted.of_predicted)]
    total = np.bincount(places, parts, bins)
    accuracy, confidence = (part / np.where(total > 0, total, 1) for part in sums)
    return plot_reliability(counts, accuracy, confidence, error, folder / "plots" / "reliability.png")


def draw_mistakes(predicted: Predicted, dataset: Dataset, most: int, folder: Path) -> Path | None:
    """Draws the mistakes whose label got the least probability, the hardest first; returns the path, None without any.

    A plot of an earlier evaluation is removed.
    """
    path = folder / "plots" / "mistakes.png"
    path.unlink(missing_ok=True)
    images = dataset.images
    wrong = np.flatnonzero(~predicted.correct)
    hardest = wrong[np.argsort(predicted.of_label[wrong], kind="stable")][:most]
    if not len(hardest) or images is None:
        return None
    names = drawable(dataset.task.names)
    titles = [
        f"{names[predicted.labels[row]]} ({predicted.of_label[row]:.0%}) → "
        f"{names[predicted.predicted[row]]} ({predicted.of_predicted[row]:.0%})"
        for row in hardest
    ]
    title = f"{len(hardest)} of {len(wrong):,} mistakes: label → predicted class, with their probabilities"
    return plot_batch(dataset.test.images[hardest], titles, images.facts["range"], title, path)
