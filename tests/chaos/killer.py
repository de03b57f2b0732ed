"""A Keras callback that kills its own process at the moment in the environment variable `FAULT`, if it is set.

- `FAULT=step:40`: after step 40.
- `FAULT=epoch_end:2`: at the end of the second epoch, before it is complete.
- `FAULT=writing:9`: when the checkpoint of step 9, or the first one after it, is written under its temporary name.
- `FAULT_WORKER=1`: only in this worker of a cluster.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import keras

from stages.storage.atomic import PARTIAL


class Kill(keras.callbacks.Callback):
    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        sys.addaudithook(_die_renaming)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        _die_at("step", int(self.model.optimizer.iterations.numpy()))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        _die_at("epoch_end", epoch + 1)


def _die_renaming(event: str, arguments: tuple[object, ...]) -> None:
    if event == "os.rename":
        source = Path(str(arguments[0]))
        if source.name.startswith(PARTIAL) and source.match("*step-*.npz"):
            _die_at("writing", int(source.stem.rpartition("-")[2]))


def _die_at(kind: str, number: int) -> None:
    wanted, _, least = os.environ.get("FAULT", "").partition(":")
    worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    if wanted == kind and number >= int(least) and str(worker) == os.environ.get("FAULT_WORKER", str(worker)):
        os.kill(os.getpid(), signal.SIGKILL)
