"""Settings of training: the task, the optimizer, its learning rate over a run, and the `train` stage."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import II, MISSING

from stages.errors import UserError
from stages.settings.ranges import choice, holds, number, option, text

METRICS = ("loss", "accuracy", "auc", "rmse", "mae", "r2", "macro_f1", "exact_match")
"""Metrics of the project's own tasks."""


@dataclass(kw_only=True)
class TaskSettings:
    """The task: its kind, its loss, its metrics."""

    kind: str = choice("auto", "auto", "classification", "multi_label", "regression")
    """`auto`: by the target."""
    _target_: str | None = None
    """A class of your own that extends `stages.tasks.task.Task`; null: the project's."""
    loss: dict[str, Any] = field(default_factory=dict)
    """`_target_`: a loss of Keras' or your own, and its arguments; empty: the task's."""
    metrics: list[Any] = field(default_factory=list)
    """Further metrics, each a mapping with the `_target_` of a Keras metric whose state is made of sums."""

    def check(self, path: str) -> None:
        fixes = {"loss": ".loss._target_=keras.losses.Huber", "metrics": ".metrics=[{_target_: keras.metrics.AUC}]"}
        named = [("loss", self.loss)] if self.loss else []
        for name, entry in [*named, *(("metrics", metric) for metric in self.metrics)]:
            if not isinstance(entry, Mapping) or not isinstance(entry.get("_target_"), str):
                problem = f"{path}.{name}={entry} names no function or class"
                raise UserError(problem, "a mapping with `_target_` and its arguments", f"'{path}{fixes[name]}'")


@option("task", "auto")
@dataclass(kw_only=True)
class AutoTaskSettings(TaskSettings):
    """The kind of the task follows from the target."""

    kind: str = choice("auto", "auto")
    single_logit: bool = False
    """Whether two classes get one output, a sigmoid's, and the area under the ROC curve as a metric."""


@option("task", "classification")
@dataclass(kw_only=True)
class ClassificationSettings(AutoTaskSettings):
    """One of several classes."""

    kind: str = choice("classification", "classification")


@option("task", "multi_label")
@dataclass(kw_only=True)
class MultiLabelSettings(TaskSettings):
    """Several labels, each of which holds or does not."""

    kind: str = choice("multi_label", "multi_label")


@option("task", "regression")
@dataclass(kw_only=True)
class RegressionSettings(TaskSettings):
    """One or several numbers."""

    kind: str = choice("regression", "regression")


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
    """Statistics that layers keep, such as those of BatchNorm, are averaged with the weights."""
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
    weight_decay: float | None = number(  # type: ignore[assignment]
        None, at_least=0, unit="fraction of a weight subtracted per step, times the rate; null: the optimizer's own"
    )
    arguments: dict[str, Any] = field(default_factory=dict)

    def check(self, path: str) -> None:
        super().check(path)
        for name in ("learning_rate", "weight_decay"):
            if name in self.arguments and getattr(self, name) is not None:
                problem = f"{path}.arguments.{name} with {path}.{name}: one would do nothing"
                raise UserError(problem, "the latter alone", f"'~{path}.arguments.{name}'")

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
    """Weight of an example by its class, in the loss and the metrics of training: a list, or `balanced`: examples /
    (classes × examples of it). It multiplies the example's own weight; a batch's loss is divided by the sum of the
    weights. For several labels, the factor of each label's loss where it holds, and nothing is divided by it;
    `balanced`: examples without it / examples with it."""
    monitor: str = text("val_loss", r"(val_)?\w+", "a metric of the task, of validation after `val_`", "val_loss")
    """Decides which epoch is best, and when to stop early: a metric that the task has, also of `task.metrics`."""
    restore_best: bool = True
    """Whether the weights of the best epoch are the result, not those of the last."""
    early_stopping_patience: int | None = number(
        None, at_least=0, unit="epochs without a better one, after which training stops; 0: it never stops early"
    )
    """null: a third of `epochs`, but at least 5, for tables and texts, which overfit early; 0 for images."""
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

    def patience(self, has_images: bool) -> int:
        """Return the epochs without a better one after which training stops; 0 if it never stops early.

        Args:
            has_images: whether the examples are images.
        """
        if self.early_stopping_patience is not None:
            return self.early_stopping_patience
        return 0 if has_images else max(5, self.epochs // 3)

    def check(self, path: str) -> None:
        longest = max(self.epochs, self.fine_tune_epochs)  # each phase has the schedule to itself
        falls = self.schedule.decay_epochs if isinstance(self.schedule, StepSettings) else [0.0]
        if min(falls, default=math.inf) >= longest:
            shown = ",".join(f"{epoch:g}" for epoch in falls)
            raise UserError(
                f"schedule=step never falls: schedule.decay_epochs=[{shown}], and {path}.epochs={longest}",
                f"one of them below {longest}, or schedule=constant",
                f"schedule.decay_epochs=[{longest / 2:g}]",
            )
        for name, epochs in (("epochs", self.epochs), ("fine_tune_epochs", self.fine_tune_epochs)):
            if 0 < epochs <= self.schedule.warmup_epochs:
                raise UserError(
                    f"schedule.warmup_epochs={self.schedule.warmup_epochs:g} fills all of {path}.{name}={epochs}",
                    f"less than {epochs}, as each phase warms up",
                    f"schedule.warmup_epochs={epochs / 10:g}",
                )
        weights = self.class_weights
        numbers = weights if isinstance(weights, list) else ["none"]
        is_list = any(numbers) and all(isinstance(one, (int, float)) and one >= 0 and holds(one) for one in numbers)
        if weights not in (None, "balanced") and not is_list:
            expected = "null, balanced, or a list of numbers of at least 0, one a class"
            raise UserError(
                f"{path}.class_weights={weights} weighs no classes", expected, f"{path}.class_weights=balanced"
            )

    def check_share(self, replicas: int) -> None:
        """Raises UserError where a replica would get no example; per-replica batches may differ in size."""
        if self.batch_size < replicas:
            problem = f"train.batch_size={self.batch_size} cannot be shared by {replicas} replicas"
            raise UserError(problem, f"{replicas} or more", f"train.batch_size={replicas * 32}")


@option("train", "fit")
@dataclass(kw_only=True)
class FitSettings(TrainSettings):
    """Keras takes the steps, where it gives the same weights: for networks with a `train_step`; `jit=auto` is off."""

    _target_: str = "stages.train.fit"
