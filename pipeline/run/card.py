"""The card of an exported model, in the form of the Hugging Face Hub: its use, its data, how good it is, its origin."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.provenance.code_state import command
from pipeline.run.facts import code, data_sizes, escaped, run_facts
from pipeline.run_folder.summary import Summary, scored
from stages.reuse import KNOWN_IMAGES

if TYPE_CHECKING:
    from stages.results import Dataset, Exported

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")

MOST_NAMES = 50
"""Names of classes, labels or targets that a card lists."""

NO_SCORES = ("_low", "_high", "_seconds")
"""Ends of the names of metrics of the test split that are no scores."""


def model_card(summary: Summary, model: "Exported", data: "Dataset | None" = None) -> str:
    """Return the card of a run's model, of the data set that it was trained on, in Markdown."""
    import jinja2

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["escaped"] = escaped
    scores = {
        name: (scored(name, value), [scored(name, end) for end in summary.facts.get("intervals", {}).get(name, ())])
        for name, value in summary.metrics.items()
        if name.startswith(("test/", "baseline/")) and not name.endswith(NO_SCORES)
    }
    example, form = _inputs(model)
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        summary=summary,
        model=model,
        data=data,
        task=_task(summary, model),
        example=example,
        form=form,
        answers=_answers(summary, model),
        names=model.class_names[:MOST_NAMES],
        sizes=data_sizes(summary) or "sizes not recorded",
        known=summary.facts.get(KNOWN_IMAGES),
        confidence=summary.facts.get("confidence", 0.95),
        scores=scores,
        facts=dict(run_facts(summary)),
        date=datetime.now(UTC).date(),
        command=command(),
        code=code,
    )


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
