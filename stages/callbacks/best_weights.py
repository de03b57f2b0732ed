"""The callback that keeps the weights of the best epoch."""

import math
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from stages.storage.atomic import atomic_write


class BestWeights(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the best `monitor`; of equal ones, the first."""

    def __init__(self, monitor: str, is_higher_better: bool) -> None:
        super().__init__()
        self.monitor = monitor
        self.sign = 1 if is_higher_better else -1
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
            network: the trained one or a copy of it.
        """
        current = network.get_weights()
        network.set_weights(self.weights)
        save_weights(network, path)
        network.set_weights(current)


def save_weights(network: keras.Model, path: Path) -> None:
    """Writes the weights to `path` (`.weights.h5`), whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, network.save_weights)
