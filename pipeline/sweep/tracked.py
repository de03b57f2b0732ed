"""The tracked run of a sweep. It is the parent of the jobs' runs, and gets their comparison at the end."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.report import varied, winning
from pipeline.config.names import split_override
from pipeline.console import Console
from pipeline.execute.facts import NOTE, begun_tags, label, sweep_description
from pipeline.exit_codes import DONE
from pipeline.provenance.code_state import CodeState, command
from pipeline.runs.summary import is_lower_better
from pipeline.sweep.jobs import SweepJob
from pipeline.sweep.source import Work
from pipeline.system.environment import imports_kept
from pipeline.tracking.follower import Follower
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker


def open_sweep(work: Work, folder: Path, code: CodeState | None, console: Console, follower: Follower) -> Tracker:
    """Start the tracked run of the sweep in `folder`, or continue it; return its tracker.

    Args:
        work: What the command asked for.
        folder: The folder of the sweep.
        code: The state of the repository.
        console: Prints warnings.
        follower: Sends the records of the sweep and its jobs.

    Raises:
        UserError: If the store cannot be used.
    """
    first = work.experiments[0]
    tags = begun_tags(first.tracking, code) | {"sweep": folder.name, "jobs": str(work.total)}
    if first.debug is not None:
        tags["debug"] = first.debug.kind
    follower.follow(folder, Store(first.tracking, first.outputs))
    with imports_kept():
        for name in ("matplotlib.backends.backend_svg", "matplotlib.figure"):
            import_module(name)  # for the comparison, while the follower imports MLflow
    spec = RunSpec(first.tracking, first.outputs, folder, first.name, work.name, has_jobs=True)
    tracker = Tracker(spec, console.warn, follower.ended)
    tracker.begin(tags)
    return tracker


def record_comparison(
    tracker: Tracker,
    work: Work,
    folder: Path,
    comparison: Comparison,
    jobs: Sequence[SweepJob],
    files: Sequence[Path],
) -> None:
    """Record the comparison of the jobs.

    Args:
        tracker: The tracked run of the sweep.
        work: What the command asked for.
        folder: The folder of the sweep, with the files of the comparison.
        comparison: The comparison of the jobs.
        jobs: The jobs.
        files: The files to record.
    """
    for path in files:
        tracker.artifact(path)
    failed = sum(job.exit_code not in (None, DONE) for job in jobs)
    tracker.params({**varied(comparison), "jobs": len(comparison.runs)})
    tracker.metrics({**winning(comparison), "failed": failed}, step=sum(run.has_finished for run in comparison.runs))
    table, note = (folder / "comparison.md").read_text(), work.experiments[0].tracking.note
    tracker.tags({NOTE: sweep_description(table, command(), note), "failed": str(failed)})
    tracker.view(f"{work.name} ({folder.name})", **view_of(comparison, jobs, work.is_adaptive))


def combination(job: SweepJob) -> str:
    """Return the values of the settings that vary, without the seed, as MLflow shows them."""
    parts = [text for text in job.label.split() if split_override(text)[0] != "seed"]
    return label(parts, job.experiment.choices)


def view_of(comparison: Comparison, jobs: Sequence[SweepJob], is_search: bool) -> dict[str, Any]:
    """Return the view of the jobs in MLflow, as arguments of `Tracker.view`: a table with the best job first.

    Its columns are the settings that vary, the metric that selects the best job, the metrics of the task, and the
    speed. If there are several seeds, each combination has one row, with the mean of its jobs.
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
