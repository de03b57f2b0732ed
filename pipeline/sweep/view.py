"""The view of a sweep in MLflow: a table of its jobs, or of its combinations, the best first."""

from collections.abc import Sequence
from typing import Any

from pipeline.comparison.comparison import Comparison
from pipeline.config.names import split_override
from pipeline.execute.facts import label
from pipeline.runs.summary import is_lower_better
from pipeline.sweep.index import SweepJob


def combination(job: SweepJob) -> str:
    """Return the values of the settings that vary, without the seed, as MLflow shows them."""
    parts = [text for text in job.label.split() if split_override(text)[0] != "seed"]
    return label(parts, job.experiment.choices)


def view_of(comparison: Comparison, jobs: Sequence[SweepJob], is_search: bool) -> dict[str, Any]:
    """Return the view of the jobs, as arguments of `Tracker.view`.

    Its columns are what varies, the metric by which the best is chosen, the metrics of the task, and the speed. If
    there are several seeds, each combination has one row, with the mean of its jobs.
    """
    combinations = list(dict.fromkeys(map(combination, jobs)))
    has_seeds = 1 < len(combinations) < len(jobs) and not is_search
    primary = comparison.primary
    first = comparison.choice.metric or f"val/best_{primary}"
    rates = [row.rate for row in comparison.rows[:1]]
    task = next((run.summary.task for row in comparison.rows for run in row.runs), None)
    return {
        "settings": list(comparison.names) or ["seed"],
        "metrics": list(dict.fromkeys((first, f"val/best_{primary}", f"test/{primary}", *rates))),
        "is_lower_better": is_lower_better(first, task),
        "combinations": combinations if has_seeds else [],
    }
