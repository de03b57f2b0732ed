"""Keras callbacks of a run: best weights, early stopping, and custom ones."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from stages.callbacks.profiler import Profiler
from stages.callbacks.rules import refuse_useless
from stages.callbacks.timing import Timing
from stages.checkpoints.serialization import state_of
from stages.errors import UserError
from stages.reporter import Reporter
from stages.results import as_number
from stages.settings.train import TrainSettings
from stages.storage.atomic import atomic_write
from stages.targets import import_target


class Callbacks(keras.callbacks.CallbackList):
    """Calls each hook of all callbacks in order, with one mapping of logs, and keeps the values that they change.

    Keras' own list passes every hook a copy, so that values which a callback adds reach only the callbacks after it.
    Here values that are added or replaced during an epoch are passed to the hooks at its end, and become part of
    `logs`. Of several values of one name in an epoch the last counts.

    added: such values of the current epoch, by the names of the logs; those added in a validation get the prefix
        `val_`. outside: those added at the beginning or the end of training.
    logs: those of the last completed epoch, numbers alone.
    between: seconds between the last two hooks, up to the start of the current one.
    names: of the user's own callbacks, by their `id`, as errors in them say.

    Args:
        timing: counts the time of the hooks. options: of `keras.callbacks.CallbackList`.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        warn: Callable[[str], None],
        timing: Timing | None = None,
        names: Mapping[int, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(list(callbacks), **options)
        self.names = names or {}
        self.timing = timing or Timing()
        self.between = 0.0
        self._hook_ended = time.perf_counter()
        self.added: dict[str, float] = {}
        self.outside: dict[str, float] = {}
        self.logs: dict[str, float] = {}
        self._warn = warn
        self._warned: set[str] = set()

    def on_train_begin(self, logs: Any = None) -> None:
        changed = self._call("on_train_begin", logs)
        self.outside |= changed  # a callback may have restored those of an earlier process

    def on_train_end(self, logs: Any = None) -> None:
        self.outside |= self._call("on_train_end", logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.added = {}
        self.added = self._call("on_epoch_begin", logs, epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        plain = _plain(logs) | self.added
        changed = self._call("on_epoch_end", plain, epoch)
        self.logs = self.numbers(plain) | changed

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.added |= self._call("on_train_batch_begin", logs, batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.added |= self._call("on_train_batch_end", logs, batch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_begin", logs))

    def on_test_end(self, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_end", logs))

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_batch_begin", logs, batch))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._add_of_validation(self._call("on_test_batch_end", logs, batch))

    def warn_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self._warn(line)

    def _add_of_validation(self, values: Mapping[str, float]) -> None:
        self.added |= {name if name.startswith(("val_", "val/")) else f"val_{name}": v for name, v in values.items()}

    def _call(self, hook: str, logs: Any, *place: int) -> dict[str, float]:
        """Calls `hook` of every callback; returns the numbers that they have added to `logs` or replaced in it."""
        before = _plain(logs)  # waits for the step that computes them
        passed = dict(before)
        self.between = time.perf_counter() - self._hook_ended
        with self.timing.of("callbacks"):
            for callback in self.callbacks:
                self._call_one(callback, hook, place, passed)
                for name, value in passed.items():
                    if hasattr(value, "dtype"):  # a CSVLogger, for one, cannot write a tensor
                        number = as_number(value)
                        passed[name] = value if number is None else number
        self._hook_ended = time.perf_counter()
        return self.numbers(
            {name: value for name, value in passed.items() if name not in before or value is not before[name]}
        )

    def _call_one(
        self, callback: keras.callbacks.Callback, hook: str, place: Sequence[int], logs: dict[str, Any]
    ) -> None:
        """Calls a hook; what is wrong in a callback of the user's is said by its name."""
        try:
            getattr(callback, hook)(*place, logs=logs)
        except UserError:
            raise
        except Exception as error:
            if id(callback) not in self.names:
                raise
            raise UserError(
                f"{self.names[id(callback)]}.{hook}: {type(error).__name__}: {error}", "a callback that raises no error"
            ) from error

    def numbers(self, values: Mapping[Any, Any]) -> dict[str, float]:
        """Returns the numbers in `values`, and warns once of each other value."""
        numbers = {}
        for name, value in values.items():
            number = as_number(value)
            if number is None:
                kind = type(value).__name__
                self.warn_once(f"a callback adds {name} to the logs, a {kind} and not a number: it is not recorded")
            else:
                numbers[str(name)] = number
        return numbers


def _plain(logs: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """Returns logs with tensors as floats."""
    converted = {name: (value, as_number(value)) for name, value in (logs or {}).items()}
    return {name: value if number is None else number for name, (value, number) in converted.items()}


class BestWeights(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the best `monitor`; of equal ones, the first."""

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
            self.best_epoch = epoch + 1
            self.best_value = value
            self.weights = self.model.get_weights()

    def restore(self) -> None:
        if self.weights:
            self.model.set_weights(self.weights)

    def save(self, path: Path, network: keras.Model) -> None:
        """Writes the best weights to `path` (`.weights.h5`), whole or not at all; `network` keeps its own.

        Args:
            network: the trained one or a copy of it, as Keras cannot save variables in shards.
        """
        current = network.get_weights()
        network.set_weights(self.weights)
        save_weights(network, path)
        network.set_weights(current)


def save_weights(network: keras.Model, path: Path) -> None:
    """Writes the weights to `path` (`.weights.h5`), whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, network.save_weights)


def build_callbacks(
    settings: TrainSettings,
    reporter: Reporter,
    timing: Timing | None = None,
    folder: Path | None = None,
    metrics: Sequence[keras.metrics.Metric] = (),
) -> tuple[BestWeights, Callbacks]:
    """Returns the callback that keeps the best weights, and all callbacks in the order of their calls.

    Args:
        reporter: receives warnings of attributes that a checkpoint cannot hold. timing: counts their time.
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
    if settings.schedule.name == "plateau":
        callbacks.append(Plateau(settings))
    names: dict[int, str] = {}
    for index, entry in enumerate(settings.callbacks):
        callback = _imported(entry, index)
        if isinstance(callback, Profiler):
            callback.folder = str(folder or "")
        callbacks.append(callback)
        names[id(callback)] = f"train.callbacks[{index}] {type(callback).__name__}"
        left_out = state_of(callback, "", {})[1]
        if left_out:
            name = type(callback).__name__
            reporter.warn(f"train.callbacks[{index}]: a checkpoint does not keep {name}'s {', '.join(left_out)}")
    refuse_useless([callback for callback in callbacks if id(callback) in names], names, settings, metrics)
    return best, Callbacks(callbacks, reporter.warn, timing, names)


class Plateau(keras.callbacks.ReduceLROnPlateau):
    """Lowers the learning rate where `monitor` no longer improves, by the settings of the schedule `plateau`."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__(
            settings.monitor,
            factor=settings.schedule.decay_factor,
            patience=settings.schedule.patience,
            min_delta=0.0,  # as in early stopping
            mode="max" if settings.monitor.endswith("accuracy") else "min",
        )
        self.reset_least_rate(settings)

    def reset_least_rate(self, settings: TrainSettings) -> None:
        """Sets the least rate by the peak of the phase; Keras resets the rest in `on_train_begin`."""
        self.min_lr = settings.schedule.final_share * settings.optimizer.learning_rate


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
    try:
        callback = import_target(target)(**settings)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(
            f"train.callbacks[{index}]={entry} cannot be made ({error})",
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
