"""`summary.json`: the results of a run, for programs."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.records import read_json, typed, typed_parts
from pipeline.redaction import redact
from stages.errors import UserError, printable
from stages.reuse import VALIDATED, VALIDATED_LOSS, VALIDATED_PIXELS
from stages.storage.atomic import atomic_write

NAME = "summary.json"
PRUNED = "pruned_after_epoch"
"""In the facts of a summary, and as a tag: the last epoch of a trial that was ended early."""

FINGERPRINT = "fingerprint"
"""In the facts of a summary: the fingerprint of the data that the run loaded."""

LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "perplexity", "seconds", "diff", "mib", "bytes")
"""Ends of the names of metrics of which less is better: losses, errors, times, sizes."""

STATUSES = ("RUNNING", "FINISHED", "FAILED", "KILLED")


FACTS = {
    "task": dict[str, Any], "data": dict[str, Any], "own": dict[str, list[str]], "unit": str, FINGERPRINT: str,
    "intervals": dict[str, list[float | None] | None], "confidence": float | None, PRUNED: int, VALIDATED: str | None,
    VALIDATED_PIXELS: str | None, VALIDATED_LOSS: dict[str, Any] | None, "test_examples": str, "test_pixels": str,
}  # fmt: skip
"""Types of the facts of a summary that the framework reads. What is not finite is null in JSON."""

TASK = {"primary": str, "metrics": list[str], "higher_is_better": list[str]}
DATA = dict.fromkeys(("train_examples", "val_examples", "test_examples"), int)
WEIGHTS = {"epoch": int | None, "monitor": str | None}

UNITS = ("images", "features", "examples")
"""Units that training may count: features are what a frozen backbone has made of images, examples are rows or texts."""


def best_metric(monitor: str) -> str | None:
    """Returns the validation metric of the best epoch, by `train.monitor`: `val/best_loss` of `val_loss`; None where
    that is no metric of validation."""
    return monitor.replace("val_", "val/best_", 1) if monitor.startswith("val_") else None


def is_lower_better(metric: str, task: Mapping[str, Any] | None = None) -> bool:
    """Returns whether less of a metric is better: by the task, as a summary has it, else by its name."""
    name = metric.rpartition("/")[2].removeprefix("best_")
    if task and name in task["metrics"]:
        return name not in task["higher_is_better"]
    return name.endswith(LOWER_IS_BETTER)


def scored(metric: str, value: float) -> str:
    """Returns a score as a person reads it: four digits after the point where it is bounded, four in all of errors."""
    is_error = is_lower_better(metric) and not metric.endswith("loss")
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}" if is_error else f"{value:.4f}"


@dataclass
class StageOutcome:
    """status: `ran`, `reused`, `skipped` or `failed`; seconds: of wall time."""

    status: str
    seconds: float = 0.0


@dataclass
class Summary:
    """The contents of `summary.json`; `metrics` holds the last value of each name.

    metrics: those of the last epoch under their plain names (`val/loss`), those of the best as `val/best_loss`.
    weights: the epoch whose weights were evaluated and exported, and how it was chosen: see `stages.results.Record`.
    seconds: from the start of the command (for a job of a sweep: of the job) to its end; for a resumed run, of the last
        command. The sum of start_seconds (imports, configuration, the start of the run), the stages' seconds, and
        recording_seconds (records between the stages, and the end of the run).
    identity: equal for runs whose settings give the same result; code: digest of all sources.
    ending: whether a run that is FINISHED has yet to print its results and to send the rest; killed there, the same
        command does so.
    facts: other values that stages summarize, such as `devices`.
    """

    run_id: str | None
    status: str
    name: str
    folder: str
    choices: Mapping[str, str | None]
    overrides: list[str] = field(default_factory=list)
    stages: dict[str, StageOutcome] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    resumed_from_step: int | None = None
    identity: str | None = None
    code: str | None = None
    exported: dict[str, str] = field(default_factory=dict)
    replicas: int | None = None
    precision: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    weights: dict[str, Any] | None = None
    start_seconds: float = 0.0
    recording_seconds: float = 0.0
    ending: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> Mapping[str, Any]:
        """The task, as `stages.tasks.task` describes it; of a run that has not begun, classes."""
        known = {"primary": "accuracy", "metrics": ["accuracy"], "higher_is_better": ["accuracy"]}
        return {**known, **self.facts.get("task", {})}

    @property
    def primary(self) -> str:
        """The metric by which models of its task are compared, such as `accuracy`."""
        return str(self.task["primary"])

    @property
    def failed_stage(self) -> str:
        """The stage that failed; else `start`, before the first one, or `recording`."""
        failed = (name for name, stage in self.stages.items() if stage.status == "failed")
        return next(failed, "recording" if self.stages else "start")

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Adds the `summary` of a stage's record; see `stages.results.Record`."""
        for name, value in facts.items():
            if name in ("replicas", "precision"):
                setattr(self, name, value)
            else:
                self.facts[name] = value

    def begin_stages(self, started: float) -> None:
        """Sets the seconds from `started` (`time.monotonic()`) to now, when the first stage begins."""
        self.start_seconds = time.monotonic() - started

    def take_time(self, started: float) -> None:
        """Sets the seconds from `started` (`time.monotonic()`) to now."""
        self.seconds = time.monotonic() - started
        if not self.stages:  # the run ended before its first stage
            self.start_seconds = self.seconds
        in_stages = sum(stage.seconds for stage in self.stages.values())
        self.recording_seconds = max(self.seconds - self.start_seconds - in_stages, 0.0)

    def write(self, folder: Path, durable: bool = True) -> Path:
        """Writes the file whole or not at all; nan and inf, which JSON does not have, become null."""
        text = json.dumps(_plain(redact(asdict(self))), indent=2, default=str) + "\n"
        atomic_write(folder / NAME, text, durable)
        return folder / NAME

    @classmethod
    def read(cls, folder: Path) -> "Summary":
        """Returns the summary in `folder`; a metric that is null is nan.

        Raises:
            FileNotFoundError: where there is none.
            OSError: where it is not a regular file.
            ValueError: where it is damaged, or of another version.
        """
        values = read_json(folder / NAME)
        if isinstance(values, dict) and isinstance(metrics := values.get("metrics"), dict):
            values["metrics"] = {name: math.nan if value is None else value for name, value in metrics.items()}
        summary: Summary = typed(values, cls, "")
        if summary.status not in STATUSES:
            raise ValueError(f"unknown status {summary.status!r}")
        typed_parts(summary.weights or {}, WEIGHTS, "weights")
        facts = typed_parts(summary.facts, FACTS, "facts")
        for name, kinds in (("task", TASK), ("data", DATA)):
            typed_parts(facts.get(name, {}), kinds, f"facts.{name}")
        return summary


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def one_line(error: BaseException) -> str:
    """Returns an error as one line: a user's error unchanged, any other with its type."""
    text = str(error)
    if "Detected at node" in text:  # TensorFlow puts the lines of Python's stack before the reason
        noise = ("Graph execution error", "Detected at node", "File ", "<stack traces", "[[")
        lines = [line.strip() for line in text.splitlines()]
        text = " ".join(line for line in lines if line and not line.startswith(noise)) or text
    text = printable(" ".join(text.split()))
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"[:1000]
