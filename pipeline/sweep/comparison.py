"""The jobs of a sweep side by side: as a table, as files and as a plot."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pipeline.run.job import STOPPED
from pipeline.run.rebuild import read_run
from pipeline.run.summary import NAME
from pipeline.sweep.index import INDEX, read_index
from pipeline.system.signals import TIMED_OUT
from stages.errors import UserError

METRICS = {
    "train/weights_epoch": ".0f",
    "val/best_accuracy": ".4f",
    "test/accuracy": ".4f",
    "test/loss": ".4f",
    "train/images_per_second": ",.0f",
    "train/features_per_second": ",.0f",
    "export/max_abs_diff": ".1e",
}
"""The metrics that are compared, and their format."""


EPOCHS = (
    "test/… are of the weights of epoch train/weights_epoch (the best one, or with train.restore_best=false the last); "
    "val/best_accuracy is of the best epoch"
)


RATES = ("train/images_per_second", "train/features_per_second")
"""Of what training counts: features are what a frozen backbone has made of images. A job with both has two phases."""


@dataclass(frozen=True)
class ComparedJob:
    """status: that of the run; or `REFUSED` (its configuration), `DIED` (its process was killed), `NOT RUN`.

    settings: the overrides in which the jobs differ; metrics: the values of METRICS that the job has.
    """

    number: int
    status: str
    settings: dict[str, str]
    metrics: dict[str, float]
    seconds: float
    error: str | None


@dataclass(frozen=True)
class Comparison:
    """The jobs of one sweep."""

    name: str
    jobs: tuple[ComparedJob, ...]

    @property
    def best(self) -> ComparedJob | None:
        """The job with the highest test accuracy; of equals the faster."""
        done = [job for job in self.jobs if job.status == "FINISHED" and "test/accuracy" in job.metrics]
        return max(done, key=lambda job: (job.metrics["test/accuracy"], _speed(job)), default=None)

    def columns(self) -> tuple[list[str], list[str]]:
        """Returns the names of the settings and of the metrics that any job has."""
        settings = list(dict.fromkeys(name for job in self.jobs for name in job.settings))
        return settings, [name for name in METRICS if any(name in job.metrics for job in self.jobs)]

    def rows(self) -> list[list[str]]:
        """Returns the table as text, its header first."""
        settings, metrics = self.columns()
        rows = [["job", *settings, "status", *metrics, "seconds"]]
        for job in self.jobs:
            values = [_text(job.metrics.get(name), METRICS[name]) for name in metrics]
            chosen = [job.settings.get(name, "") for name in settings]
            mark = " *" if job is self.best and len(self.jobs) > 1 else ""
            rows.append([f"{job.number}{mark}", *chosen, job.status, *values, f"{job.seconds:.1f}"])
        return rows

    def table(self) -> Table:
        caption = EPOCHS if "train/weights_epoch" in self.columns()[1] else None
        table = Table(title=f"sweep {self.name}", title_justify="left", caption=caption, caption_justify="left")
        header, *rows = self.rows()
        for name in header:
            table.add_column(name, justify="right" if name in METRICS or name == "seconds" else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        return table


def compare(folder: Path) -> Comparison:
    """Reads a sweep's folder.

    Raises:
        UserError: where it holds no sweep.
    """
    index = folder / INDEX
    if not index.is_file():
        raise UserError(
            f"{folder} holds no sweep",
            "a folder under outputs/sweeps",
            "python -m pipeline -m strategy=one_device,mirrored",
        )
    _, listed = read_index(folder)
    overrides_of_jobs = [
        {name: value for name, _, value in (text.partition("=") for text in job["overrides"])} for job in listed
    ]
    names = list(dict.fromkeys(name for overrides in overrides_of_jobs for name in overrides))
    differing = [name for name in names if len({overrides.get(name) for overrides in overrides_of_jobs}) > 1]
    jobs = []
    for number, (job, overrides) in enumerate(zip(listed, overrides_of_jobs, strict=True), 1):
        summary = _summary(folder / job["folder"])
        metrics = {name: value for name in METRICS if (value := summary.get("metrics", {}).get(name)) is not None}
        settings = {name: overrides[name] for name in differing if name in overrides}
        status = _status(summary.get("status"), job.get("exit_code"))
        jobs.append(ComparedJob(number, status, settings, metrics, summary.get("seconds", 0.0), summary.get("error")))
    return Comparison(folder.name, tuple(jobs))


def latest(outputs: Path) -> Path:
    """Returns the folder of the last sweep under `outputs`.

    Raises:
        UserError: where there is none.
    """
    folders = sorted(path.parent for path in (outputs / "sweeps").glob(f"*/{INDEX}"))
    if not folders:
        raise UserError(
            f"there is no sweep in {outputs / 'sweeps'}",
            "a sweep that has been run",
            "python -m pipeline -m strategy=one_device,mirrored precision=float32,mixed",
        )
    return folders[-1]


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes `comparison.md`, `.csv` and, where there is something to draw, `.png`; returns their paths."""
    rows = comparison.rows()
    markdown, table = folder / "comparison.md", folder / "comparison.csv"
    lines = [f"# Sweep {comparison.name}", "", _markdown_row(rows[0]), _markdown_row(["---"] * len(rows[0]))]
    lines += [_markdown_row(row) for row in rows[1:]]
    if comparison.best and len(comparison.jobs) > 1:
        chosen = " ".join(f"{name}={value}" for name, value in comparison.best.settings.items())
        lines += ["", f"\\* best test accuracy: job {comparison.best.number}, `{chosen}`"]
    if "train/weights_epoch" in comparison.columns()[1]:
        lines += ["", EPOCHS]
    lines += ["", *(f"- job {job.number} {job.status}: {job.error}" for job in comparison.jobs if job.error)]
    markdown.write_text("\n".join(lines).rstrip() + "\n")
    with table.open("w", newline="") as file:
        settings, metrics = comparison.columns()
        writer = csv.writer(file)
        writer.writerow(["job", *settings, "status", *metrics, "seconds"])
        for job in comparison.jobs:
            chosen_values = [job.settings.get(name, "") for name in settings]
            values = [job.metrics.get(name, "") for name in metrics]
            writer.writerow([job.number, *chosen_values, job.status, *values, round(job.seconds, 3)])
    for rate in RATES:
        drawn = [job for job in comparison.jobs if {"test/accuracy", rate} <= job.metrics.keys()]
        if drawn:
            return [markdown, table, _draw(drawn, rate, folder / "comparison.png")]
    return [markdown, table]


def _parts(override: str) -> tuple[str, str]:
    name, _, value = override.partition("=")
    return name, value


def _status(status: str | None, exit_code: int | None) -> str:
    """Returns the status of a job: that of its run, unless its process has ended without one."""
    if status is not None and (status != "RUNNING" or exit_code is None):
        return status
    if exit_code in (TIMED_OUT, *STOPPED):
        return "KILLED"
    return {None: "NOT RUN", 2: "REFUSED"}.get(exit_code, "DIED")


def _summary(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / NAME).read_text()))
    except (OSError, ValueError, TypeError):
        rebuilt = read_run(folder, lambda line: None)
        return asdict(rebuilt) if rebuilt is not None else {}


def _speed(job: ComparedJob) -> float:
    return next((job.metrics[rate] for rate in RATES if rate in job.metrics), 0.0)


def _text(value: float | None, style: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, style)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _draw(jobs: Sequence[ComparedJob], rate: str, path: Path) -> Path:
    """Draws test accuracy and speed of each job; `rate`: the metric that is its speed."""
    from matplotlib.figure import Figure  # half a second to import

    figure = Figure(figsize=(10, 1.2 + 0.4 * len(jobs)), layout="constrained")
    labels = [f"{job.number}  " + " ".join(job.settings.values()) for job in jobs]
    accuracy, speed = figure.subplots(1, 2, sharey=True)
    name = "test/accuracy"
    values = [job.metrics[name] for job in jobs]
    accuracy.plot(values, labels, "o")  # points, not bars: the axis need not begin at 0
    for label, value in zip(labels, values, strict=True):
        accuracy.annotate(format(value, METRICS[name]), (value, label), (6, 4), textcoords="offset points")
    accuracy.set_xlabel(name)
    accuracy.margins(x=0.3, y=0.2)
    accuracy.grid(axis="x", alpha=0.3)
    accuracy.locator_params(axis="x", nbins=5)
    name = rate
    bars = speed.barh(labels, [job.metrics[name] for job in jobs])
    speed.bar_label(bars, [format(job.metrics[name], METRICS[name]) for job in jobs], padding=3)
    speed.set_xlabel(name)
    speed.margins(x=0.2)
    accuracy.invert_yaxis()
    figure.savefig(path, dpi=120)
    return path
