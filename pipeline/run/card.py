"""The card of an exported model, in the form of the Hugging Face Hub: its use, its data, how good it is, its origin."""

import csv
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.paths import CHECKOUT
from pipeline.provenance.code_state import command, git
from pipeline.run.facts import code, data_sizes, escaped, run_facts
from pipeline.run_folder.summary import Summary
from stages.reuse import KNOWN_IMAGES

if TYPE_CHECKING:
    from stages.results import Dataset, Exported

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")

MOST_NAMES = 50
"""Names of classes, labels or targets that a card lists."""

MOST_SLICES = 20
"""Slices of the test split that a card shows, the worst first."""

DATA_LICENSES = {
    "digits": "CC BY 4.0",  # UCI Machine Learning Repository, 80
    "fashion_mnist": "MIT",  # github.com/zalandoresearch/fashion-mnist
    "mnist": "CC BY-SA 3.0",  # keras.io/api/datasets/mnist
    "tf_flowers": "CC BY 2.0",  # LICENSE.txt of the set
}
"""Licences of data sets, by their names."""

HUB_TASKS = ("image-classification", "text-classification", "tabular-classification", "tabular-regression")
"""Tasks of the Hub, as far as models of this project do them."""

HUB_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "macro_precision": "precision",
    "macro_recall": "recall",
    "roc_auc": "roc_auc",
    "exact_match": "exact_match",
    "rmse": "rmse",
    "mae": "mae",
    "r2": "r_squared",
}
"""Metrics of the Hub by those of this project, without `test/`."""


def model_card(summary: Summary, model: "Exported", data: "Dataset | None" = None) -> str:
    """Return the card of a run's model, of the data set that it was trained on, in Markdown."""
    import jinja2

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    known, name = summary.facts.get(KNOWN_IMAGES), data.name if data is not None else "its data"
    (example, form), answers = _inputs(model), _answers(summary, model)
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        front=yaml.safe_dump(_front_matter(summary, model, name), sort_keys=False, allow_unicode=True),
        name=escaped(summary.name),
        use=f"Use it for {example} like those of {escaped(name)}: it answers with {answers}.",
        input=form,
        output=f"{answers}: {_names(model)}",
        data={
            "name": escaped(name),
            "fingerprint": data.fingerprint if data is not None else "",
            "license": DATA_LICENSES.get(name),
        },
        sizes=data_sizes(summary) or "sizes not recorded",
        known=f"{known:,}" if known else "",
        confidence=f"{100 * summary.facts.get('confidence', 0.95):g} %",
        scores=_scores(summary),
        slices=_slices(Path(summary.folder)),
        formats=_formats(summary),
        training="\n".join(f"- {label}: {text}" for label, text in _training(summary).items()),
    )


def _front_matter(summary: Summary, model: "Exported", data: str) -> dict[str, Any]:
    """Return what the Hub reads: `library_name`, `tags`, `license`, `metrics` and `model-index`."""
    task = _task(summary, model)
    metrics = [
        {"type": HUB_METRICS[name], "name": f"test/{name}", "value": round(summary.metrics[f"test/{name}"], 6)}
        for name in HUB_METRICS
        if f"test/{name}" in summary.metrics
    ]
    front: dict[str, Any] = {"library_name": "keras", "tags": ["keras", "tensorflow", task]}
    if task in HUB_TASKS:
        front["pipeline_tag"] = task
    front["license"] = model.license or "unknown"
    if metrics:
        dataset = {"name": data, "type": data, "split": "test"}
        result = {"task": {"type": task}, "dataset": dataset, "metrics": metrics}
        front["metrics"] = [metric["type"] for metric in metrics]
        front["model-index"] = [{"name": summary.name, "results": [result]}]
    return front


def _task(summary: Summary, model: "Exported") -> str:
    """Return the task by the Hub's words."""
    facts = summary.facts.get("data", {})
    only_texts = "text_features" in facts and len(model.columns) == facts["text_features"]
    kind = "image" if not model.columns else "text" if only_texts else "tabular"
    return f"{kind}-{'regression' if 'targets' in facts else 'classification'}"


def _inputs(model: "Exported") -> tuple[str, str]:
    """Return an example of what the model takes, and its form."""
    if not model.columns:
        return "an image", f"pixels as in its data, {'×'.join(map(str, model.image_shape))}, not scaled"
    columns = ", ".join(f"{code(name)} ({dtype})" for name, dtype in model.columns.items())
    return "a row of a table", f"columns as in its data, missing numbers as NaN, missing texts empty: {columns}"


def _answers(summary: Summary, model: "Exported") -> str:
    """Return what the model answers, without the names."""
    facts, count = summary.facts.get("data", {}), len(model.class_names)
    if (named := next((word for word in ("classes", "labels") if word in facts), None)) is not None:
        return f"a probability for each of {count} {named}"
    return f"{'a number' if count == 1 else f'{count} numbers'} in the units of its data"


def _names(model: "Exported") -> str:
    names = ", ".join(map(escaped, model.class_names[:MOST_NAMES]))
    rest = len(model.class_names) - MOST_NAMES
    return f"{names} and {rest} more" if rest > 0 else names


def _scores(summary: Summary) -> list[dict[str, str]]:
    """Return the test metrics with their intervals, and those of the baseline."""
    intervals = summary.facts.get("intervals", {})
    return [
        {"name": escaped(name), "value": _number(value), "interval": " to ".join(map(_number, intervals.get(name, ())))}
        for name, value in summary.metrics.items()
        if name.startswith(("test/", "baseline/")) and not name.endswith(("_low", "_high", "_seconds"))
    ]


def _slices(folder: Path) -> list[list[str]]:
    """Return the header and the worst rows of the metrics of slices, their first columns; else nothing."""
    path = folder / "test_slices.csv"
    rows = list(csv.reader(path.read_text().splitlines())) if path.is_file() else []
    return [[_cell(text) for text in row[:6]] for row in rows[: 1 + MOST_SLICES]]


def _cell(text: str) -> str:
    return f"{float(text):.4f}" if re.fullmatch(r"-?\d+\.\d+", text) else escaped(text)


def _number(value: float) -> str:
    """Return a number with four decimals, or with two where it is no rate."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"


def _formats(summary: Summary) -> list[dict[str, str]]:
    """Return size, latency and difference of each file that was reloaded."""
    rows = []
    for name in summary.exported:
        size, milliseconds, difference = (
            summary.metrics.get(f"export/{name}/{figure}") for figure in ("size_mib", "milliseconds", "max_abs_diff")
        )
        if size is not None and milliseconds is not None and difference is not None:
            figures = {"size": f"{size:.2f}", "milliseconds": f"{milliseconds:.2f}", "difference": f"{difference:.1e}"}
            rows.append({"name": name, **figures})
    return rows


def _training(summary: Summary) -> Mapping[str, str]:
    """Return who trained it, when, with what; the author is git's, and left out where git knows none."""
    folder = CHECKOUT or Path.cwd()
    author = (git(folder, "config", "user.name") or "").strip()
    commit = (git(folder, "rev-parse", "HEAD") or "").strip()
    facts = dict(run_facts(summary))
    rows = {
        "date": datetime.now(UTC).date().isoformat(),
        "author": escaped(author),
        "command": code(command()),
        "commit": f"{code(commit)}{', with changes' if git(folder, 'status', '--porcelain') else ''}" if commit else "",
        "epoch": escaped(facts.get("best epoch", "")),
        "speed": escaped(facts.get("speed", "")),
        "versions": ", ".join(f"{name} {version}" for name, version in summary.versions.items()),
        "run": f"{code(summary.run_id or summary.folder)}; its settings are `config.yaml`",
    }
    return {label: text for label, text in rows.items() if text}
