"""Settings of the `train` stage."""

import math
from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from stages.errors import UserError
from stages.settings.optimizer import ScheduleSettings, StepSettings
from stages.settings.ranges import choice, holds, number, option, text


@option("train", "loop")
@dataclass(kw_only=True)
class TrainSettings:
    """The training loop, for every strategy and precision."""

    _target_: str = "stages.train.train"
    epochs: int = number(30, at_least=1, unit="passes over the training split")
    batch_size: int = number(64, at_least=1, unit="examples of the global batch, over all replicas")
    steps_per_call: int | None = number(None, at_least=1, unit="steps in one call of the compiled function")
    """null: as many as take about 0.3 s."""
    jit: str = choice("auto", "auto", "on", "off")
    """XLA: `auto` is on for GPUs and off for CPUs."""
    label_smoothing: float = number(0.0, at_least=0, below=1, unit="of the target, spread over all classes")
    class_weights: Any = None
    """Weight of an example in the loss, by class: a list, or `balanced`: examples / (classes × examples of it). Of
    several labels the factor of each where it holds; `balanced`: examples without it / examples with it."""
    monitor: str = text("val_loss", r"(val_)?\w+", "a metric of the task, of validation after `val_`", "val_loss")
    """Decides which epoch is best, and when to stop early: a metric that the task has, also of `task.metrics`."""
    restore_best: bool = True
    """Whether the weights of the best epoch are the result, not those of the last."""
    early_stopping_patience: int = number(0, at_least=0, unit="epochs without a better one; 0: never stop early")
    checkpoint_every_seconds: float = number(30.0, above=0, unit="seconds between checkpoints, written while training")
    checkpoint_every_steps: int | None = number(None, at_least=1, unit="steps between checkpoints, in addition")
    checkpoints_kept: int = number(2, at_least=1, unit="checkpoints, the last ones, until the run is finished")
    """Each holds the best weights, too. A finished run keeps the last one alone."""
    fine_tune_epochs: int = number(0, at_least=0, unit="epochs after train.epochs, for the top of a frozen backbone")
    """A second phase of the same run, with its own optimizer and schedule."""
    fine_tune_layers: int = number(20, at_least=1, unit="layers of the backbone, from its end")
    """Their BatchNorm layers stay frozen: keras.io/guides/transfer_learning."""
    fine_tune_rate: float = number(0.1, above=0, unit="of optimizer.learning_rate, in the second phase")
    cache_features: str = choice("auto", "auto", "off")
    """`auto`: a frozen backbone's features of inputs that are not augmented are computed once, and the head trains on
    them."""
    callbacks: list[Any] = field(default_factory=list)
    """Keras callbacks, each a mapping with `_target_`, such as `keras.callbacks.TerminateOnNaN`."""
    optimizer: Any = II("optimizer")
    schedule: ScheduleSettings = II("schedule")
    seed: int = II("seed")

    @property
    def all_epochs(self) -> int:
        """Epochs of both phases, unless training stops early."""
        return self.epochs + self.fine_tune_epochs

    @property
    def longest_phase(self) -> int:
        """Epochs in the longer of the two phases, each of which has the schedule to itself."""
        return max(self.epochs, self.fine_tune_epochs)

    def check(self, path: str) -> None:
        falls = self.schedule.decay_epochs if isinstance(self.schedule, StepSettings) else [0.0]
        if min(falls, default=math.inf) >= self.longest_phase:
            shown = ",".join(f"{epoch:g}" for epoch in falls)
            raise UserError(
                f"schedule=step never falls: schedule.decay_epochs=[{shown}], and {path}.epochs={self.longest_phase}",
                f"one of them below {self.longest_phase}, or schedule=constant",
                f"schedule.decay_epochs=[{self.longest_phase / 2:g}]",
            )
        for name, epochs in (("epochs", self.epochs), ("fine_tune_epochs", self.fine_tune_epochs)):
            if 0 < epochs <= self.schedule.warmup_epochs:
                raise UserError(
                    f"schedule.warmup_epochs={self.schedule.warmup_epochs:g} fills all of {path}.{name}={epochs}",
                    f"less than {epochs}, as each phase warms up",
                    f"schedule.warmup_epochs={epochs / 10:g}",
                )
        weights = self.class_weights
        numbers = isinstance(weights, list) and all(
            isinstance(weight, (int, float)) and holds(weight) and weight >= 0 for weight in weights
        )
        if weights is not None and weights != "balanced" and not (numbers and any(weights)):
            raise UserError(
                f"{path}.class_weights={weights} weighs no classes",
                "null, balanced, or a list of numbers of at least 0, one a class",
                f"{path}.class_weights=balanced",
            )

    def check_share(self, replicas: int, examples: int | None = None) -> str | None:
        """Returns a warning where a batch holds more than the training examples; None where `examples` are unknown.

        Raises:
            UserError: where a replica would get no example; per-replica batches may differ in size.
        """
        if self.batch_size < replicas:
            raise UserError(
                f"train.batch_size={self.batch_size} cannot be shared by {replicas} replicas",
                f"{replicas} or more",
                f"train.batch_size={replicas * 32}",
            )
        if examples is None or self.batch_size <= examples:
            return None
        return (
            f"train.batch_size={self.batch_size} is more than the {examples:,} training examples: each epoch is one "
            f"step, the same as with train.batch_size={examples}"
        )


@option("train", "fit")
@dataclass(kw_only=True)
class FitSettings(TrainSettings):
    """Keras takes the steps, where it gives the same weights: for networks with a `train_step`; `jit=auto` is off."""

    _target_: str = "stages.train.fit"
