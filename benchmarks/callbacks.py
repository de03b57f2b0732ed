"""Keras callbacks that measure a training from within: the project's, and those of the baselines."""

import json
import os
import time
from pathlib import Path
from typing import Any

import keras

from benchmarks.bare import Bare


class EpochTimes(keras.callbacks.Callback):
    """Writes the seconds of each epoch's training and validation to `path`, as lists `training` and `validation`.

    An epoch's training begins where the validation of the one before has ended: it has what happens between them.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.seconds: dict[str, list[float]] = {}
        self.mark = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self.mark = time.perf_counter()

    def on_test_begin(self, logs: Any = None) -> None:
        self.lap("training")

    def on_test_end(self, logs: Any = None) -> None:
        self.lap("validation")

    def on_train_end(self, logs: Any = None) -> None:
        Path(self.path).write_text(json.dumps(self.seconds))

    def lap(self, name: str) -> None:
        """Add the seconds since the last call under `name`."""
        before, self.mark = self.mark, time.perf_counter()
        self.seconds.setdefault(name, []).append(self.mark - before)


class BesideBare(EpochTimes):
    """Also takes turns with bare compute: after each epoch `steps` steps of it and the inference of `batches` batches,
    as `bare training` and `bare validation`.

    batch: of training; scored: of validation.
    """

    def __init__(self, path: str, batch: int, steps: int, scored: int, batches: int) -> None:
        super().__init__(path)
        self.batch, self.steps, self.scored, self.batches = batch, steps, scored, batches

    def on_train_begin(self, logs: Any = None) -> None:
        self.bare = Bare(self.model, self.batch, self.scored)
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        weights = self.model.get_weights()
        self.mark = time.perf_counter()
        self.bare.train(self.steps)
        self.lap("bare training")
        self.bare.infer(self.batches)
        self.lap("bare validation")
        self.model.set_weights(weights)
        self.mark = time.perf_counter()


class NoteFirstStep(keras.callbacks.Callback):
    """Writes down at `path` when the first step has ended, in seconds since 1970."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.path.exists():
            self.path.write_text(repr(time.time()))


class FirstStep(keras.callbacks.Callback):
    """Ends the process after its first step, as if it had been killed."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        os._exit(0)
