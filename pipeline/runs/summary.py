"""`summary.json`: the results of a run in machine-readable form."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.records import convert, convert_parts, read_json
from pipeline.redaction import redact
from pipeline.runs.facts import Facts, TaskFacts, plain
from stages.errors import UserError, printable
from stages.storage.atomic import atomic_write

NAME = "summary.json"

LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "perplexity", "seconds", "diff", "mib", "bytes")
"""Endings of the names of metrics for which lower is better: losses, errors, times, sizes."""

STATUSES = ("RUNNING", "FINISHED", "FAILED", "KILLED")

WEIGHTS = {"epoch": int | None, "monitor": str | None}

UNITS = ("images", "features", "examples")
"""Units that training speed may count: `features` are those of a frozen backbone, `examples` are rows or texts."""


def best_metric(monitor: str) -> str | None:
    """Return the metric of the best epoch for a value of `train.monitor`, such as `val/best_loss` for `val_loss`.

    It is None for a metric of the training split.
    """
    return monitor.replace("val_", "val/best_", 1) if monitor.startswith("val_") else None


def is_lower_better(metric: str, task: TaskFacts | None = None) -> bool:
    """Return whether lower values of a metric are better, according to the task, or else to the metric's name."""
    name = metric.rpartition("/")[2].removeprefix("best_")
    if task and name in task.metrics:
        return name not in task.higher_is_better
    return name.endswith(LOWER_IS_BETTER)


def scored(metric: str, value: float) -> str:
    """Return a score as text: errors have four significant digits, other metrics four decimal places."""
    is_error = is_lower_better(metric) and not metric.endswith("loss")
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}" if is_error else f"{value:.4f}"


@dataclass
class StageOutcome:
    """The outcome of a stage."""

    status: str
    """`ran`, `reused`, `skipped` or `failed`."""
    seconds: float = 0.0
    """Wall time."""


@dataclass
class Summary:
    """The contents of `summary.json`."""

    run_id: str | None
    status: str
    name: str
    folder: Path
    choices: Mapping[str, str | None]
    overrides: list[str] = field(default_factory=list)
    stages: dict[str, StageOutcome] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of each metric. The best epoch has its own names, such as `val/best_loss` next to `val/loss`."""
    resumed_from_step: int | None = None
    identity: str | None = None
    """A digest of the settings that change the result."""
    code: str | None = None
    """A digest of the source code."""
    exported: dict[str, str] = field(default_factory=dict)
    replicas: int | None = None
    precision: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Wall time of the last command of the run, or of the job in a sweep. It is the sum of `start_seconds`, the seconds
    of the stages, and `recording_seconds`."""
    error: str | None = None
    weights: dict[str, Any] | None = None
    """The epoch of the weights that were evaluated and exported, and the metric that chose it; see
    `stages.results.Record`."""
    start_seconds: float = 0.0
    """Time for imports, the configuration and the start of the run."""
    recording_seconds: float = 0.0
    """Time for recording between the stages, and for the end of the run."""
    ending: bool = False
    """Whether a FINISHED run still has to print or upload results. If it is killed before that, the same command does
    it."""
    facts: Facts = field(default_factory=Facts)
    """Results of stages that are not metrics."""

    @property
    def task(self) -> TaskFacts:
        """The task of the model; classification, if the run has not begun."""
        return self.facts.task or TaskFacts()

    @property
    def primary(self) -> str:
        """The metric that compares models of its task, such as `accuracy`."""
        return self.task.primary

    @property
    def failed_stage(self) -> str:
        """The stage that failed; `start` if none had begun, `recording` if the run failed outside of a stage."""
        failed = (name for name, stage in self.stages.items() if stage.status == "failed")
        return next(failed, "recording" if self.stages else "start")

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add the `summary` of a stage's record; see `stages.results.Record`.

        Raises:
            UserError: If a fact that this package declares has a value of the wrong type.
        """
        self.replicas = facts.get("replicas", self.replicas)
        self.precision = facts.get("precision", self.precision)
        try:
            self.facts.add({name: value for name, value in facts.items() if name not in ("replicas", "precision")})
        except ValueError as error:
            raise UserError(str(error)) from error

    def begin_stages(self, started: float) -> None:
        """Set `start_seconds` to the time since `started` (`time.monotonic()`), when the first stage begins."""
        self.start_seconds = time.monotonic() - started

    def take_time(self, started: float) -> None:
        """Set `seconds` to the time since `started` (`time.monotonic()`)."""
        self.seconds = time.monotonic() - started
        if not self.stages:  # the run ended before its first stage
            self.start_seconds = self.seconds
        in_stages = sum(stage.seconds for stage in self.stages.values())
        self.recording_seconds = max(self.seconds - self.start_seconds - in_stages, 0.0)

    def write(self, folder: Path, durable: bool = True) -> Path:
        """Write the file atomically, with null for NaN and infinity, which JSON does not have."""
        text = json.dumps(redact(plain(self)), indent=2, default=str) + "\n"
        atomic_write(folder / NAME, text, durable)
        return folder / NAME

    @classmethod
    def read(cls, folder: Path) -> "Summary":
        """Return the summary in `folder`, with NaN for metrics that are null.

        Raises:
            FileNotFoundError: If there is no such file.
            OSError: If it is not a regular file.
            ValueError: If it is damaged, or of a different version.
        """
        values = read_json(folder / NAME)
        if isinstance(values, dict) and isinstance(metrics := values.get("metrics"), dict):
            values["metrics"] = {name: math.nan if value is None else value for name, value in metrics.items()}
        summary: Summary = convert(values, cls, "")
        if summary.status not in STATUSES:
            raise ValueError(f"unknown status {summary.status!r}")
        convert_parts(summary.weights or {}, WEIGHTS, "weights")
        return summary


def one_line(error: BaseException) -> str:
    """Return an error as one line: a UserError as it is, any other error after its type."""
    text = str(error)
    if "Detected at node" in text:  # TensorFlow prints Python's stack before the reason
        noise = ("Graph execution error", "Detected at node", "File ", "<stack traces", "[[")
        lines = [line.strip() for line in text.splitlines()]
        text = " ".join(line for line in lines if line and not line.startswith(noise)) or text
    text = printable(" ".join(text.split()))
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"[:1000]
