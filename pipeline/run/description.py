"""Descriptions of runs and sweeps in Markdown, for the top of their pages in MLflow."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.paths import shorter
from pipeline.run_folder.summary import Summary
from pipeline.tracking.params import model_name

LONGEST = 4000
"""Characters of a description: MLflow's limit is that of a tag."""

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""

SPLITS = ("train", "val", "test")


def of_begun(command: str, note: str | None) -> str:
    """Returns the description of a run or a sweep that has begun."""
    return _joined([note or "", f"Command: {code(command)}"])


def of_run(summary: Summary, command: str, note: str | None) -> str:
    """Returns the description of a run that has ended: its result, its command, its model and what was compared.

    Args:
        note: the user's own Markdown, which comes first.
    """
    metrics = summary.metrics
    lines = [f"- Command: {code(command)}"]
    if (data := sizes(summary.facts.get("data", {}))) is not None:
        lines.append(f"- Data: {data}")
    if summary.replicas:
        rate = metrics.get("train/images_per_second")
        speed = f"{rate:,.0f} images/s, " if rate else ""
        devices = f"{summary.replicas} replica(s), {summary.precision}"
        lines.append(f"- Speed: {speed}{devices}, {summary.seconds:.1f} s in all")
    for kind, path in summary.exported.items():
        lines.append(f"- Model: {code(shorter(Path(path)))} ({kind})")
        if summary.run_id and kind == "saved_model":
            load = f'mlflow.pyfunc.load_model("runs:/{summary.run_id}/{model_name(summary.name)}")'
            lines.append(f"- In Python: {code(load)}")
    difference = metrics.get("export/max_abs_diff")
    if difference is not None:
        lines.append(f"- Compared: the exported model's predictions with the trained one's: {difference:.1e} at most")
    lines.append(f"- Folder: {code(shorter(Path(summary.folder)))}")
    return _joined([note or "", _result(summary), _scores(metrics), "\n".join(lines)])


def of_sweep(table: str, command: str, note: str | None) -> str:
    """Returns the description of a sweep that has ended.

    Args:
        table: the comparison of its jobs in Markdown; cut at a line's end where it is too long. Its title is left out:
            MLflow folds a description after three lines.
    """
    own = note or ""
    last = f"Command: {code(command)}"
    kept = re.sub(r"\A# .*\n+", "", table).strip()
    room = LONGEST - len(own) - len(last)
    if len(kept) > room:
        kept = f"{kept[:room].rpartition(chr(10))[0]}\n\n… the whole is comparison.md"
    return _joined([own, kept, last])


def sizes(facts: Mapping[str, int]) -> str | None:
    """Returns the sizes of a data set by what a run has summarized of it; None where that is nothing."""
    if not facts:
        return None
    examples = ", ".join(f"{facts[f'{split}_examples']:,} {split}" for split in SPLITS)
    return f"{examples}; {facts['classes']} classes; {facts['height']}×{facts['width']}×{facts['channels']}"


def code(text: str) -> str:
    """Returns `text` as code in Markdown, whatever backticks it has."""
    line = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def escaped(text: str) -> str:
    """Returns `text` as Markdown shows it unchanged."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~])", r"\\\1", " ".join(text.split()))


def _result(summary: Summary) -> str:
    if summary.error:
        return f"**{summary.status} in {summary.failed_stage or 'recording'}**: {escaped(summary.error)}"
    weights = summary.weights
    if not weights:
        return f"**{summary.status}**"
    accuracy = summary.metrics.get("test/accuracy")
    scored = f", test accuracy {accuracy:.4f}" if accuracy is not None else ""
    chosen = f"{weights['selection']} by {weights['monitor']}" if weights["selection"] == "best" else "the last one"
    return f"**{summary.status}{scored}**, with the weights of epoch {weights['epoch']} ({chosen})"


def _scores(metrics: Mapping[str, float]) -> str:
    """Returns a table of loss and accuracy; of training and validation those of the best epoch."""
    rows: list[Sequence[str]] = []
    for split in SPLITS:
        names = [f"{split}/{name}" if split == "test" else f"{split}/best_{name}" for name in ("accuracy", "loss")]
        if any(name in metrics for name in names):
            rows.append([split, *(f"{metrics[name]:.4f}" if name in metrics else "" for name in names)])
    if not rows:
        return ""
    table = [["", "accuracy", "loss"], ["---", "---:", "---:"], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part)
