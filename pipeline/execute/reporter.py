"""Pass the reports of a running stage on to the console, the summary and MLflow."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pipeline.console import Console
from pipeline.decide.job import OnEpoch
from pipeline.execute.link import Turn
from pipeline.runs.summary import Summary
from pipeline.system import signals
from pipeline.tracking.params import metric_name
from pipeline.tracking.tracker import Tracker
from stages.reporter import Reporter, Stop, safe_place
from stages.results import as_number


@dataclass
class RunReporter(Reporter):
    """The `stages.reporter.Reporter` of a run."""

    tracker: Tracker
    console: Console
    summary: Summary
    on_epoch: OnEpoch | None = None
    turn: Turn = field(default_factory=Turn)
    stage: str = ""
    """The name of the stage that is running."""
    is_training: bool = False
    """Whether that stage trains. Its first progress waits for the job's turn."""
    _warned: set[str] = field(default_factory=set)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        numbers = {str(name): as_number(value) for name, value in values.items()}
        by_name = {metric_name(name): number for name, number in numbers.items() if number is not None}
        for name, number in numbers.items():
            if number is None and name not in self._warned:
                self._warned.add(name)
                what = f"the metric {name} is a {kind(values[name])}, not a number, so it is not recorded"
                self.warn(f"{self.stage}: {what}")
        self.summary.metrics.update(by_name)
        self.tracker.metrics(by_name, int(step))
        if self.on_epoch is not None and step > 0:
            self.on_epoch(by_name, int(step))

    def weights(self, chosen: Mapping[str, Any]) -> None:
        """Record the epoch whose weights the run evaluates and exports."""
        self.summary.weights = dict(chosen)
        self.tracker.tags({f"weights.{name}": str(value) for name, value in chosen.items()})

    def progress(self, done: int, total: int, note: str) -> None:
        """Show the progress. The first progress of a training waits until no other job of the sweep computes.

        By then its network is built and a step is traced, and nothing has been timed.
        """
        if self.is_training and self.turn.is_awaited:
            with signals.allow(signals.RUN_SECONDS):  # a stop ends the wait: there is nothing to save
                self.turn.wait()
        self.console.progress(done, total, note)
        safe_place()

    def doing(self, activity: str) -> None:
        self.console.doing(activity)

    def log(self, line: str) -> None:
        self.console.log(line)

    def warn(self, line: str) -> None:
        self.console.warn(line)

    def resumed(self, step: int) -> None:
        self.summary.resumed_from_step = step
        self.tracker.tags({"resumed_from_step": str(step)})
        self.console.log(f"resuming training after step {step}")

    def stopping(self) -> AbstractContextManager[Stop]:
        return signals.stopping()


def kind(value: Any) -> str:
    """Return the type of a value, and its shape if it has one, for error messages."""
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape else type(value).__name__
