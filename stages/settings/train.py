"""Settings of training: the task, the optimizer, the learning-rate schedule, and the `train` stage."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import II, MISSING

from stages.errors import UserError
from stages.settings.ranges import choice, holds, number, option, text

METRICS = (
    "loss", "accuracy", "auc", "rmse", "mae", "r2", "macro_f1", "exact_match", "mean_iou", "dice", "pixel_accuracy",
    "mase", "pinball",
)  # fmt: skip
"""Metrics of the project's own tasks."""


@dataclass(kw_only=True)
class TaskSettings:
    """Task: what is predicted, and the loss and metrics for it."""

    kind: str = choice("auto", "auto", "classification", "multi_label", "regression", "segmentation", "forecast")
    """Kind of the task. `auto`: detected from the target."""
    _target_: str | None = None
    """Import path of your own function, which changes the task of the data. null: the project's task for the kind."""
    loss: dict[str, Any] = field(default_factory=dict)
    """`_target_`: a Keras loss or your own, and its arguments. Empty: the default loss of the task."""
    metrics: list[Any] = field(default_factory=list)
    """Additional metrics, each a mapping with the `_target_` of your own metric, or of one of Keras made of sums."""

    def check(self, path: str) -> None:
        fixes = {"loss": ".loss._target_=keras.losses.Huber", "metrics": ".metrics=[{_target_: keras.metrics.AUC}]"}
        named = [("loss", self.loss)] if self.loss else []
        for name, entry in [*named, *(("metrics", metric) for metric in self.metrics)]:
            if not isinstance(entry, Mapping) or not isinstance(entry.get("_target_"), str):
                problem = f"{path}.{name}={entry} does not name a function or class"
                raise UserError(problem, "a mapping with `_target_` and its arguments", f"'{path}{fixes[name]}'")


@option("task", "auto")
@dataclass(kw_only=True)
class AutoTaskSettings(TaskSettings):
    """The kind of the task is detected from the target."""

    kind: str = choice("auto", "auto")
    single_logit: bool = False
    """Whether a network for two classes has one output with a sigmoid, and the area under the ROC curve as a metric."""


@option("task", "classification")
@dataclass(kw_only=True)
class ClassificationSettings(AutoTaskSettings):
    """Predicts one of several classes."""

    kind: str = choice("classification", "classification")


@option("task", "multi_label")
@dataclass(kw_only=True)
class MultiLabelSettings(TaskSettings):
    """Predicts several labels, each of which applies or does not."""

    kind: str = choice("multi_label", "multi_label")


@option("task", "regression")
@dataclass(kw_only=True)
class RegressionSettings(TaskSettings):
    """Predicts one or more numbers."""

    kind: str = choice("regression", "regression")


@option("task", "segmentation")
@dataclass(kw_only=True)
class SegmentationSettings(TaskSettings):
    """Predicts the class of each pixel of an image."""

    kind: str = choice("segmentation", "segmentation")


@option("task", "forecast")
@dataclass(kw_only=True)
class ForecastSettings(TaskSettings):
    """Predicts the next values of time series."""

    kind: str = choice("forecast", "forecast")
    quantiles: list[float] = number([], above=0, below=1, unit="probability")
    """Quantiles to predict, such as `[0.1,0.5,0.9]`, with the median as the forecast. Empty: only the forecast."""

    def check(self, path: str) -> None:
        super().check(path)
        self._check_quantiles(path)

    def _check_quantiles(self, path: str) -> None:
        if self.quantiles and (sorted({*self.quantiles}) != self.quantiles or 0.5 not in self.quantiles):
            given = ", ".join(f"{value:g}" for value in self.quantiles)
            fix = f"'{path}.quantiles=[{','.join(f'{value:g}' for value in sorted({*self.quantiles, 0.5}))}]'"
            raise UserError(f"{path}.quantiles={given} is not valid", "increasing numbers, one of which is 0.5", fix)


@dataclass(kw_only=True)
class OptimizerSettings:
    """Settings that every optimizer has."""

    name: str = MISSING
    learning_rate: float = number(0.001, above=0)
    """Peak learning rate, for the global batch."""
    weight_decay: float = number(0.0, at_least=0, unit="fraction of a weight per step")
    """Decoupled weight decay: the fraction of a weight, times the learning rate, that each step subtracts."""
    decay_exclude: list[str] = field(default_factory=lambda: ["bias", "vectors"])
    """Weights without decay: `bias` (weights of that name), `vectors` (weights with one dimension, such as gamma and
    beta), and patterns of weight paths such as `*embeddings`. `[]`: every weight decays."""
    clip_norm: float = number(0.0, at_least=0, unit="norm of all gradients together; 0: off")
    """Largest norm of all gradients together, to which larger gradients are clipped. It applies to the gradient of the
    global batch, after the sum over the replicas. 0: no clipping."""
    accumulation: int = number(1, at_least=1, at_most=65536, unit="parts of a per-replica batch")
    """Number of parts into which a per-replica batch is split to save memory. A batch of 64 examples in 2 parts gives
    the gradient of 64 with the memory of 32."""
    ema_momentum: float = number(0.0, at_least=0, below=1, unit="momentum; 0: off")
    """Momentum of the exponential moving average (EMA) of the weights. It includes the statistics of layers such as
    BatchNorm. 0: no EMA."""
    ema_use: bool = False
    """Whether validation, the choice of the best epoch, evaluation and export use the EMA of the weights."""

    def check(self, path: str) -> None:
        if self.ema_use and not self.ema_momentum:
            raise UserError(
                f"{path}.ema_use=true requires an EMA, but {path}.ema_momentum is 0", "", f"{path}.ema_momentum=0.99"
            )


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
    weight_decay: float = number(0.004, at_least=0, unit="fraction of a weight per step")
    """Decoupled weight decay: the fraction of a weight, times the learning rate, that each step subtracts."""


@option("optimizer", "custom")
@dataclass(kw_only=True)
class CustomOptimizerSettings(OptimizerSettings):
    """A Keras optimizer from any package: `_target_(learning_rate=…, weight_decay=…, **arguments)`."""

    _target_: str = text("", ".+", "the import path of an optimizer", "keras.optimizers.Lion")
    name: str = choice("custom", "custom")
    weight_decay: float | None = number(  # type: ignore[assignment]
        None, at_least=0, unit="fraction of a weight per step"
    )
    """Weight decay of the optimizer. null: the optimizer's default."""
    arguments: dict[str, Any] = field(default_factory=dict)

    def check(self, path: str) -> None:
        super().check(path)
        for name in ("learning_rate", "weight_decay"):
            if name in self.arguments and getattr(self, name) is not None:
                problem = f"{path}.arguments.{name} and {path}.{name} are both set"
                raise UserError(problem, f"only {path}.{name}", f"'~{path}.arguments.{name}'")

    def call(self) -> dict[str, Any]:
        """Return `_target_` and the arguments with which it is always called."""
        return {"_target_": self._target_, "learning_rate": self.learning_rate, **self.arguments}


@option("schedule", "constant")
@dataclass(kw_only=True)
class ScheduleSettings:
    """A constant learning rate, `optimizer.learning_rate`, after an optional warm-up."""

    name: str = choice("constant", "constant")
    warmup_epochs: float = number(0.0, at_least=0, at_most=1e6, unit="epochs")
    """Number of epochs in which the learning rate grows linearly from 0 to its peak."""


@option("schedule", "cosine")
@dataclass(kw_only=True)
class CosineSettings(ScheduleSettings):
    """A learning rate that falls along a cosine."""

    name: str = choice("cosine", "cosine")
    final_share: float = number(0.0, at_least=0, at_most=1, unit="fraction of the peak rate")
    """Learning rate at the last step, as a fraction of the peak rate."""


@option("schedule", "step")
@dataclass(kw_only=True)
class StepSettings(ScheduleSettings):
    """A learning rate that drops after given epochs."""

    name: str = choice("step", "step")
    decay_epochs: list[float] = number([15, 25], above=0, at_most=1e6, unit="epochs")
    """Epochs after which the learning rate drops."""
    decay_factor: float = number(0.1, above=0, at_most=1, unit="learning-rate multiplier")
    """Factor by which the learning rate is multiplied at each drop."""


@option("schedule", "plateau")
@dataclass(kw_only=True)
class PlateauSettings(ScheduleSettings):
    """A learning rate that drops when `train.monitor` stops improving."""

    name: str = choice("plateau", "plateau")
    final_share: float = number(0.0, at_least=0, at_most=1, unit="fraction of the peak rate")
    """Smallest learning rate, as a fraction of the peak rate."""
    decay_factor: float = number(0.1, above=0, at_most=1, unit="learning-rate multiplier")
    """Factor by which the learning rate is multiplied at each drop."""
    patience: int = number(3, at_least=1, unit="epochs")
    """Number of epochs without improvement before the learning rate drops."""
    warmup_epochs: float = number(0.0, at_least=0, at_most=0, unit="epochs; schedule=plateau has no warm-up")
    """Always 0: this schedule does not support a warm-up."""


@option("schedule", "custom")
@dataclass(kw_only=True)
class CustomScheduleSettings(ScheduleSettings):
    """A schedule from any package, after the warm-up: `_target_(peak, steps, **arguments)`.

    It returns a learning rate, a Keras schedule, or a function from the step (a float tensor [], counted from 0) to the
    learning rate.
    """

    _target_: str = text("", ".+", "the import path of a schedule", "keras.optimizers.schedules.CosineDecay")
    name: str = choice("custom", "custom")
    arguments: dict[str, Any] = field(default_factory=dict)

    def call(self) -> dict[str, Any]:
        """Return `_target_` and its arguments, without `peak` and `steps`."""
        return {"_target_": self._target_, **self.arguments}


@option("train", "loop")
@dataclass(kw_only=True)
class TrainSettings:
    """The training loop, for every strategy and precision."""

    _target_: str = "stages.train.train"
    epochs: int = number(30, at_least=1, unit="passes over the training split")
    batch_size: int = number(64, at_least=1, unit="examples per global batch, over all replicas")
    steps_per_call: int | None = number(None, at_least=1, unit="steps per call")
    """Number of steps per call of the compiled function. null: as many as take about 0.3 s."""
    jit: str = choice("auto", "auto", "on", "off")
    """Whether to compile the training step with XLA. `auto`: on for GPUs, off for CPUs."""
    label_smoothing: float = number(0.0, at_least=0, below=1, unit="fraction of the target")
    """Fraction of the target that is spread over all classes."""
    class_weights: Any = None
    """Weight of each class in the loss and the metrics of training: a list, or `balanced`, which is examples / (classes
    × examples of the class). It multiplies the example's own weight, and the loss of a batch is divided by the sum of
    the weights. For several labels it multiplies a label's loss if the label applies, without that division; `balanced`
    is then examples without the label / examples with it. For segmentation it multiplies the losses of pixels, relative
    to a mean of 1 over the pixels of the training split."""
    monitor: str = text(
        "val_loss", r"(val_)?\w+", "a metric of the task, with the prefix val_ for validation", "val_loss"
    )
    """Metric that decides which epoch is best and when to stop early. Any metric of the task, `task.metrics`
    included."""
    calibrate: bool = False
    """Whether the weights of the last layer are divided by a temperature, fitted on the validation split, after which
    probabilities are neither too high nor too low. For classes and labels. A forecast gets a share of the seasonal
    naive forecast that is fitted there, too. The default for tables and series is true."""
    restore_best: bool = True
    """Whether the run ends with the weights of the best epoch, instead of those of the last epoch."""
    early_stopping_patience: int | None = number(None, at_least=0, unit="epochs; 0: never")
    """Number of epochs without improvement after which training stops. 0: training never stops early. null: a third of
    `epochs`, but at least 5, for tables and texts, which overfit early; 0 for images."""
    checkpoint_every_seconds: float = number(30.0, above=0, unit="seconds")
    """Seconds between checkpoints, which are written while training continues."""
    checkpoint_every_steps: int | None = number(None, at_least=1, unit="steps")
    """Steps between checkpoints, in addition to `checkpoint_every_seconds`."""
    checkpoints_kept: int = number(2, at_least=1, unit="checkpoints")
    """Number of the latest checkpoints to keep while the run is not finished. Each also contains the best weights. A
    finished run keeps only its last checkpoint."""
    fine_tune_epochs: int = number(0, at_least=0, unit="epochs after train.epochs")
    """Number of epochs, after `train.epochs`, that fine-tune the last layers of a frozen backbone. They are a second
    phase of the same run, with its own optimizer and schedule."""
    fine_tune_layers: int = number(20, at_least=1, unit="layers")
    """Number of layers to fine-tune, counted from the end of the backbone. BatchNorm layers stay frozen:
    keras.io/guides/transfer_learning."""
    fine_tune_rate: float = number(0.1, above=0, unit="times optimizer.learning_rate")
    """Learning rate of the second phase, as a multiple of `optimizer.learning_rate`."""
    cache_features: str = choice("auto", "auto", "off")
    """`auto`: if the inputs are not augmented, the features of a frozen backbone are computed once, and the head trains
    on them. `off`: they are computed in every step."""
    callbacks: list[Any] = field(default_factory=list)
    """Keras callbacks, each a mapping with a `_target_` such as `keras.callbacks.TerminateOnNaN`."""
    optimizer: Any = II("optimizer")
    schedule: ScheduleSettings = II("schedule")
    seed: int = II("seed")

    @property
    def all_epochs(self) -> int:
        """Epochs of both phases, unless training stops early."""
        return self.epochs + self.fine_tune_epochs

    def patience(self, has_images: bool) -> int:
        """Return the number of epochs without improvement after which training stops; 0 if it never stops early.

        Args:
            has_images: Whether the examples are images.
        """
        if self.early_stopping_patience is not None:
            return self.early_stopping_patience
        return 0 if has_images else max(5, self.epochs // 3)

    def check(self, path: str) -> None:
        longest = max(self.epochs, self.fine_tune_epochs)  # each phase runs the whole schedule
        falls = self.schedule.decay_epochs if isinstance(self.schedule, StepSettings) else [0.0]
        if min(falls, default=math.inf) >= longest:
            shown = ",".join(f"{epoch:g}" for epoch in falls)
            raise UserError(
                f"schedule.decay_epochs=[{shown}] never takes effect, because training has only {longest} epochs",
                f"at least one epoch below {longest}, or schedule=constant",
                f"schedule.decay_epochs=[{longest / 2:g}]",
            )
        for name, epochs in (("epochs", self.epochs), ("fine_tune_epochs", self.fine_tune_epochs)):
            if 0 < epochs <= self.schedule.warmup_epochs:
                raise UserError(
                    f"schedule.warmup_epochs={self.schedule.warmup_epochs:g} leaves no epoch of {path}.{name}={epochs}",
                    f"less than {epochs}, because each phase starts with the warm-up",
                    f"schedule.warmup_epochs={epochs / 10:g}",
                )
        weights = self.class_weights
        numbers = weights if isinstance(weights, list) else ["none"]
        is_list = any(numbers) and all(isinstance(one, (int, float)) and one >= 0 and holds(one) for one in numbers)
        if weights not in (None, "balanced") and not is_list:
            expected = "null, balanced, or a list of non-negative numbers, one per class"
            raise UserError(f"{path}.class_weights={weights} is not valid", expected, f"{path}.class_weights=balanced")

    def check_share(self, replicas: int) -> None:
        """Raise UserError if a replica would get no example. Per-replica batches may differ in size."""
        if self.batch_size < replicas:
            problem = f"train.batch_size={self.batch_size} is too small for {replicas} replicas"
            raise UserError(problem, f"at least {replicas}", f"train.batch_size={replicas * 32}")


@option("train", "fit")
@dataclass(kw_only=True)
class FitSettings(TrainSettings):
    """The training loop with Keras' own training step, for networks that define a `train_step`. `jit=auto` is off.

    It is refused for settings with which Keras would compute different weights.
    """

    _target_: str = "stages.train.fit"
