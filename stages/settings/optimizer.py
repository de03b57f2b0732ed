"""Settings of the optimizer and of its learning rate over a run."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from stages.errors import UserError
from stages.settings.ranges import choice, number, option, text


@dataclass(kw_only=True)
class OptimizerSettings:
    """Settings of every optimizer."""

    name: str = MISSING
    learning_rate: float = number(0.001, above=0)
    """The peak rate, for the global batch."""
    weight_decay: float = number(0.0, at_least=0, unit="fraction of a weight subtracted per step, times the rate")
    decay_exclude: list[str] = field(default_factory=lambda: ["bias", "vectors"])
    """Weights without decay: `bias` by their name, `vectors` by their single dimension (gamma, beta), and patterns of
    weights' paths such as `*embeddings`. `[]`: every weight decays."""
    clip_norm: float = number(0.0, at_least=0, unit="largest norm of all gradients together; 0: not clipped")
    """The norm is that of the global batch's gradient, after the sum over the replicas."""
    accumulation: int = number(1, at_least=1, at_most=65536, unit="parts of a per-replica batch")
    """Saves memory: a batch of 64 in 2 parts gives the gradient of 64 with the memory of 32."""
    ema_momentum: float = number(0.0, at_least=0, below=1, unit="of the EMA of the weights; 0: none is kept")
    ema_use: bool = False
    """Whether validation, the best epoch, evaluation and export take the EMA."""

    def check(self, path: str) -> None:
        if self.ema_use and not self.ema_momentum:
            raise UserError(f"{path}.ema_use=true, but no EMA is kept", "", f"{path}.ema_momentum=0.99")


@option("optimizer", "sgd")
@dataclass(kw_only=True)
class SgdSettings(OptimizerSettings):
    """Stochastic gradient descent with momentum."""

    name: str = choice("sgd", "sgd")
    learning_rate: float = number(0.01, above=0)
    momentum: float = number(0.9, at_least=0, below=1)
    nesterov: bool = False


@option("optimizer", "adam")
@dataclass(kw_only=True)
class AdamSettings(OptimizerSettings):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980)."""

    name: str = choice("adam", "adam")
    beta_1: float = number(0.9, at_least=0, below=1)
    beta_2: float = number(0.999, at_least=0, below=1)
    epsilon: float = number(1e-7, above=0)


@option("optimizer", "adamw")
@dataclass(kw_only=True)
class AdamWSettings(AdamSettings):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    name: str = choice("adamw", "adamw")
    weight_decay: float = number(0.004, at_least=0, unit="fraction of a weight subtracted per step, times the rate")


@option("optimizer", "custom")
@dataclass(kw_only=True)
class CustomOptimizerSettings(OptimizerSettings):
    """A Keras optimizer of any package: `_target_(learning_rate=…, weight_decay=…, **arguments)`."""

    _target_: str = text("", ".+", "the import path of an optimizer", "keras.optimizers.Lion")
    name: str = choice("custom", "custom")
    arguments: dict[str, Any] = field(default_factory=dict)

    def call(self) -> dict[str, Any]:
        """Returns `_target_` and the arguments that it is always called with."""
        return {"_target_": self._target_, "learning_rate": self.learning_rate, **self.arguments}


@option("schedule", "constant")
@dataclass(kw_only=True)
class ScheduleSettings:
    """The learning rate over the run, relative to `optimizer.learning_rate`: the same throughout, after a warm-up."""

    name: str = choice("constant", "constant")
    warmup_epochs: float = number(0.0, at_least=0, at_most=1e6, unit="epochs of linear growth from 0")


@option("schedule", "cosine")
@dataclass(kw_only=True)
class CosineSettings(ScheduleSettings):
    """A rate that falls along a cosine."""

    name: str = choice("cosine", "cosine")
    final_share: float = number(0.0, at_least=0, at_most=1, unit="of the rate, at the last step")


@option("schedule", "step")
@dataclass(kw_only=True)
class StepSettings(ScheduleSettings):
    """A rate that falls after given epochs."""

    name: str = choice("step", "step")
    decay_epochs: list[float] = number([15, 25], above=0, at_most=1e6, unit="epochs after which the rate falls")
    decay_factor: float = number(0.1, above=0, at_most=1, unit="of the rate, which is left")


@option("schedule", "plateau")
@dataclass(kw_only=True)
class PlateauSettings(ScheduleSettings):
    """A rate that falls when `train.monitor` stops improving."""

    name: str = choice("plateau", "plateau")
    final_share: float = number(0.0, at_least=0, at_most=1, unit="of the rate, the smallest")
    decay_factor: float = number(0.1, above=0, at_most=1, unit="of the rate, which is left")
    patience: int = number(3, at_least=1, unit="epochs without a better one before the rate falls")
    warmup_epochs: float = number(
        0.0, at_least=0, at_most=0, unit="epochs: what follows a metric cannot warm up as well"
    )


@option("schedule", "custom")
@dataclass(kw_only=True)
class CustomScheduleSettings(ScheduleSettings):
    """A schedule of any package, after the warm-up: `_target_(peak, steps, **arguments)`.

    It returns a rate, a Keras schedule, or a function from the step, a float tensor [] counted from 0, to the rate.
    """

    _target_: str = text("", ".+", "the import path of a schedule", "keras.optimizers.schedules.CosineDecay")
    name: str = choice("custom", "custom")
    arguments: dict[str, Any] = field(default_factory=dict)

    def call(self) -> dict[str, Any]:
        """Returns `_target_` and its arguments but for `peak` and `steps`."""
        return {"_target_": self._target_, **self.arguments}
