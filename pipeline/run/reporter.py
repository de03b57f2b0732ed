"""The reports of a running stage: to the console, the summary and MLflow."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from pipeline.console import Console
from pipeline.planning.job import OnEpoch, Turn
from pipeline.redaction import redact
from pipeline.run_folder.summary import Summary
from pipeline.system import signals
from pipeline.tracking.tracker import Tracker
from stages.reporter import Reporter, Stop, safe_place
from stages.results import as_number

LONGEST_METRIC_NAME = 250
"""Characters, MLflow's own limit."""

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")


class RunReporter(Reporter):
    """The `stages.reporter.Reporter` of a run. stage: the one that reports."""

    def __init__(
        self,
        tracker: Tracker,
        console: Console,
        summary: Summary,
        on_epoch: OnEpoch | None = None,
        turn: Turn | None = None,
    ) -> None:
        self._on_epoch = on_epoch
        self._turn = turn
        self._tracker = tracker
        self._console = console
        self._summary = summary
        self.stage = ""
        self._warned: set[str] = set()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        numbers = {str(name): as_number(value) for name, value in values.items()}
        by_name = {metric_name(name): number for name, number in numbers.items() if number is not None}
        for name, number in numbers.items():
            if number is None:
                self._warn_once(
                    f"{self.stage}: the metric {name} is a {kind(values[name])}, not a number: it is not recorded"
                )
        with signals.uninterrupted():
            self._summary.metrics.update(by_name)
            self._tracker.metrics(by_name, int(step))
        if self._on_epoch is not None and step > 0:
            self._on_epoch(by_name, int(step))

    def weights(self, chosen: Mapping[str, Any]) -> None:
        """Records the epoch whose weights the run evaluates and exports."""
        with signals.uninterrupted():
            self._summary.weights = dict(chosen)
            self._tracker.tags({f"weights.{name}": str(value) for name, value in chosen.items()})

    def _warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self.warn(line)

    def progress(self, done: int, total: int, note: str) -> None:
        with signals.uninterrupted():
            self._console.progress(done, total, note)
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

    def wait_for_turn(self) -> None:
        if self._turn is not None:
            self._turn.wait()

    def is_secret(self, name: str, value: object) -> bool:
        return bool(redact({name: value}) != {name: value})

    def stopping(self) -> AbstractContextManager[Stop]:
        return signals.stopping()


def metric_name(name: str) -> str:
    """Return `name` as MLflow takes it: other characters become `_`, and empty and relative parts of a path go."""
    parts = _NOT_ALLOWED.sub("_", name)[:LONGEST_METRIC_NAME].split("/")
    return "/".join(part for part in parts if part.strip(".")) or "_"


def kind(value: Any) -> str:
    """Return the type of a value, and its shape if it has one, for errors."""
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape else type(value).__name__
