"""Checkpoints of a training: its state, its progress and the attributes of its callbacks, saved and restored."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import keras
import numpy as np

from stages.checkpoints.attributes import restore_attributes, state_of
from stages.checkpoints.compatibility import Facts, check_fits, has_same_epochs, parts_for_fork
from stages.checkpoints.files import Checkpoint
from stages.checkpoints.names import MODEL, STEPS, SUMS
from stages.checkpoints.progress import Progress, progress_of
from stages.data.batches import steps_per_epoch
from stages.results import Dataset
from stages.settings.train import TrainSettings
from stages.training.state import TrainState

WithInitial = Sequence[tuple[keras.callbacks.Callback, Sequence[Mapping[str, Any]]]]
"""Each callback with its attributes before and after `on_train_begin`, which also sets them when a run is resumed. A
checkpoint contains the attributes that differ from either."""


class Resumable:
    """Everything that a checkpoint of a training holds: its state, its progress and its callbacks' attributes."""

    def __init__(
        self,
        state: TrainState,
        callbacks: WithInitial,
        dataset: Dataset,
        settings: TrainSettings,
        optimizer: keras.optimizers.Optimizer,
    ) -> None:
        self.optimizer = ""
        """For a fork, what happens to the state of the other run's optimizer."""
        self._state = state
        self._callbacks = callbacks
        self._per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        self._facts: Facts = {
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "classes": dataset.task.head.units,
                "examples": len(dataset.train),
            },
            "parts": state.forms,
            "order": {"seed": settings.seed, "batch_size": settings.batch_size},
            "optimizer": type(optimizer).__name__,
            "callbacks": [{"kind": type(callback).__name__} for callback, _ in callbacks],
            "result": {"restore_best": settings.restore_best, "monitor": settings.monitor},
        }

    def checkpoint(self, progress: Progress) -> Checkpoint:
        """Return a checkpoint of the current state. All workers must call this."""
        arrays = self._state.read()
        callbacks = [
            {"kind": type(callback).__name__, "state": _changed(callback, before, f"callbacks.{index}", arrays)}
            for index, (callback, before) in enumerate(self._callbacks)
        ]
        facts = {**self._facts, "step": progress.step, "progress": asdict(progress), "callbacks": callbacks}
        return Checkpoint(facts, arrays)

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Restore a checkpoint of this training, and return its progress.

        A fork restores the weights, the parts of the state that fit, and the number of epochs. Its history, callbacks
        and learning rate follow the new settings.

        Raises:
            UserError: For a checkpoint of other data, of a different model or, unless it is a fork, of other settings.
        """
        facts = checkpoint.facts
        check_fits(facts, self._facts, checkpoint.is_fork)
        parts = list(self._state.parts)
        if checkpoint.is_fork:
            parts, self.optimizer = parts_for_fork(facts, self._facts)
        progress = progress_of(checkpoint, has_same_epochs(facts, self._facts))
        self._state.assign(checkpoint.arrays, [*parts, SUMS] if progress.done else parts)
        if not checkpoint.is_fork:
            for (callback, _), saved in zip(self._callbacks, facts["callbacks"], strict=True):
                restore_attributes(callback, saved["state"], checkpoint.arrays)
        elif progress.done == 0:  # with a different batch size, an epoch has a different number of steps
            progress.step = progress.epoch * self._per_epoch
            if STEPS in parts:
                self._state.iterations.assign(progress.step - progress.began * self._per_epoch)
        return progress


def _changed(
    callback: keras.callbacks.Callback, before: Sequence[Mapping[str, Any]], name: str, arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Return the attributes of a callback that differ from all those `before`; add their arrays to `arrays`."""
    attributes = state_of(callback, name, arrays)[0]
    return {
        key: value
        for key, value in attributes.items()
        if any(key not in known or value != known[key] for known in before)
    }


def restore_weights(network: keras.Model, checkpoint: Checkpoint) -> None:
    """Restore only the weights of `network`, before `Resumable` restores everything.

    Weights of a different network are ignored here, because `Resumable` refuses them.
    """
    arrays = [checkpoint.arrays.get(f"{MODEL}.{index}") for index in range(len(network.weights))]
    if all(array is not None and array.shape == v.shape for array, v in zip(arrays, network.weights, strict=True)):
        network.set_weights(arrays)
