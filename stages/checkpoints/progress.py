"""Progress of a training, as a checkpoint holds it, and the clock of its steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_WAITING = 0.1
"""Fraction of the time that training may wait for its input before a warning."""

LEAST_SECONDS = 2.0
"""Seconds of waiting below which there is no warning."""


@dataclass
class Clock:
    """Seconds and examples of training steps alone, without tracing, validation, callbacks and checkpoints."""

    seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    waited: float | None = None
    """Seconds of these that training has waited for its input; None where that cannot be measured."""
    unit: str = "images"
    """Name of examples; `features` are those of a frozen backbone."""

    def add(self, seconds: float, steps: int, examples: int, waited: float | None = None) -> None:
        self.seconds = self.seconds + seconds
        self.steps = self.steps + steps
        self.examples = self.examples + examples
        if waited is not None:
            self.waited = (self.waited or 0.0) + waited

    @property
    def speed(self) -> str:
        """Examples a second as a person reads them: `1,234 rows/s`; `-` before the second call."""
        return f"{self.examples / self.seconds:,.0f} {self.unit}/s" if self.steps else "-"

    def rates(self) -> dict[str, float]:
        """Returns the rates of the run so far; none after a single step. Rows and texts are `examples`."""
        if not self.steps:
            return {}
        rate = self.examples / self.seconds
        name = self.unit if self.unit in ("images", "features") else "examples"
        rates = {f"train/{name}_per_second": rate, "train/step_milliseconds": 1000 * (self.seconds / self.steps)}
        return rates if self.waited is None else {**rates, "train/input_wait_fraction": self.waited / self.seconds}

    def advice(self) -> str:
        """Returns advice where training waits for its input, else an empty string."""
        fraction = self.waited / self.seconds if self.waited and self.seconds else 0.0
        if fraction <= MOST_WAITING or (self.waited or 0.0) < LEAST_SECONDS:
            return ""
        return (
            f"training waited for its input {fraction:.0%} of the time: data.cache=disk, more data.memory_gib, a "
            "smaller data.size, or augment.where=model make the input cheaper"
        )


@dataclass
class Progress:
    """Progress of a training.

    epoch: counted from 0; done: its steps taken; step: those of all epochs.
    rows: the metrics of each epoch; logs: the last ones that callbacks have received.
    stopping: whether a callback stops training; finished: whether the phase has no more steps.
    phase: counted from 0; began: its first epoch.
    shift: steps by which the learning-rate schedule is ahead of the optimizer, which started again.
    start: the scores of a fork's weights on validation before its first step.
    """

    epoch: int = 0
    done: int = 0
    step: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    logs: dict[str, float] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    stopping: bool = False
    finished: bool = False
    phase: int = 0
    began: int = 0
    shift: int = 0
    start: dict[str, float] = field(default_factory=dict)

    @property
    def first_epoch(self) -> int:
        """The epoch of the first of `rows`, counted from 1; a fork has none of the epochs before it."""
        return self.epoch - len(self.rows) + 1

    def begin_phase(self, index: int, steps_per_epoch: int) -> None:
        """Continues with the phase `index`, at the start of an epoch even if a callback has cut the last one short."""
        self.phase = index
        self.began = self.epoch
        self.step = self.epoch * steps_per_epoch
        self.shift = 0
        self.clock = Clock()  # its steps have their own duration
        self.stopping = False
        self.finished = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Progress":
        """Return the progress that `dataclasses.asdict` has converted."""
        return cls(**{**values, "clock": Clock(**values["clock"])})
