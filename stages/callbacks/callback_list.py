"""The callbacks of a training, whose additions to an epoch's logs are part of the run."""

from collections.abc import Mapping
from typing import Any

import keras

from stages.results import as_number


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
