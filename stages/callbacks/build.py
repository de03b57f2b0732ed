"""The callbacks of a training: built from its settings, and prepared for each of its phases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from stages.callbacks.best_weights import BestWeights
from stages.callbacks.debug import Profiler
from stages.checkpoints.state import state_of
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import as_number
from stages.settings.optimizer import PlateauSettings
from stages.settings.train import TrainSettings
from stages.targets import made


class Callbacks(keras.callbacks.CallbackList):
    """Keras' list, which keeps the numbers that callbacks add to the logs of an epoch, or replace in them."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Call all callbacks with one mapping; add the numbers that they leave in it to `logs`."""
        logs = {} if logs is None else logs
        passed: dict[str, Any] = dict(logs)
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, passed)
            passed |= numbers(passed)  # a CSVLogger, for one, cannot write a tensor
        logs |= numbers(passed)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return what is a number in `values`, as a float."""
    return {name: number for name, value in values.items() if (number := as_number(value)) is not None}


def build_callbacks(
    settings: TrainSettings,
    reporter: Reporter,
    folder: Path | None = None,
    metrics: Sequence[keras.metrics.Metric] = (),
) -> tuple[BestWeights, Callbacks]:
    """Returns the callback that keeps the best weights, and all callbacks in the order of their calls.

    Args:
        reporter: receives warnings of attributes that a checkpoint cannot hold.
        folder: the run's, for the profiler's trace. metrics: the network's own.

    Raises:
        UserError: for a callback that cannot be made, or that cannot work with these settings.
    """
    best = BestWeights(settings.monitor)
    callbacks: list[keras.callbacks.Callback] = [best]
    if settings.early_stopping_patience:
        mode = "max" if best.sign > 0 else "min"
        patience = settings.early_stopping_patience
        callbacks.append(keras.callbacks.EarlyStopping(settings.monitor, patience=patience, mode=mode))
    if isinstance(settings.schedule, PlateauSettings):
        callbacks.append(Plateau(settings, settings.schedule))
    own = {f"train.callbacks[{index}]": _imported(entry, index) for index, entry in enumerate(settings.callbacks)}
    for place, callback in own.items():
        if isinstance(callback, Profiler):
            callback.folder = str(folder or "")
        if left_out := state_of(callback, "", {})[1]:
            reporter.warn(f"{place}: a checkpoint does not keep {type(callback).__name__}'s {', '.join(left_out)}")
    _refuse_useless(own, settings, metrics)
    return best, Callbacks([*callbacks, *own.values()])


class Plateau(keras.callbacks.ReduceLROnPlateau):
    """Lowers the learning rate where `monitor` no longer improves, by the settings of the schedule `plateau`."""

    def __init__(self, settings: TrainSettings, schedule: PlateauSettings) -> None:
        self.final_share = schedule.final_share
        super().__init__(
            settings.monitor,
            factor=schedule.decay_factor,
            patience=schedule.patience,
            min_delta=0.0,  # as in early stopping
            mode="max" if settings.monitor.endswith("accuracy") else "min",
        )
        self.reset_least_rate(settings)

    def reset_least_rate(self, settings: TrainSettings) -> None:
        """Sets the least rate by the peak of the phase; Keras resets the rest in `on_train_begin`."""
        self.min_lr = self.final_share * settings.optimizer.learning_rate


def prepare_callbacks(callbacks: Callbacks, settings: TrainSettings, continues: bool) -> None:
    """Prepares all callbacks for a phase of the training, before `on_train_begin` is called for it.

    Early stopping and plateau start again in every phase, by `on_train_begin`: their patience, their best value, and
    the least learning rate, which is relative to the phase's own. The best weights are those of all phases.

    Args:
        settings: of the phase. continues: whether the run has trained before, in this phase or another; a CSVLogger
            then appends to its file.
    """
    for callback in callbacks.callbacks:
        if continues and isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
        if isinstance(callback, Plateau):
            callback.reset_least_rate(settings)


def _imported(entry: Any, index: int) -> keras.callbacks.Callback:
    if isinstance(entry, keras.callbacks.Callback):
        return entry
    settings = dict(entry) if isinstance(entry, Mapping) else {}
    target = str(settings.pop("_target_", ""))
    expected = "a mapping with the `_target_` of a Keras callback and its arguments"
    fix = "'train.callbacks=[{_target_: keras.callbacks.TerminateOnNaN}]'"
    callback = made(target, f"train.callbacks[{index}]={entry}", expected, fix, **settings)
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise UserError(
            f"train.callbacks[{index}]: {target} would bring back weights, and train all epochs again",
            "callbacks that leave the weights alone",
        )
    if not isinstance(callback, keras.callbacks.Callback):
        raise UserError(f"train.callbacks[{index}]: {target} is no Keras callback", "a keras.callbacks.Callback")
    return callback


_MONITORING = (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint, keras.callbacks.ReduceLROnPlateau)
_SETTING_RATES = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)


def _refuse_useless(
    callbacks: Mapping[str, keras.callbacks.Callback],
    settings: TrainSettings,
    metrics: Sequence[keras.metrics.Metric],
) -> None:
    """Refuse callbacks of the user's that would fail at their first use, or never do anything.

    Raises:
        UserError: for one that sets a learning rate which a schedule sets, or swaps an EMA that it does not find, or
            monitors what is in no logs, which another callback may add to.
    """
    own = [metric.name for metric in metrics]
    logs = ["loss", "accuracy", *own]
    known = [*logs, *(f"val_{name}" for name in logs), "learning_rate"]
    may_add = any(_may_add(callback) for callback in callbacks.values())
    for place, callback in callbacks.items():
        name = f"{place} {type(callback).__name__}"
        schedule = settings.schedule
        if isinstance(callback, _SETTING_RATES) and (schedule.name != "constant" or schedule.warmup_epochs):
            setting = f"schedule={schedule.name}" if schedule.name != "constant" else "schedule.warmup_epochs"
            raise UserError(
                f"{name} sets the learning rate, and so does {setting}",
                "one of the two",
                "schedule=constant" if schedule.name != "constant" else "schedule.warmup_epochs=0",
            )
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise UserError(
                f"{name} swaps an EMA of the optimizer's, which training keeps by itself",
                "the settings optimizer.ema_momentum and optimizer.ema_use",
                "optimizer.ema_momentum=0.99 optimizer.ema_use=true",
            )
        if isinstance(callback, _MONITORING) and callback.monitor not in known and not may_add:
            raise UserError(f"{name} monitors {callback.monitor}, which is in no logs", known)


def _may_add(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback may add names to the logs; those of Keras do not, unless they call a function."""
    is_keras = type(callback).__module__.startswith("keras.")
    return not is_keras or isinstance(callback, keras.callbacks.LambdaCallback)
