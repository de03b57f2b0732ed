"""`python -m benchmarks.scaling_worker FILE`: a worker of the cluster in `TF_CONFIG` that times steps and reductions.

Each process computes on one core. Worker 0 writes seconds of a step, of a reduction of one number, and of one of the
gradients' size.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case, build, real_digits, step_of
from stages.distribution.collectives import sum_over_workers
from stages.optimization.optimizers import build_optimizer
from stages.results import Strategy
from stages.settings.model import MlpSettings
from stages.settings.optimizer import SgdSettings
from stages.settings.strategy import MultiWorkerSettings
from stages.settings.train import TrainSettings
from stages.strategy import strategy
from stages.training.loop import Loop

BATCH, STEPS, CALLS = 256, 8, 5
"""Examples of each replica; steps of a call; calls, the first of which traces."""


def main() -> None:
    """Measures, and writes what was measured."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    where = strategy(MultiWorkerSettings(deterministic=False))
    task = json.loads(os.environ["TF_CONFIG"])
    workers = len(task["cluster"]["worker"])
    measured = measure(where, workers)
    if where.record.on_exit:
        where.record.on_exit()
    if task["task"]["index"] == 0:
        Path(sys.argv[1]).write_text(json.dumps(measured))


def measure(where: Strategy, workers: int) -> dict[str, float]:
    """Returns the bytes of the gradients and the medians of seconds."""
    dataset = real_digits(BATCH * workers * STEPS)
    built = build(Case(network=MlpSettings(hidden=[1024, 1024])), where, dataset)
    settings = TrainSettings(
        epochs=100, seed=1, steps_per_call=STEPS, batch_size=BATCH * workers, optimizer=SgdSettings()
    )
    with where.distribution.scope():
        optimizer = build_optimizer(settings.optimizer, 0.01, built.policy)
    loop = Loop(where, step_of(where, built, dataset, optimizer, settings), dataset, settings)
    calls = iter(range(CALLS))
    call = _median(lambda: loop.run(next(calls) * STEPS, STEPS), CALLS)
    gradients = sum(int(np.prod(variable.shape)) for variable in built.network.trainable_variables) * 4
    one, many = np.zeros(1, np.float32), np.zeros(gradients // 4, np.float32)
    return {
        "bytes": gradients,
        "step": call / STEPS,
        "one": _median(lambda: sum_over_workers(where, one), 40),
        "many": _median(lambda: sum_over_workers(where, many), 40),
    }


def _median(function: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
