"""TensorFlow's profiler around steps of training, and its trace in a form that browsers read."""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from stages.storage.atomic import atomic_write

FOLDER = "profile"
"""In a run's folder."""

READABLE = "trace.json.gz"

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


def write_chrome_trace(folder: Path) -> Path:
    """Writes the trace in `folder` as `trace.json.gz`, in Chrome's format, which Perfetto reads; returns its path.

    TensorFlow writes an `.xplane.pb`, for which TensorBoard needs a plugin.
    Source: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).
    """
    events = [event for path in sorted(folder.rglob("*.xplane.pb")) for event in _events(path)]
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
    path = folder / READABLE
    atomic_write(path, gzip.compress(text.encode()))
    return path


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the events of a trace: each plane (a host, a GPU) is a process, each of its lines a thread."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    begins = [line.timestamp_ns for plane in space.planes for line in plane.lines]
    first = min(begins, default=0)
    for process, plane in enumerate(space.planes):
        if not plane.lines:
            continue
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines):
            yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": line.name}}
            for event in line.events:
                yield {
                    "ph": "X",
                    "pid": process,
                    "tid": thread,
                    "name": plane.event_metadata[event.metadata_id].name,
                    "ts": (line.timestamp_ns - first) / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                }
