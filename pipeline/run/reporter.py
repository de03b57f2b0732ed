"""The reporter of a run, by which its stages record metrics, log lines and show progress."""

import math
import posixpath
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from pipeline.console import Console
from pipeline.planning.job import OnEpoch
from pipeline.redaction import redact
from pipeline.run_folder.summary import Summary
from pipeline.system import pulse, signals
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from stages.reporter import Stop
from stages.results import Record, as_number
from stages.safe_places import safe_place

LONGEST_METRIC_NAME = 250
"""Characters, MLflow's own limit."""

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")


class RunReporter:
    """The `stages.reporter.Reporter` of a run."""

    def __init__(self, tracker: Tracker, console: Console, summary: Summary, on_epoch: OnEpoch | None = None) -> None:
        self._on_epoch = on_epoch
        self._tracker = tracker
        self._console = console
        self._summary = summary
        self._stage = ""
        self._owners: dict[str, str] = {}
        self._warned: set[str] = set()

    def begin(self, stage: str) -> None:
        """Makes `stage` the one that reports from now on."""
        self._stage = stage
        self._owners.setdefault(f"{stage}/seconds", "the runner")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        metrics, warnings = clean_metrics(values)
        for line in warnings:
            self.warn_once(f"{self._stage}: {line}")
        by_name = {self._own_name(name): value for name, value in metrics.items()}
        with signals.uninterrupted():
            self._summary.metrics.update(by_name)
            self._tracker.metrics(by_name, int(step))
        if self._on_epoch is not None and step > 0:
            self._on_epoch(by_name, int(step))
        if step > 0:
            pulse.epoch(int(step), by_name)

    def weights(self, chosen: Mapping[str, Any]) -> None:
        """Records the epoch whose weights the run evaluates and exports."""
        with signals.uninterrupted():
            self._summary.weights = dict(chosen)
            self._tracker.tags({f"weights.{name}": str(value) for name, value in chosen.items()})

    def warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self.warn(line)

    def _own_name(self, name: str) -> str:
        """Returns the name under which the stage records its metric, which does not overwrite another stage's."""
        owner = self._owners.setdefault(name, self._stage)
        if owner == self._stage:
            return name
        self.warn_once(f"{self._stage}: {name} is a metric of {owner}; this one is recorded as {self._stage}/{name}")
        self._owners.setdefault(f"{self._stage}/{name}", self._stage)
        return f"{self._stage}/{name}"

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None:
        with signals.uninterrupted():
            self._console.progress(done, total, images_per_second, note)
        safe_place()

    def doing(self, activity: str) -> None:
        self._console.doing(activity)

    def log(self, line: str) -> None:
        with signals.uninterrupted():
            self._console.log(line)

    def warn(self, line: str) -> None:
        with signals.uninterrupted():
            self._console.warn(line)

    def resumed(self, step: int) -> None:
        with signals.uninterrupted():
            self._summary.resumed_from_step = step
            self._tracker.tags({"resumed_from_step": str(step)})
            self._console.log(f"resuming training after step {step}")

    def is_secret(self, name: str, value: object) -> bool:
        return bool(redact({name: value}) != {name: value})

    def stopping(self) -> AbstractContextManager[Stop]:
        return signals.stopping()


def own_record(stage: str, result: Any) -> Record | None:
    """Return the record of what a stage has returned; None for one that returns nothing.

    Raises:
        UserError: where the result is neither a Record, nor has one, nor is a mapping from names to numbers.
    """
    record = result if isinstance(result, Record) else getattr(result, "record", None)
    if isinstance(record, Record):
        return record
    if result is None or isinstance(getattr(result, "implied_record", None), Record):
        return None
    numbers = {str(name): as_number(value) for name, value in result.items()} if isinstance(result, Mapping) else {}
    if not isinstance(result, Mapping) or None in numbers.values():
        named = next((f"{name!r}, a {kind_of(result[name])}" for name, one in numbers.items() if one is None), "")
        raise UserError(
            f"it returned a {kind_of(result)}{f' with {named}' if named else ''}",
            "a dataclass with a Record as `record`, a Record, or a mapping from names to numbers",
            "return stages.results.Record(metrics={…}, params={…}, files={…})",
        )
    return Record(metrics={name if "/" in name else f"{stage}/{name}": number for name, number in numbers.items()})


def clean_metrics(values: Mapping[Any, Any]) -> tuple[dict[str, float], list[str]]:
    """Return metrics as MLflow takes them, and a line for each that is changed or is no number.

    Numbers become float64, and characters that MLflow refuses in a name `_`.
    """
    metrics: dict[str, float] = {}
    warnings: list[str] = []
    for key, value in values.items():
        number = as_number(value)
        if number is None:
            warnings.append(f"the metric {key} is a {kind_of(value)}, not a number: it is not recorded")
            continue
        name = metric_name(str(key))
        while name in metrics:
            name += "_"
        if name != str(key):
            warnings.append(f"the metric {key!r} is recorded as {name}: MLflow allows letters, digits and _-.:/ only")
        if math.isinf(number):
            warnings.append(f"{name} is {number}: MLflow shows the largest float instead, and summary.json null")
        metrics[name] = number
    return metrics, warnings


def metric_name(name: str) -> str:
    """Return `name` with the characters and path parts that MLflow refuses replaced by `_`."""
    clean = _NOT_ALLOWED.sub("_", name)[:LONGEST_METRIC_NAME]
    path = posixpath.normpath(clean.strip("/") or "_")
    return "/".join("_" if part in (".", "..") else part for part in path.split("/"))


def kind_of(value: Any) -> str:
    """Return the type of a value, and its shape if it has one, for errors."""
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape else type(value).__name__
