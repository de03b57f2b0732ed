"""Settings of a debug run: a short run that checks an experiment, and whose results count nowhere."""

from dataclasses import dataclass

from stages.settings.ranges import choice, number, option


@option("debug", "none")
@dataclass
class DebugSettings:
    """No debug run."""

    kind: str = choice("none", "none")


@option("debug", "fast")
@dataclass
class FastSettings(DebugSettings):
    """A few steps of everything, in one epoch."""

    kind: str = choice("fast", "fast")
    steps: int = number(2, at_least=1, at_most=1_000_000, unit="steps of training, validation and evaluation, at most")


@option("debug", "overfit")
@dataclass
class OverfitSettings(DebugSettings):
    """Training on one batch, which is the same at every step, without augmentation and dropout."""

    kind: str = choice("overfit", "overfit")
    steps: int = number(1000, at_least=10, at_most=1_000_000, unit="steps on the batch, at most")
    loss: float = number(0.01, above=0, unit="of the batch, below which it has been learned")


@option("debug", "profile")
@dataclass
class ProfileSettings(DebugSettings):
    """Two short epochs, the profiler around steps of the second."""

    kind: str = choice("profile", "profile")
    steps: int = number(50, at_least=1, at_most=1_000_000, unit="steps of an epoch, at most")
    traced: int = number(20, at_least=1, at_most=10_000, unit="steps of the second epoch in the trace")
