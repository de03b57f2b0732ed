"""Peak resident memory: of whole runs, and of evaluation beside training.

Measured within a process is VmHWM, which /proc/self/clear_refs resets, once what had been freed is returned to the
system (glibc's malloc_trim): Linux with glibc.
"""

import ctypes
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Figures, Samples, interleave
from benchmarks.processes import pipeline, prepared, python

IDLE = "import tensorflow as tf, keras; tf.constant(0.0)"


def default_run(rounds: int) -> Samples:
    """Measure the default run with one epoch beside TensorFlow and Keras, imported and idle."""
    with tempfile.TemporaryDirectory() as outputs:
        ways = {
            "default run": partial(pipeline, Path(outputs), "train.epochs=1"),
            "TensorFlow, idle": partial(python, "-c", IDLE),
        }
        return interleave(ways, rounds)


def larger_than_memory(rounds: int) -> Samples:
    """Measure an epoch over tf_flowers at 160 pixels (282 MB) that may keep 1 MB of images in memory, beside the same
    network on an eighth of the images; and all of them held in memory. Validation and test are the same: their batches
    are as large as memory for a batch allows, and here all of a split at once.
    """
    tfds = prepared("tf_flowers")
    settings = (
        "data=tf_flowers", f"data.dir={tfds}", "data.size=160", "model=cnn", "model.network.filters=[4,4]",
        "data.val_split='train[80%:90%]'", "data.test_split='train[90%:]'",
        "train.epochs=1", "train.batch_size=32", "pipeline.export=null",
    )  # fmt: skip
    reading = (*settings, "data.memory_gib=0.001")
    with tempfile.TemporaryDirectory() as outputs:
        ways = {
            "all, from disk": partial(pipeline, Path(outputs), *reading, "data.train_split='train[:80%]'"),
            "an eighth, from disk": partial(pipeline, Path(outputs), *reading, "data.train_split='train[:10%]'"),
            "all, in memory": partial(pipeline, Path(outputs), *settings, "data.train_split='train[:80%]'"),
        }
        return interleave(ways, rounds, warm_up=1)


def evaluation(rounds: int) -> Samples:
    """Measure the stages of a run of MobileNetV2 at 288 pixels, batch 8, each by its own peak."""
    peaks = [stages("mobilenet_v2", 288, 8) for _ in range(rounds)]
    return {name: {"MiB": [peak[name] for peak in peaks]} for name in ("train", "evaluate")}


def stages(network: str, side: int, batch: int, strategy: str = "one_device") -> Figures:
    """Returns, in MiB: the peak of the resident set in each stage of a short run (`train`), how much higher it is than
    at the stage's beginning (`train growth`).
    """
    from pipeline.decide.decision import decide
    from pipeline.decide.job import Job
    from pipeline.execute.stages import bind
    from stages.reporter import Reporter
    from tests.pipeline.experiments import experiment

    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        chosen = experiment(
            "data=synthetic", f"data.height={side}", f"data.width={side}", "data.examples=128", "data.val_fraction=0.5",
            "data.test_examples=64", f"model={network}", f"strategy={strategy}",
            f"train.batch_size={batch}", "train.epochs=1", "tracking=off", outputs=Path(folder),
        )  # fmt: skip
        results: dict[str, Any] = {}
        for stage in bind(decide(Job(chosen))):
            accepted = stage.function.__code__.co_varnames[: stage.function.__code__.co_argcount]
            handed = {"settings": stage.settings, "reporter": Reporter(), "folder": Path(folder), "cache": Path(folder)}
            arguments = {name: results[name] for name in stage.planned.inputs}
            arguments |= {name: value for name, value in handed.items() if name in accepted}
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            name, before = stage.planned.name, resident("VmRSS")
            results[stage.planned.makes] = stage.function(**arguments)
            peaks[name] = resident("VmHWM")
            peaks[f"{name} growth"] = peaks[name] - before
    return peaks


def resident(name: str) -> float:
    """Return this process's memory in MiB: `VmRSS` now, `VmHWM` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
