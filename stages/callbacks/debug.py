"""Callbacks of debug runs: TensorFlow's profiler, and training on one batch until the network has memorized it."""

from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from stages.networks.keras_internals import all_layers

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


class OneBatch(keras.callbacks.Callback):
    """Switches dropout and noise off before the first step is traced, and stops once the loss is `enough`."""

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
    """Sets the rates of all dropout layers in `network`, and of those that add noise, to 0."""
    for layer in all_layers(network):
        if hasattr(layer, "seed_generator"):
            for setting in {"rate", "stddev"} & vars(layer).keys():
                setattr(layer, setting, 0.0)
