"""Replicas and workers against one device with the same cores, and workers of one core against one such worker."""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measuring import Figures, Samples, interleave
from benchmarks.processes import pipeline, summary

STRATEGIES: Mapping[str, Sequence[str]] = {
    "one_device": ("strategy=one_device",),
    "mirrored": ("strategy=mirrored", "strategy.cpu_replicas=2"),
    "multi_worker": ("strategy=multi_worker", "strategy.workers=2"),
}


def strategies(rounds: int) -> Samples:
    """Measure a step of the MNIST convnet, batch 128: on one device, by two replicas, by two processes; and one of
    half the batch by a process that has one core, as each of the two has.
    """
    data = (
        "data=synthetic", "data.height=28", "data.width=28", "data.channels=1", "data.examples=16000",
        "train.epochs=2", "pipeline.evaluate=null", "pipeline.export=null",
    )  # fmt: skip

    def step(outputs: Path, strategy: Sequence[str], batch: int = 128, cores: int | None = None) -> Figures:
        pipeline(outputs, *data, *strategy, f"train.batch_size={batch}", cores=cores)
        return {"a step": summary(outputs)["metrics"]["train/step_milliseconds"]}

    with tempfile.TemporaryDirectory() as outputs:
        ways = {name: partial(step, Path(outputs), given) for name, given in STRATEGIES.items()}
        ways["one core, half the batch"] = partial(step, Path(outputs), STRATEGIES["one_device"], 64, 1)
        return interleave(ways, rounds)
