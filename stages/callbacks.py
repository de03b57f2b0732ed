"""The callbacks of a training: the built-in ones, those of debug runs, and those of the user."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.checkpoints.attributes import state_of
from stages.errors import UserError
from stages.networks.keras_internals import all_layers
from stages.reporter import Reporter
from stages.results import as_number
from stages.settings.train import PlateauSettings, TrainSettings
from stages.storage.atomic import atomic_write
from stages.targets import made_of
from stages.tasks.task import Task

FOLDER = "profile"
"""Name of the profiler's folder in a run's folder."""

TRACED_EPOCH = 1
"""Index of the epoch that is profiled. In the first one, TensorFlow traces and compiles the step."""


class BestWeights(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the best `monitor`, the first one if several are equal.

    A value that is not finite is never the best.
    """

    def __init__(self, monitor: str, is_higher_better: bool) -> None:
        super().__init__()
        self.monitor = monitor
        self.sign = 1 if is_higher_better else -1
        self.best_epoch = 0
        self.best_value = float("nan")
        self.weights: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        value = (logs or {})[self.monitor]
        is_better = math.isfinite(value) and self.sign * value > self.sign * self.best_value
        if is_better or not math.isfinite(self.best_value):  # until one is finite, the weights are the last epoch's
            self.best_epoch = epoch + 1
            self.best_value = value
            self.weights = self.model.get_weights()

    def restore(self) -> None:
        if self.weights:
            self.model.set_weights(self.weights)

    def save(self, path: Path, network: keras.Model) -> None:
        """Write the best weights to a file, atomically. The weights of `network` do not change.

        Args:
            path: The file, which ends with `.weights.h5`.
            network: The trained network or a copy of it.
        """
        current = network.get_weights()
        network.set_weights(self.weights)
        save_weights(network, path)
        network.set_weights(current)


def save_weights(network: keras.Model, path: Path) -> None:
    """Write the weights to `path`, which ends with `.weights.h5`, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, network.save_weights)


class Profiler(keras.callbacks.Callback):
    """Traces at least `steps` steps of the second epoch to the run's folder. Only whole calls are traced."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.folder = ""  # text, which a checkpoint can contain
        """The run's folder, which the training sets. Empty: nothing is traced."""
        self._is_on = False

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        if epoch == TRACED_EPOCH and self.folder:
            tf.profiler.experimental.start(str(Path(self.folder) / FOLDER))
            self._is_on = True

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        if batch + 1 >= self.steps:
            self._stop()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._is_on:
            self._is_on = False
            tf.profiler.experimental.stop()


class OneBatch(keras.callbacks.Callback):
    """Switches dropout and noise off before the first step is traced, and stops when the loss reaches `enough`."""

    def __init__(self, enough: float) -> None:
        super().__init__()
        self.enough = enough

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        switch_noise_off(model)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        if (logs or {})["loss"] <= self.enough:
            self.model.stop_training = True


def switch_noise_off(network: keras.Model) -> None:
    """Set the rates of all layers in `network` with dropout or noise to 0."""
    for layer in all_layers(network):
        if hasattr(layer, "seed_generator"):
            for setting in {"rate", "stddev"} & vars(layer).keys():
                setattr(layer, setting, 0.0)


class Callbacks(keras.callbacks.CallbackList):
    """Keras' list of callbacks, which keeps the numbers that they add to the logs of an epoch, or replace in them."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        super().__init__(callbacks)
        self.with_initial = [(callback, [state_of(callback, "", {})[0]]) for callback in callbacks]
        """Each callback with the attributes that it had at first, and after `on_train_begin`."""

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        for callback, known in self.with_initial:
            known[1:] = [state_of(callback, "", {})[0]]

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Call all callbacks with one mapping; add the numbers that they leave in it to `logs`."""
        logs = {} if logs is None else logs
        passed: dict[str, Any] = dict(logs)
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, passed)
            if isinstance(callback, _MONITORING) and not math.isfinite(callback.best or 0.0):
                callback.best = None  # no later value would be better than nan, or than inf
            passed |= numbers(passed)  # a CSVLogger, for one, cannot write a tensor
        logs |= numbers(passed)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in `values` as floats."""
    return {name: number for name, value in values.items() if (number := as_number(value)) is not None}


def build_callbacks(
    settings: TrainSettings,
    task: Task,
    reporter: Reporter,
    folder: Path | None = None,
    trained: Sequence[str] | None = None,
) -> tuple[BestWeights, Callbacks]:
    """Return the callback that keeps the best weights, and all callbacks in the order of their calls.

    Args:
        settings: The settings of the training.
        task: The task, which has the metrics of validation.
        reporter: Receives warnings about attributes that a checkpoint cannot hold.
        folder: The run's folder, for the trace of the profiler.
        trained: The names of the metrics that training logs; None: those of the task.

    Raises:
        UserError: For a callback that cannot work with these settings.
    """
    logs = [f"val_{name}" for name in ("loss", *task.measured)]
    logs += ["loss", *(task.measured if trained is None else trained)]
    if settings.monitor not in logs:
        raise UserError(
            f"train.monitor={settings.monitor} is not a metric of this task", logs, f"train.monitor=val_{task.primary}"
        )
    is_higher_better = task.is_higher_better(settings.monitor)
    best = BestWeights(settings.monitor, is_higher_better)
    mode = "max" if is_higher_better else "min"
    callbacks: list[keras.callbacks.Callback] = [best]
    if settings.early_stopping_patience:
        patience = settings.early_stopping_patience
        callbacks.append(keras.callbacks.EarlyStopping(settings.monitor, patience=patience, mode=mode))
    if isinstance(settings.schedule, PlateauSettings):
        callbacks.append(
            keras.callbacks.ReduceLROnPlateau(
                settings.monitor,
                factor=settings.schedule.decay_factor,
                patience=settings.schedule.patience,
                min_delta=0.0,  # as in early stopping
                mode=mode,
            )
        )
    made = [one if isinstance(one, keras.callbacks.Callback) else made_of(one) for one in settings.callbacks]
    own: dict[str, keras.callbacks.Callback] = {f"train.callbacks[{place}]": one for place, one in enumerate(made)}
    for place, callback in own.items():
        if isinstance(callback, Profiler):
            callback.folder = str(folder or "")
        if isinstance(callback, _MONITORING) and callback.mode == "auto":  # Keras knows its own metrics' alone
            monitor = callback.monitor.removeprefix("val_")
            if monitor in ("loss", *task.measured):
                callback.mode = "max" if task.is_higher_better(monitor) else "min"
        if left_out := state_of(callback, "", {})[1]:
            lost = ", ".join(left_out)
            reporter.warn(
                f"{place}: checkpoints do not include these attributes of {type(callback).__name__}, so a resumed run "
                f"starts without them: {lost}"
            )
    _refuse_useless(own, settings, logs)
    return best, Callbacks([*callbacks, *own.values()])


def prepare_callbacks(callbacks: Callbacks, settings: TrainSettings, continues: bool) -> None:
    """Prepare all callbacks for a phase of the training, before `on_train_begin` is called for it.

    Early stopping and plateau start again in every phase, by `on_train_begin`: their patience, their best value, and
    the smallest learning rate, which is relative to the phase's peak. The best weights are those of all phases.

    Args:
        callbacks: The callbacks.
        settings: The settings of the phase.
        continues: Whether the run has trained before, in this phase or an earlier one. A CSVLogger then appends to its
            file.
    """
    for callback in callbacks.callbacks:
        if continues and isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
        if isinstance(settings.schedule, PlateauSettings) and isinstance(callback, keras.callbacks.ReduceLROnPlateau):
            callback.min_lr = settings.schedule.final_share * settings.optimizer.learning_rate


_MONITORING = (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint, keras.callbacks.ReduceLROnPlateau)
_SETTING_RATES = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)


def _refuse_useless(
    callbacks: Mapping[str, keras.callbacks.Callback], settings: TrainSettings, logs: Sequence[str]
) -> None:
    """Refuse callbacks of the user that would fail at their first use, or never do anything.

    Raises:
        UserError: For a callback that sets a learning rate which a schedule sets, monitors a metric that is not logged,
            or swaps the weights without the statistics of BatchNorm.
    """
    known = [*logs, "learning_rate"]
    adding = [c for c in callbacks.values() if not type(c).__module__.startswith("keras.")]
    adding += [c for c in callbacks.values() if isinstance(c, keras.callbacks.LambdaCallback)]
    schedule = settings.schedule
    for place, callback in callbacks.items():
        name = f"{place} {type(callback).__name__}"
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            problem = f"{name} replaces the weights with their EMA, but not the statistics of BatchNorm"
            momentum = settings.optimizer.ema_momentum or 0.99
            fix = f"'train.callbacks=[]' optimizer.ema_momentum={momentum:g} optimizer.ema_use=true"
            raise UserError(problem, "optimizer.ema_use=true, which averages both", fix)
        if isinstance(callback, _SETTING_RATES) and (schedule.name != "constant" or schedule.warmup_epochs):
            problem = f"{name} and schedule={schedule.name}, including its warm-up, both set the learning rate"
            raise UserError(problem, "only one of them", "schedule=constant schedule.warmup_epochs=0")
        if isinstance(callback, _MONITORING) and callback.monitor not in known and not adding:
            raise UserError(f"{name} monitors {callback.monitor}, which is not logged", known)
