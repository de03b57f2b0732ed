"""A Keras callback that makes every epoch long until Slurm has started the job again; it changes no number."""

import os
import time
from collections.abc import Mapping

import keras


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        if "SLURM_JOB_ID" in os.environ and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(0.5)
