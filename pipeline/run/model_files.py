"""Files beside an exported model: its card in Markdown, and an example of its input."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.provenance.code_state import command
from pipeline.redaction import redact
from pipeline.run.facts import chosen_weights, code, data_sizes, escaped
from pipeline.run_folder.summary import Summary
from pipeline.tracking.params import CARD, INPUT_EXAMPLE
from stages.results import Dataset, Exported
from stages.reuse import KNOWN_IMAGES
from stages.storage.atomic import atomic_write

MOST_CLASSES = 50
"""Class names that a card lists."""

WEAKEST = 3
"""Classes whose figures a card names, those with the least F1."""


def write_model_files(summary: Summary, models: Sequence[Exported], dataset: Dataset | None) -> Path:
    """Writes the card and the example to the run's folder `export`; returns the path of the card.

    Args:
        models: as they were exported, in any number of formats.
        dataset: whose first test example is the example; None: there is none.
    """
    folder = Path(summary.folder) / "export"
    folder.mkdir(exist_ok=True)
    if dataset is not None:
        pixels = dataset.test.images[:1].astype(np.float32).tolist()
        atomic_write(folder / INPUT_EXAMPLE, json.dumps(pixels))
    atomic_write(folder / CARD, str(redact(card(summary, models))))
    return folder / CARD


def card(summary: Summary, models: Sequence[Exported]) -> str:
    """Returns the card of a run's model in Markdown: what it is, its data, metrics, training and limits."""
    parts = [f"# {escaped(summary.name)}", _model(summary, models[0]), _data(summary, models[0].class_names)]
    parts += [_metrics(summary), _training(summary), _limits(summary, models[0])]
    return "\n\n".join(parts) + "\n"


def _model(summary: Summary, model: Exported) -> str:
    height, width, channels = model.image_shape
    formats = {**summary.exported, model.format: str(model.path)}
    lines = [
        f"- Classifies images into {len(model.class_names)} classes.",
        f"- Network: {escaped(summary.choices.get('model', 'of its own'))}, precision {summary.precision}.",
        f"- Input: pixels as in its data, {height}×{width}×{channels}, not scaled: the model scales them.",
        "- Output: a probability for each class, in the order below.",
        f"- Formats: {', '.join(sorted(formats))}.",
    ]
    return "\n".join(["## Model", "", *lines])


def _data(summary: Summary, class_names: Sequence[str]) -> str:
    names = ", ".join(escaped(name) for name in class_names[:MOST_CLASSES])
    more = f" and {len(class_names) - MOST_CLASSES} more" if len(class_names) > MOST_CLASSES else ""
    label = "Tested on" if _is_reused(summary) else "Source"
    lines = [f"- {label}: {escaped(summary.choices.get('data', 'of its own'))}."]
    if (data := data_sizes(summary)) is not None:
        lines.append(f"- Examples: {data}.")
    return "\n".join(["## Data", "", *lines, f"- Classes: {names}{more}."])


def _metrics(summary: Summary) -> str:
    tested = {name: value for name, value in summary.metrics.items() if name.startswith("test/")}
    intervals = summary.facts.get("intervals", {})
    tested = {name: value for name, value in tested.items() if not name.endswith(("_low", "_high"))}
    if not tested:
        return "## Metrics\n\nIt was not tested."
    rows = ["| metric | value | low | high |", "| --- | ---: | ---: | ---: |"]
    for name, value in tested.items():
        ends = [f"{end:.4f}" for end in intervals.get(name, ())] or ["", ""]
        rows.append(f"| {name} | {value:.4f} | {' | '.join(ends)} |")
    explained = "Of the test split, which neither training nor the choice of the epoch has seen."
    if known := summary.facts.get(KNOWN_IMAGES):
        explained = f"Too good: the model was trained on {known:,} of these test images."
    elif _is_reused(summary):
        explained = "Of the test split of the data above."
    if intervals:
        explained += (
            f" low, high: {100 * summary.facts['confidence']:g} % interval over the test examples; "
            "it does not show how results vary with the seed."
        )
    return "\n".join(["## Metrics", "", explained, "", *rows])


def _training(summary: Summary) -> str:
    lines = [f"- Command: {code(command())}"]
    if _is_reused(summary):
        lines.append("- Trained by an earlier run, which the tag `reused_run` names, on the data of its card.")
    weights = summary.weights
    if weights:
        ema = ", EMA" if weights.get("ema") else ""
        lines.append(f"- Weights of epoch {weights['epoch']}, {chosen_weights(weights)}{ema}.")
    if summary.replicas:
        lines.append(f"- {summary.replicas} replica(s), {summary.precision}.")
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    lines += [
        f"- Versions: {versions}.",
        f"- Code: {summary.code}; settings: `config.yaml`, identity {summary.identity}.",
    ]
    return "\n".join(["## Training", "", *lines])


def _is_reused(summary: Summary) -> bool:
    """Returns whether the weights are those of an earlier run, and the data may be other."""
    outcome = summary.stages.get("train")
    return outcome is not None and outcome.status == "reused"


def _limits(summary: Summary, model: Exported) -> str:
    lines = [
        "- The metrics hold for images like those of its test split. What it makes of others was not "
        "measured, nor of things that belong to none of its classes: it always answers with one of these.",
    ]
    if (error := summary.metrics.get("test/ece")) is not None:
        lines.append(f"- Its probabilities are off by {error:.4f} on average (expected calibration error).")
    if weakest := _weakest(Path(summary.folder)):
        lines.append(f"- Weakest classes by F1: {', '.join(weakest)}.")
    if (difference := summary.metrics.get("export/max_abs_diff", model.max_abs_diff)) is not None:
        lines.append(f"- The exported model's probabilities differ from the trained one's by {difference:.1e} at most.")
    return "\n".join(["## Limits", "", *lines])


def _weakest(folder: Path) -> list[str]:
    """Returns the classes with the least F1, with their figures, by the table that `evaluate` has written."""
    try:
        with (folder / "test_by_class.csv").open(newline="", encoding="utf-8") as file:
            rows = [(float(row["f1"]), row["class"], row["examples"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError):
        return []
    tested = sorted((f1, name, examples) for f1, name, examples in rows if examples != "0")
    return [f"{escaped(name)} ({f1:.2f}, of {examples} examples)" for f1, name, examples in tested[:WEAKEST]]
