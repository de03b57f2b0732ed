"""Keras callbacks of a run: the best weights, early stopping, and the user's own."""

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from stages.errors import UserError
from stages.plain import state_of
from stages.reporter import Reporter
from stages.settings.train import TrainSettings


class BestWeights(keras.callbacks.Callback):
    """Keeps the weights of the epoch whose `monitor` is best; of equals, the first."""

    def __init__(self, monitor: str) -> None:
        super().__init__()
        self.monitor = monitor
        self.sign = 1 if monitor.endswith("accuracy") else -1
        self.best_epoch = 0
        self.best_value = float("nan")
        self.weights: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        value = (logs or {})[self.monitor]
        if math.isnan(self.best_value) or self.sign * value > self.sign * self.best_value:
            self.best_epoch, self.best_value = epoch + 1, value
            self.weights = self.model.get_weights()

    def restore(self) -> None:
        if self.weights:
            self.model.set_weights(self.weights)

    def save(self, path: Path, network: keras.Model) -> None:
        """Writes the best weights to `path` (`.weights.h5`), whole or not at all; `network` keeps its own.

        Args:
            network: the one that was trained or a copy of it: Keras cannot save variables that are in shards.
        """
        current = network.get_weights()
        network.set_weights(self.weights)
        save_weights(network, path)
        network.set_weights(current)


def save_weights(network: keras.Model, path: Path) -> None:
    """Writes the weights to `path` (`.weights.h5`), whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{path.name}")
    network.save_weights(partial)
    partial.replace(path)


def build_callbacks(settings: TrainSettings, reporter: Reporter) -> tuple[BestWeights, keras.callbacks.CallbackList]:
    """Returns the best weights' keeper, and all callbacks in the order in which they are called.

    Args:
        reporter: is warned of what a checkpoint cannot keep of a callback.
    """
    best = BestWeights(settings.monitor)
    callbacks: list[keras.callbacks.Callback] = [best]
    if settings.early_stopping_patience:
        mode = "max" if best.sign > 0 else "min"
        patience = settings.early_stopping_patience
        callbacks.append(keras.callbacks.EarlyStopping(settings.monitor, patience=patience, mode=mode))
    if settings.schedule.name == "plateau":
        callbacks.append(_plateau(settings))
    for index, given in enumerate(settings.callbacks):
        callbacks.append(_imported(given, index))
        left_out = state_of(callbacks[-1], "", {})[1]
        if left_out:
            name = type(callbacks[-1]).__name__
            reporter.warn(f"train.callbacks[{index}]: a checkpoint does not keep {name}'s {', '.join(left_out)}")
    return best, keras.callbacks.CallbackList(callbacks, add_history=False, add_progbar=False)


def _plateau(settings: TrainSettings) -> keras.callbacks.Callback:
    schedule = settings.schedule
    return keras.callbacks.ReduceLROnPlateau(
        settings.monitor,
        factor=schedule.decay_factor,
        patience=schedule.patience,
        min_delta=0.0,  # as early stopping has it
        min_lr=schedule.final_share * settings.optimizer.learning_rate,
        mode="max" if settings.monitor.endswith("accuracy") else "min",
    )


def _imported(given: Any, index: int) -> keras.callbacks.Callback:
    if isinstance(given, keras.callbacks.Callback):
        return given
    settings = dict(given) if isinstance(given, Mapping) else {}
    target = str(settings.pop("_target_", ""))
    module, _, name = target.rpartition(".")
    try:
        callback = getattr(importlib.import_module(module), name)(**settings)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(
            f"train.callbacks[{index}]={given} cannot be made ({error})",
            "a mapping with the `_target_` of a Keras callback and its arguments",
            "'train.callbacks=[{_target_: keras.callbacks.TerminateOnNaN}]'",
        ) from error
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise UserError(
            f"train.callbacks[{index}]: {target} would bring back weights, and train all epochs again",
            "callbacks that leave the weights alone",
        )
    if not isinstance(callback, keras.callbacks.Callback):
        raise UserError(f"train.callbacks[{index}]: {target} is no Keras callback", "a keras.callbacks.Callback")
    return callback
