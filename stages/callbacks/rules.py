"""Callbacks of Keras that cannot work with the settings of a training: refused before its first step."""

from collections.abc import Mapping, Sequence

import keras

from stages.errors import UserError
from stages.settings.train import TrainSettings

_MONITORING = (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint, keras.callbacks.ReduceLROnPlateau)
_SETTING_RATES = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)


def refuse_useless(
    callbacks: Sequence[keras.callbacks.Callback],
    names: Mapping[int, str],
    settings: TrainSettings,
    metrics: Sequence[keras.metrics.Metric],
) -> None:
    """Refuses callbacks that would fail at their first use, or never do anything.

    Args:
        callbacks: the user's own. names: theirs by `id`, for errors. metrics: the network's own.

    Raises:
        UserError: for one that sets a learning rate which a schedule sets, or swaps an EMA that it does not find, or
            monitors what is in no logs, which another callback may add to.
    """
    own = [metric.name for metric in metrics]
    logs = ["loss", "accuracy", *own]
    known = [*logs, *(f"val_{name}" for name in logs), "learning_rate"]
    may_add = any(_may_add(callback) for callback in callbacks)
    for callback in callbacks:
        name = names[id(callback)]
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
