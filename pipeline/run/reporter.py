"""The reporter of a run, by which its stages record metrics, log lines and show progress."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from pipeline.console import Console
from pipeline.planning.job import OnEpoch
from pipeline.redaction import redact
from pipeline.run.records import clean_metrics
from pipeline.run_folder.summary import Summary
from pipeline.system import pulse, signals
from pipeline.tracking.tracker import Tracker
from stages.reporter import Stop
from stages.safe_places import safe_place


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
