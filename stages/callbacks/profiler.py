"""TensorFlow's profiler around steps of training."""

from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

FOLDER = "profile"
"""In a run's folder."""

EPOCH = 1
"""The second one: in the first, the step is traced and compiled, and the number of steps in a call chosen."""


class Profiler(keras.callbacks.Callback):
    """Traces at least `steps` steps of the second epoch, into the run's folder; whole calls, as many as have these.

    folder: the run's, set by the training; empty: nothing is traced.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.folder = ""  # text, which a checkpoint can hold
        self._is_on = False

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        if epoch == EPOCH and self.folder:
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
