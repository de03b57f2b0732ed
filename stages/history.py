"""What an epoch came to: the names under which it is tracked, its line in the log, and the rates of training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_WAITING = 0.1
"""The share of the time that training may wait for its input before somebody is told."""

LEAST_SECONDS = 2.0
"""What is waited for less long is not worth a word."""


@dataclass
class Clock:
    """Seconds and examples of training steps alone: no tracing, validation, callback or checkpoint."""

    seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    waited: float | None = None
    """Seconds of these that training has waited for its input; None where nobody can tell."""

    def add(self, seconds: float, steps: int, examples: int, waited: float | None = None) -> None:
        self.seconds, self.steps, self.examples = self.seconds + seconds, self.steps + steps, self.examples + examples
        if waited is not None:
            self.waited = (self.waited or 0.0) + waited

    @property
    def images_per_second(self) -> float | None:
        return self.examples / self.seconds if self.steps else None

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0

    def rates(self) -> dict[str, float]:
        """Returns the rates of the run so far; nothing after a single step."""
        if not self.steps:
            return {}
        rate = self.examples / self.seconds
        rates = {"train/images_per_second": rate, "train/step_milliseconds": 1000 * self.step_seconds}
        return rates if self.waited is None else {**rates, "train/input_wait_fraction": self.waited / self.seconds}

    def advice(self) -> str:
        """Returns what to do where training waits for its input, or nothing."""
        share = self.waited / self.seconds if self.waited and self.seconds else 0.0
        if share <= MOST_WAITING or (self.waited or 0.0) < LEAST_SECONDS:
            return ""
        return (
            f"training waited for its input {share:.0%} of the time: data.cache=disk, more data.memory_gib, a smaller "
            "data.size, or augment.where=model make the input cheaper"
        )


@dataclass
class Progress:
    """How far a training has come.

    epoch: counted from 0; done: the steps of it that are over; step: of all epochs together.
    rows: the metrics of each epoch; logs: what callbacks were told last.
    stopping: whether a callback wants the end; finished: whether no step of the phase will follow.
    phase: counted from 0; began: the epoch with which it began.
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

    def begin_phase(self, index: int, steps_per_epoch: int) -> None:
        """Goes on with the phase `index`, at the beginning of an epoch also where a callback has cut the last short."""
        self.phase, self.began, self.step = index, self.epoch, self.epoch * steps_per_epoch
        self.clock, self.stopping, self.finished = Clock(), False, False  # its steps take a time of their own

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Progress":
        """Returns what `dataclasses.asdict` was given."""
        return cls(**{**values, "clock": Clock(**values["clock"])})


def tracked(name: str) -> str:
    """Returns the tracked name of a Keras log: `val_loss` is `val/loss`, `loss` is `train/loss`."""
    return f"val/{name[4:]}" if name.startswith("val_") else f"train/{name}"


def row(logs: Mapping[str, float], clock: Clock) -> dict[str, float]:
    """Returns an epoch's metrics by the names under which they are tracked."""
    return {tracked(name): float(value) for name, value in logs.items()} | clock.rates()


def line(epoch: int, epochs: int, steps_per_epoch: int, logs: Mapping[str, float], clock: Clock) -> str:
    """Returns what is printed at the end of `epoch`, counted from 0."""
    rate = clock.images_per_second
    speed = f"{rate:,.0f} images/s" if rate else "-"
    left = steps_per_epoch * (epochs - epoch - 1) * clock.step_seconds
    means = "  ".join(f"{name} {logs[name]:.4f}" for name in ("loss", "accuracy", "val_loss", "val_accuracy"))
    return f"epoch {epoch + 1:{len(str(epochs))}}/{epochs}  {means}  {speed}  {left:.0f} s left"
