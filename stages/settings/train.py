"""Settings of the `train` stage, with its optimizer and learning-rate schedule."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II, MISSING

from stages.errors import UserError
from stages.settings.ranges import choice, number


@dataclass(kw_only=True)
class OptimizerSettings:
    """What every optimizer shares."""

    name: str = MISSING
    learning_rate: float = number(0.001, above=0)
    """The peak rate, for the global batch."""


@dataclass(kw_only=True)
class SgdSettings(OptimizerSettings):
    """Stochastic gradient descent with momentum."""

    name: str = choice("sgd", "sgd")
    learning_rate: float = number(0.01, above=0)
    momentum: float = number(0.9, at_least=0, below=1)
    nesterov: bool = False


@dataclass(kw_only=True)
class AdamSettings(OptimizerSettings):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980)."""

    name: str = choice("adam", "adam")
    beta_1: float = number(0.9, at_least=0, below=1)
    beta_2: float = number(0.999, at_least=0, below=1)
    epsilon: float = number(1e-7, above=0)


@dataclass(kw_only=True)
class AdamWSettings(AdamSettings):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    name: str = choice("adamw", "adamw")
    weight_decay: float = number(0.004, at_least=0, unit="share of a weight taken off per step, times the rate")


@dataclass(kw_only=True)
class ScheduleSettings:
    """The learning rate over the run, as a share of `optimizer.learning_rate`."""

    name: str = choice("constant", "constant", "cosine", "step")
    warmup_epochs: float = number(0.0, at_least=0, unit="epochs of linear growth from 0")
    final_share: float = number(0.0, at_least=0, at_most=1)
    """`cosine`: what is left of the rate at the last step."""
    decay_epochs: list[float] = number([], above=0, unit="epochs after which the rate falls")
    """`step`: when the rate is multiplied by `decay_factor`."""
    decay_factor: float = number(0.1, above=0, at_most=1)


@dataclass(kw_only=True)
class TrainSettings:
    """The training loop."""

    _target_: str = "stages.train.train"
    epochs: int = number(5, at_least=1, unit="passes over the training split")
    batch_size: int = number(64, at_least=1, unit="examples of the global batch, over all replicas")
    steps_per_call: int = number(16, at_least=1, unit="steps in one call of the compiled function")
    monitor: str = choice("val_loss", "val_loss", "val_accuracy", "loss", "accuracy")
    """Decides which epoch is best, and when to stop early."""
    restore_best: bool = True
    """Whether the weights of the best epoch are the result, not those of the last."""
    early_stopping_patience: int = number(0, at_least=0, unit="epochs without a better one; 0: never stop early")
    callbacks: list[Any] = field(default_factory=list)
    """Keras callbacks, each a mapping with `_target_`, such as `keras.callbacks.ReduceLROnPlateau`."""
    optimizer: Any = II("optimizer")
    schedule: ScheduleSettings = II("schedule")
    seed: int = II("seed")

    def check(self, path: str) -> None:
        if self.schedule.warmup_epochs >= self.epochs:
            raise UserError(
                f"schedule.warmup_epochs={self.schedule.warmup_epochs:g} fills all of {path}.epochs={self.epochs}",
                f"less than {self.epochs}",
                f"schedule.warmup_epochs={self.epochs / 10:g}",
            )

    def check_share(self, replicas: int) -> None:
        """Raises UserError where some replica would get no example of any batch; shares need not be equal."""
        if self.batch_size < replicas:
            raise UserError(
                f"train.batch_size={self.batch_size} cannot be shared by {replicas} replicas",
                f"{replicas} or more",
                f"train.batch_size={replicas * 32}",
            )
