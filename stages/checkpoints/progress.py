"""The progress of a training: epochs, steps, metrics and times, which checkpoints save next to its variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stages.checkpoints.files import Checkpoint

MAX_WAITING = 0.1
"""Fraction of the time that training may wait for its input without a warning."""

MIN_SECONDS = 2.0
"""Seconds of waiting below which there is no warning."""


@dataclass
class Clock:
    """The time of training steps and their examples, without tracing, validation, callbacks and checkpoints."""

    seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    waited: float | None = None
    """Seconds of these that training has waited for its input; None if this cannot be measured."""
    unit: str = "images"
    """Name of the examples; `features` are those of a frozen backbone."""

    def add(self, seconds: float, steps: int, examples: int, waited: float | None = None) -> None:
        self.seconds = self.seconds + seconds
        self.steps = self.steps + steps
        self.examples = self.examples + examples
        if waited is not None:
            self.waited = (self.waited or 0.0) + waited

    @property
    def speed(self) -> str:
        """Examples per second as text, such as `1,234 rows/s`; `-` before the second call."""
        return f"{self.examples / self.seconds:,.0f} {self.unit}/s" if self.steps else "-"

    def rates(self) -> dict[str, float]:
        """Return the rates of the run so far; empty after a single step. Rows and texts count as `examples`."""
        if not self.steps:
            return {}
        rate = self.examples / self.seconds
        name = self.unit if self.unit in ("images", "features") else "examples"
        rates = {f"train/{name}_per_second": rate, "train/step_milliseconds": 1000 * (self.seconds / self.steps)}
        return rates if self.waited is None else {**rates, "train/input_wait_fraction": self.waited / self.seconds}

    def advice(self) -> str:
        """Return advice if training waits too long for its input; otherwise an empty string."""
        fraction = self.waited / self.seconds if self.waited and self.seconds else 0.0
        if fraction <= MAX_WAITING or (self.waited or 0.0) < MIN_SECONDS:
            return ""
        return (
            f"training waited for its input {fraction:.0%} of the time; data.cache=disk, a larger data.memory_gib, a "
            "smaller data.size or augment.where=model may speed it up"
        )


@dataclass
class Progress:
    """Progress of a training."""

    epoch: int = 0
    """The current epoch, counted from 0."""
    done: int = 0
    """Number of steps completed in this epoch."""
    step: int = 0
    """Number of steps completed in all epochs."""
    rows: list[dict[str, float]] = field(default_factory=list)
    """The metrics of each epoch."""
    logs: dict[str, float] = field(default_factory=dict)
    """The last metrics that callbacks have received."""
    clock: Clock = field(default_factory=Clock)
    stopping: bool = False
    """Whether a callback stops training."""
    finished: bool = False
    """Whether the phase has no more steps."""
    phase: int = 0
    """The current phase, counted from 0."""
    began: int = 0
    """The first epoch of this phase."""
    planned: int = 0
    """The first epoch of this phase if the previous phase had not stopped early."""
    shift: int = 0
    """Number of steps by which the learning-rate schedule is ahead of a fork's new optimizer."""

    @property
    def first_epoch(self) -> int:
        """The epoch of the first of `rows`, counted from 1. A fork has no rows of epochs before its start."""
        return self.epoch - len(self.rows) + 1

    def of_next_phase(self, steps_per_epoch: int, planned: int) -> "Progress":
        """Return the progress at the start of the next phase, with a new clock.

        A phase starts with a whole epoch, even if a callback has cut the last epoch short.
        """
        step, phase = self.epoch * steps_per_epoch, self.phase + 1
        start = Progress(self.epoch, step=step, phase=phase, began=self.epoch, planned=planned)
        start.rows, start.logs = self.rows, self.logs
        return start

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Progress":
        """Return the progress from the result of `dataclasses.asdict`, without fields that no longer exist."""
        known = {name: value for name, value in values.items() if name in vars(cls())}
        return cls(**{**known, "clock": Clock(**values["clock"])})


def progress_of(checkpoint: Checkpoint, same_epochs: bool = True) -> Progress:
    """Return the progress of a checkpoint, or the progress of a fork at its start.

    Args:
        checkpoint: The checkpoint.
        same_epochs: Whether the epochs of a fork have the same batches and sums. If not, it starts the epoch again.
    """
    progress = Progress.of(checkpoint.facts["progress"])
    if not checkpoint.is_fork:
        return progress
    done = progress.done if same_epochs else 0
    return replace(progress, done=done, rows=[], clock=Clock(), stopping=False, finished=False)
