"""Keras optimizers and learning-rate schedules from their settings."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import keras
import numpy as np

from stages.errors import UserError
from stages.settings import train as kinds
from stages.targets import made

Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule


def build_optimizer(settings: kinds.OptimizerSettings, rate: Rate) -> keras.optimizers.Optimizer:
    """Return the optimizer. If `rate` is a number, it becomes a variable, so that callbacks may set it.

    Accumulation and the EMA belong to the training step. Call this, and `learning_rate`, in `keras_floats` of the
    network's policy.
    """
    optimizer = (
        _custom(settings, rate) if isinstance(settings, kinds.CustomOptimizerSettings) else _built(settings, rate)
    )
    if optimizer.weight_decay:
        optimizer.weight_decay = _exact(optimizer.weight_decay)  # TensorFlow casts Python's numbers by way of float32
    if settings.clip_norm:
        if name := clipping_of(optimizer):
            problem = f"optimizer.clip_norm={settings.clip_norm:g} cannot be combined with the optimizer's own {name}"
            raise UserError(problem, "only one of them", "optimizer.clip_norm=0")
        optimizer.global_clipnorm = settings.clip_norm
    return optimizer


def clipping_of(optimizer: keras.optimizers.Optimizer) -> str:
    """Return the name of the setting by which `optimizer` clips gradients; empty if it does not."""
    return next((name for name in ("clipnorm", "global_clipnorm", "clipvalue") if getattr(optimizer, name, None)), "")


_KERAS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}


def _built(settings: kinds.OptimizerSettings, rate: Rate) -> keras.optimizers.Optimizer:
    common = {field.name for field in fields(kinds.OptimizerSettings)}
    arguments = {name: value for name, value in vars(settings).items() if name not in common}
    decay = settings.weight_decay if settings.name == "adamw" else settings.weight_decay or None
    return _KERAS[settings.name](rate, weight_decay=decay, **arguments)


_OF_TRAINING = ("global_clipnorm", "use_ema", "gradient_accumulation_steps", "loss_scale_factor")
"""Arguments of `keras.optimizers.Optimizer` that change how it applies gradients. Use the settings instead."""


def _custom(settings: kinds.CustomOptimizerSettings, rate: Rate) -> keras.optimizers.Optimizer:
    """Return the optimizer that `settings` name."""
    arguments = dict(settings.arguments)
    if settings.weight_decay is not None:
        arguments["weight_decay"] = settings.weight_decay
    place = f"optimizer._target_={settings._target_}"
    needed = "a subclass of keras.optimizers.Optimizer that accepts learning_rate and optimizer.arguments"
    fix = "optimizer._target_=keras.optimizers.Lion"
    found = made(keras.optimizers.Optimizer, settings._target_, place, needed, fix, learning_rate=rate, **arguments)
    optimizer: keras.optimizers.Optimizer = found
    if settings.weight_decay is not None and "adam_weight_decay" in vars(optimizer).keys() - arguments.keys():
        optimizer.adam_weight_decay = arguments["weight_decay"]  # Muon's, of the weights that it leaves to Adam
    if refused := [name for name in _OF_TRAINING if getattr(optimizer, name, None)]:
        problem = f"{place} sets {refused[0]}, which has a setting of its own here"
        raise UserError(problem, "optimizer.clip_norm, optimizer.ema_momentum, optimizer.accumulation or precision")
    return optimizer


def _exact(number: float) -> float:
    """Return a number that Keras' schedules convert to its default dtype. They convert Python's numbers to float32."""
    return np.float64(number) if keras.config.floatx() == "float64" else number


_BIAS = re.compile(r"(^|_)bias(es)?(_|$)")


def decay_excluded(network: keras.Model, entries: Sequence[str]) -> list[keras.Variable]:
    """Return the weights of `network` that do not decay, by `optimizer.decay_exclude`.

    As in timm and nanoGPT, biases and weights with a single dimension, such as the scales of normalizations, do not
    decay by default. Embeddings do.

    Raises:
        UserError: If a pattern does not match any weight.
    """
    known: dict[str, Callable[[keras.Variable], bool]] = {
        "bias": lambda variable: _BIAS.search(variable.name) is not None,
        "vectors": lambda variable: len(variable.shape) <= 1,
        "embeddings": lambda variable: variable.name == "embeddings",
        "factors": lambda variable: variable.path.endswith("factors/kernel"),
    }
    for entry in entries:
        if entry not in known and not any(fnmatchcase(variable.path, entry) for variable in network.variables):
            raise UserError(
                f"optimizer.decay_exclude={entry} does not match any weight of the network",
                [*known, *(variable.path for variable in network.trainable_variables)],
                "'optimizer.decay_exclude=[bias,vectors]'",
            )

    def is_excluded(variable: keras.Variable) -> bool:
        return any(known[entry](variable) if entry in known else fnmatchcase(variable.path, entry) for entry in entries)

    return [variable for variable in network.trainable_variables if is_excluded(variable)]


def exclude_from_decay(optimizer: keras.optimizers.Optimizer, network: keras.Model, entries: Sequence[str]) -> None:
    """Exclude weights from weight decay, see `decay_excluded`. Call this before the optimizer is built."""
    optimizer.exclude_from_weight_decay([variable.value for variable in decay_excluded(network, entries)])


def learning_rate(
    peak: float, settings: kinds.ScheduleSettings, steps_per_epoch: int, epochs: int, shift: int = 0
) -> Rate:
    """Return the learning rate as a function of the step, counted from 0, or as a number if it is constant.

    Args:
        peak: The peak learning rate.
        settings: The schedule. It counts in epochs, so it does not depend on the batch size.
        steps_per_epoch: The number of steps of an epoch.
        epochs: The number of epochs.
        shift: The number of steps of the schedule before the first step of the optimizer.
    """
    total = steps_per_epoch * epochs
    warmup = min(round(settings.warmup_epochs * steps_per_epoch), total - 1)
    peak = _exact(peak)
    after: Any = peak
    if isinstance(settings, kinds.CosineSettings):
        after = keras.optimizers.schedules.CosineDecay(peak, total - warmup, alpha=settings.final_share)
    elif isinstance(settings, kinds.StepSettings) and settings.decay_epochs:
        # Keras keeps a rate through the boundary: the last step of the epoch, not the first of the next.
        boundaries = [round(epoch * steps_per_epoch) - 1 for epoch in sorted(settings.decay_epochs)]
        rates = [peak * settings.decay_factor**index for index in range(len(boundaries) + 1)]
        after = keras.optimizers.schedules.PiecewiseConstantDecay([step - warmup for step in boundaries], rates)
    elif isinstance(settings, kinds.CustomScheduleSettings):
        after = _custom_schedule(settings, peak, total - warmup)
    is_own = callable(after) and not isinstance(after, keras.optimizers.schedules.LearningRateSchedule)
    if warmup or is_own or (shift and callable(after)):
        return Schedule(peak, warmup, after, shift)
    return after


def _custom_schedule(settings: kinds.CustomScheduleSettings, peak: float, steps: int) -> Any:
    expected = "a function (peak, steps, **arguments) that returns a Keras schedule, or a function of the step"
    fix = "schedule._target_=keras.optimizers.schedules.CosineDecay"
    place = f"schedule._target_={settings._target_}"
    schedule = made(object, settings._target_, place, expected, fix, peak, steps, **settings.arguments)
    return schedule if callable(schedule) else _exact(float(schedule))


def last_rate(optimizer: keras.optimizers.Optimizer, rate: Rate) -> float:
    """Return the rate of the optimizer's last step; `learning_rate` is already the rate of the next one."""
    value = rate(optimizer.iterations - 1) if callable(rate) else optimizer.learning_rate
    return float(keras.ops.convert_to_numpy(value))


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear growth from 0 to `peak` over `warmup` steps, then `after`: a rate, or a function of the steps since.

    Attributes:
        shift: The number of steps of the schedule before the first step of the optimizer.
    """

    def __init__(self, peak: float, warmup: int, after: Any, shift: int = 0) -> None:
        self.peak = peak
        self.warmup = warmup
        self.after = after
        self.shift = shift

    def __call__(self, step: Any) -> Any:
        step = keras.ops.cast(step + self.shift, "float64" if isinstance(self.peak, np.float64) else "float32")
        afterwards = self.after(keras.ops.maximum(step - self.warmup, 0.0)) if callable(self.after) else self.after
        if not self.warmup:
            return afterwards
        return keras.ops.where(step < self.warmup, self.peak * (step + 1.0) / self.warmup, afterwards)

    def get_config(self) -> dict[str, Any]:
        after = keras.saving.serialize_keras_object(self.after) if callable(self.after) else self.after
        return {"peak": self.peak, "warmup": self.warmup, "after": after, "shift": self.shift}
