"""Files beside an exported model: its card in Markdown, and an example of its input."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.provenance.code_state import command
from pipeline.redaction import redact
from pipeline.run.facts import code, escaped, run_facts
from pipeline.run_folder.summary import Summary
from pipeline.tracking.params import CARD, INPUT_EXAMPLE
from stages.results import Dataset, Exported
from stages.reuse import KNOWN_IMAGES
from stages.storage.atomic import atomic_write

MOST_CLASSES = 50
"""Class names that a card lists."""


def write_model_files(summary: Summary, models: Sequence[Exported], dataset: Dataset | None) -> Path:
    """Write the card and the example to the run's folder `export`; return the path of the card.

    Args:
        models: as they were exported, in any number of formats.
        dataset: whose first test example is the example; None: there is none.
    """
    folder = Path(summary.folder) / "export"
    folder.mkdir(exist_ok=True)
    if dataset is not None:
        pixels = dataset.test.images[:1].astype(np.float32).tolist()
        atomic_write(folder / INPUT_EXAMPLE, json.dumps(pixels))
    atomic_write(folder / CARD, str(redact(card(summary, models[0]))))
    return folder / CARD


def card(summary: Summary, model: Exported) -> str:
    """Return the card of a run's model in Markdown: what it is, its data, metrics, training and limits."""
    outcome = summary.stages.get("train")
    is_reused = outcome is not None and outcome.status == "reused"
    height, width, channels = model.image_shape
    names = ", ".join(escaped(name) for name in model.class_names[:MOST_CLASSES])
    more = f" and {len(model.class_names) - MOST_CLASSES} more" if len(model.class_names) > MOST_CLASSES else ""
    facts = [f"{label}: {escaped(text)}" for label, text in run_facts(summary) if label not in ("", "folder", "export")]
    difference = summary.metrics.get("export/max_abs_diff", model.max_abs_diff)
    sections = {
        "Model": [
            f"Network: {escaped(summary.choices.get('model', 'of its own'))}, {len(model.class_names)} classes, "
            f"precision {summary.precision}.",
            f"Input: pixels as in its data, {height}×{width}×{channels}, not scaled: the model scales them.",
            f"Output: a probability for each class: {names}{more}.",
            f"Formats: {', '.join(sorted({*summary.exported, model.format}))}.",
            f"Probabilities differ from the trained model's by {difference:.1e} at most.",
        ],
        "Data": [f"{'Tested on' if is_reused else 'Source'}: {escaped(summary.choices.get('data', 'of its own'))}."],
        "Metrics": [],
        "Training": [
            *facts,
            *(["trained by an earlier run, which the tag `reused_run` names"] if is_reused else []),
            f"command: {code(command())}",
            f"versions: {', '.join(f'{name} {version}' for name, version in summary.versions.items())}",
            f"code: {summary.code}; settings: `config.yaml`, identity {summary.identity}",
        ],
        "Limits": [
            "The metrics hold for images like those of its test split. Of others nothing was measured, nor of things "
            "that belong to none of its classes: it always answers with one of these.",
        ],
    }
    parts = [f"# {escaped(summary.name)}"]
    for title, lines in sections.items():
        text = "\n".join(f"- {line}" for line in lines) or _metrics(summary)
        parts.append(f"## {title}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def _metrics(summary: Summary) -> str:
    """Return the table of the test metrics, after what they were measured on."""
    intervals = summary.facts.get("intervals", {})
    explained = "Of the test split, which neither training nor the choice of the epoch has seen."
    if known := summary.facts.get(KNOWN_IMAGES):
        explained = f"Too good: the model was trained on {known:,} of these test images."
    if intervals:
        explained += f" low, high: {100 * summary.facts['confidence']:g} % interval over the test examples."
    rows = [explained, "", "| metric | value | low | high |", "| --- | ---: | ---: | ---: |"]
    for name, value in summary.metrics.items():
        if name.startswith("test/") and not name.endswith(("_low", "_high")):
            ends = [f"{end:.4f}" for end in intervals.get(name, ())] or ["", ""]
            rows.append(f"| {name} | {value:.4f} | {' | '.join(ends)} |")
    return "\n".join(rows)
